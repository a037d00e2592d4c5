"""Who is in a partition is recognised by id and by rows, and only by who holds the secret."""

import numpy as np
import pyarrow as pa

from primorl.trajectories.identity.fingerprint import Fingerprint
from primorl.trajectories.identity.membership import DIGEST_BYTES, Membership
from tests.trajectories.builders import INFO, NAMED, episode, table, with_probabilities

SECRET = b"s" * 32


def digests(content: pa.Table, dataset: str = "d", secret: bytes = SECRET, population: str = "") -> set[bytes]:
    members = Membership(secret, dataset, population)
    members.update(content)
    raw = members.to_bytes()
    return {raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES)}


def units(names: list[str], seeds: list[int]) -> pa.Table:
    return table([episode(5, seed) for seed in seeds], units=names, names=names)


def test_a_unit_is_recognised_by_its_id_and_by_its_rows() -> None:
    base = digests(units(["a", "b"], [1, 2]))
    assert len(base) == 4
    assert len(base & digests(units(["a", "c"], [3, 4]))) == 1, "the same id with other rows"
    assert len(base & digests(units(["x", "y"], [2, 3]))) == 1, "the same rows under another id"
    assert len(base & digests(units(["a", "z"], [1, 9]))) == 2, "the same unit"
    assert not base & digests(units(["c", "d"], [3, 4]))


def test_ids_mean_the_same_within_one_entry_only_and_rows_everywhere() -> None:
    base = digests(units(["a"], [1]))
    assert not base & digests(units(["a"], [2]), dataset="other")
    assert len(base & digests(units(["a"], [1]), dataset="other")) == 1


def test_ids_mean_the_same_in_all_entries_of_one_population() -> None:
    base = digests(units(["a", "b"], [1, 2]), population="ward")
    assert len(base & digests(units(["a", "c"], [3, 4]), dataset="copy", population="ward")) == 1
    assert not base & digests(units(["a", "c"], [3, 4]), dataset="copy", population="another ward")


def test_what_was_digested_before_populations_is_known_under_any_of_them() -> None:
    before = digests(units(["a", "b"], [1, 2]))
    assert digests(units(["a", "b"], [1, 2]), population="d") == before, "nothing changes under the dataset's own name"
    assert len(before & digests(units(["a", "c"], [3, 4]), population="ward")) == 1


def test_another_secret_recognises_nobody() -> None:
    assert not digests(units(["a"], [1])) & digests(units(["a"], [1]), secret=b"t" * 32)


def test_a_changed_number_or_a_moved_row_is_other_rows() -> None:
    one = episode(5, 1)
    base = digests(table([one], units=["a"], names=["a"]))
    for change in ("rewards", "actions", "observations"):
        other = episode(5, 1)
        setattr(other, change, list(reversed(getattr(other, change))))
        assert len(base & digests(table([other], units=["a"], names=["a"]))) == 1, change


def test_people_are_known_whatever_the_unit_is_said_to_be() -> None:
    content, names = [episode(3, 1), episode(4, 2), episode(5, 3)], ["t1", "t2", "t3"]
    persons = digests(table(content, units=["a", "a", "b"], names=names))
    assert len(persons) == 2 + 2 * 3
    trajectories = digests(table(content, units=names, names=names))
    assert len(trajectories) == 2 * 3
    assert trajectories < persons
    renamed = digests(table(content[1:2], units=["z"], names=["z"]), dataset="other")
    assert len(renamed & persons) == 1


def test_probabilities_of_actions_are_part_of_the_fingerprint_and_not_of_who_people_are() -> None:
    rows = units(["a", "b"], [1, 2])
    values = np.linspace(0.1, 0.9, rows.num_rows)
    prints, members = set(), set()
    for content in (rows, with_probabilities(rows, values), with_probabilities(rows, values**2)):
        fingerprint = Fingerprint((INFO if content is rows else NAMED).schema)
        fingerprint.update(content)
        prints.add(fingerprint.keyed(SECRET))
        members.add(frozenset(digests(content)))
    assert (len(prints), len(members)) == (3, 1)
