"""Digests that are in people's ledgers, and fingerprints in their manifests, never change their bytes."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from primorl.data.identity.consent import HashDraw
from primorl.data.identity.membership import Fingerprint, Membership
from primorl.data.storage.schema import Spaces, arrow_schema, trajectory_table

SECRET = bytes(range(32))
BOX = Spaces((-1.0,) * 3, (1.0,) * 3, (-2.0,), (2.0,))
CHOICES = Spaces.with_discrete_actions((-1.0,) * 3, (1.0,) * 3, 4)


def content(spaces: Spaces, persons: bool) -> pa.Table:
    """Thirty trajectories of 1 to 6 steps, two a person where ``persons``; every number is computed, none drawn."""
    lengths = [1 + i % 6 for i in range(30)]
    names = [f"ü{i:03d}" for i in range(30)]
    units = [f"person {i // 2:02d}" for i in range(30)] if persons else names

    def numbers(i: int, rows: int, columns: int) -> np.ndarray:
        return ((np.arange(rows * columns) * 37 + i * 101) % 199).reshape(rows, columns).astype(
            np.float32
        ) / 200

    ends = [np.arange(n) == n - 1 for n in lengths]
    return trajectory_table(
        spaces,
        units,
        names,
        [numbers(i, n + 1, 3) for i, n in enumerate(lengths)],
        [
            np.arange(n) % 4 if spaces.discrete_actions else numbers(i, n, 1)
            for i, n in enumerate(lengths)
        ],
        [numbers(i, n, 1)[:, 0] for i, n in enumerate(lengths)],
        [end & (i % 3 == 0) for i, end in enumerate(ends)],
        [end & (i % 3 != 0) for i, end in enumerate(ends)],
    )


@pytest.mark.parametrize(
    ("spaces", "persons", "by_rows", "count", "digests", "fingerprint"),
    [
        (
            BOX,
            False,
            True,
            60,
            "d7b7b11e7ba064bf1171d4c37d2d9e14",
            "91f7007a190b30e336d83c8a49b7334e",
        ),
        (
            BOX,
            True,
            True,
            75,
            "03e3cc3b078a7a8bf250291eeba084b4",
            "e42c7cf9eb3a91bd9fac573ed43aed2f",
        ),
        (
            CHOICES,
            False,
            False,
            60,
            "52e8ddb9e7ebe03712ee1ad369d8621f",
            "c24049ed1b5eb77cc209c4593b466b2e",
        ),
        (
            CHOICES,
            True,
            True,
            75,
            "116f23f397c1f7ada2f23f3447f99033",
            "ff99b2aa912e2fbd4f35d8a0b46a1f35",
        ),
    ],
)
def test_digests(
    spaces: Spaces, persons: bool, by_rows: bool, count: int, digests: str, fingerprint: str
) -> None:
    table = content(spaces, persons)
    members, of_all = (
        Membership(SECRET, "golden", by_rows=by_rows),
        Fingerprint(arrow_schema(spaces)),
    )
    members.update(table)
    of_all.update(table.slice(0, 40))
    of_all.update(table.slice(40))
    raw = members.to_bytes()
    assert (len(raw), hashlib.sha256(raw).hexdigest()[:32]) == (16 * count, digests)
    assert of_all.keyed(SECRET)[:32] == fingerprint


def test_public_draw() -> None:
    drawn = HashDraw(0.3, "salt")(pa.array([f"{i:012d}" for i in range(64)]))
    assert "".join("01"[public] for public in drawn.tolist()) == (
        "1001000110010101000101001100101110010010000100000101110000000000"
    )
