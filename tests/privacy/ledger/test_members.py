"""Two versions share a unit exactly if a whole digest of one is in the other, at any size."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from primorl.privacy.ledger.members import DIGEST_BYTES, Members

# Few different halves, so that digests agree in one half more often than in both.
_half = st.sampled_from([bytes(8), b"\0" * 7 + b"\1", b"\1" + bytes(7), b"\xff" * 8])
_digests = st.lists(st.tuples(_half, _half).map(b"".join), min_size=1, max_size=6)


@given(one=_digests, other=_digests)
def test_it_is_the_intersection_of_sets(one: list[bytes], other: list[bytes]) -> None:
    expected = bool(set(one) & set(other))
    assert Members(b"".join(one)).share(Members(b"".join(other))) == expected
    assert Members(b"".join(other)).share(Members(b"".join(one))) == expected


@pytest.mark.parametrize("place", [0, 29_999, 59_999])
def test_one_in_sixty_thousand_is_found(place: int) -> None:
    """Two digests each of 30,000 units."""
    many = np.frombuffer(os.urandom(60_000 * DIGEST_BYTES), dtype=f"V{DIGEST_BYTES}")
    strangers = os.urandom(60_000 * DIGEST_BYTES)
    members = Members(many.tobytes())
    assert not members.share(Members(strangers))
    assert members.share(Members(strangers + many[place].tobytes()))
    assert members.share(members)


def test_two_halves_of_different_digests_are_nobody() -> None:
    one, two = os.urandom(DIGEST_BYTES), os.urandom(DIGEST_BYTES)
    assert not Members(one + two).share(Members((one + two)[8:-8]))
    assert not Members(one + two).share(Members(one[:8] + two[8:]))
