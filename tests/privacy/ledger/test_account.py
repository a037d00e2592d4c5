"""Who shares what with whom: kinds of units, people under other names, units that were public, and
old ledgers.
"""

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.base.errors import PipelineError
from primorl.privacy.accounting.epsilon import compose, grouped, training_event
from primorl.privacy.ledger.account import heads, placed
from primorl.privacy.ledger.history import BudgetExceeded, Version
from primorl.privacy.ledger.ledger import Budget, Ledger
from tests.privacy.ledger.ledgers import DELTA, adaptive, execute, opened, request, version

RUN = training_event(0.1, 20.0, 150)
SIDES: Any = ("private", "public")


CLINIC = "c" * 32


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return opened(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)


def of(
    members: str, unit: str = "trajectory", most: int | None = 4, public: str = "", **changes: Any
) -> Version:
    shown = version(public).members
    return replace(
        version(members), unit=unit, trajectories_per_person=most, public=shown, **changes
    )


stays = functools.partial(of, "abc", "trajectory")
patients = functools.partial(of, "abc", "patient", fingerprint="7" * 64)


def charge(
    ledger: Ledger, data: Version, identity: str = "one", budget: Budget | None = None
) -> None:
    ledger.reserve(request(data, RUN, identity=identity), budget)


def fixed(*events: dp_event.DpEvent) -> Any:
    return pytest.approx(compose(events, DELTA).epsilon_pld, rel=1e-9)


def test_charges_on_a_finer_unit_count_once_for_every_unit_that_a_person_has(
    ledger: Ledger,
) -> None:
    charge(ledger, stays(4))
    charge(ledger, patients(4), "two")
    spent, events = ledger.account(patients(4)).total(DELTA), [grouped(RUN, 4), RUN]
    assert spent.epsilon == pytest.approx(adaptive(*events), rel=1e-9)
    assert spent.epsilon_fixed == fixed(*events)
    face_value = compose([RUN, RUN], DELTA).epsilon_pld
    assert spent.epsilon_fixed > 1.5 * face_value
    assert ledger.account(stays(4)).total(DELTA).epsilon_fixed == face_value, (
        "a stay belongs to one patient"
    )


@pytest.mark.parametrize(
    ("first", "second"), [(stays(None), patients(None)), (patients(None), stays(None))]
)
def test_without_a_bound_two_kinds_of_units_are_refused(
    ledger: Ledger, first: Version, second: Version
) -> None:
    charge(ledger, first)
    (made,) = ledger.charges()
    said = (
        f"found '{second.unit}', and charge {made.id} on the same people was made on unit "
        f"'{first.unit}'"
    )
    for budget in (None, Budget(1e6, DELTA)):
        with pytest.raises(PipelineError, match=f"{said}; .* trajectories_per_person"):
            charge(ledger, second, "two", budget)
    assert len(ledger.charges()) == 1
    spent = ledger.account(patients(None)).epsilon(DELTA)
    assert spent < 1 if first.unit == "patient" else spent == float("inf"), (
        "nothing can be said, nor promised"
    )


def test_the_budget_holds_on_the_coarser_unit_whichever_comes_first(ledger: Ledger) -> None:
    budget = Budget(1.05 * adaptive(RUN, RUN), DELTA)
    charge(ledger, patients(4), budget=budget)
    with pytest.raises(BudgetExceeded, match=r"is spent for one patient \(1 charged\)"):
        charge(ledger, stays(4), "two", budget)
    enough = Budget(1.01 * adaptive(RUN, grouped(RUN, 4)), DELTA)
    charge(ledger, stays(4), "two", enough)
    assert ledger.account(patients(4)).epsilon(DELTA) <= enough.epsilon
    with pytest.raises(BudgetExceeded):
        charge(ledger, patients(4), "three", enough)


@pytest.mark.parametrize(
    ("then", "now", "most"), [(4, None, None), (None, 3, 3), (2, 3, 3), (3, 2, 3)]
)
def test_the_largest_bound_holds_and_one_of_another_kind_not(
    ledger: Ledger, then: Any, now: Any, most: Any
) -> None:
    charge(ledger, stays(then))
    (entry,) = ledger.account(patients(now)).entries
    assert entry.units == most
    if most is not None:
        charge(ledger, of("abc", "patient", 8, fingerprint="1" * 64), "two")
        assert ledger.account(patients(now)).entries[0].units == 8, (
            "of all versions on these people"
        )


def test_other_kinds_of_units_of_one_population_share_people_without_a_common_digest(
    ledger: Ledger,
) -> None:
    people = of("xyz", "patient", population=CLINIC)
    charge(ledger, of("abc", "admission", population=CLINIC))
    charge(ledger, people, "two")
    assert ledger.account(people).total(DELTA).epsilon_fixed == fixed(grouped(RUN, 4), RUN)
    elsewhere = of("xyz", "patient", population="d" * 32)
    assert ledger.account(elsewhere).charges == ledger.account(people).charges[1:]
    with pytest.raises(PipelineError, match="trajectories_per_person"):
        charge(ledger, of("uvw", "person", None, population=CLINIC), "three")


def test_one_column_name_in_two_populations_is_two_kinds(ledger: Ledger) -> None:
    charge(ledger, of("abc", "id", population="1" * 32))
    for population, units in (("2" * 32, 4), ("1" * 32, 1)):
        (entry,) = ledger.account(of("cde", "id", population=population)).entries
        assert entry.units == units


def test_another_unit_is_refused_where_some_units_are_public(ledger: Ledger) -> None:
    charge(ledger, of("abc", "admission", population=CLINIC, public="xy"))
    with pytest.raises(PipelineError, match="found 'patient', and an earlier run"):
        charge(ledger, of("uvw", "patient", population=CLINIC), "two")
    charge(ledger, of("uvw", "patient", population="d" * 32), "two")


def test_trajectories_of_the_population_that_share_nothing_are_refused_where_some_are_public(
    ledger: Ledger,
) -> None:
    """Other ids and columns share no digest.

    Twins: nobody public; another population; shared ones; a simulator's.
    """
    hidden = "unit: found 'trajectory', as an earlier version of the same population has"
    charge(ledger, of("abc", "trajectory", population=CLINIC))
    charge(ledger, of("def", "trajectory", population=CLINIC), "again")
    other = of("uvw", "trajectory", population=CLINIC, public="xy")
    for entry in ("two", "pendulum"):
        with pytest.raises(PipelineError, match=rf"{hidden} \(pendulum\)"):
            ledger.reserve(request(other, dataset=entry), None)
    ledger.reserve(request(replace(other, population="d" * 32), dataset="two"), None)
    charge(ledger, replace(other, simulated=True), "other trajectories of the same entry")
    ledger.reserve(request(of("rst", "trajectory"), dataset="two"), None)
    ledger.publish("log", of("klm", "trajectory", population="e" * 32, public="n"))
    ledger.publish("log", of("klmo", "trajectory", population="e" * 32, public="np"))
    for entry in ("log", "other"):
        with pytest.raises(PipelineError, match=rf"{hidden} \(log\)"):
            ledger.publish(entry, of("123", "trajectory", population="e" * 32, public="4"))


def test_units_that_were_private_become_public_only_if_it_is_confirmed(ledger: Ledger) -> None:
    """Before any charge.

    Twins: people who are new, and those who were published before, need no word.
    """

    def publish(members: str, public: str, confirmed: str | None = None) -> None:
        ledger.publish("log", of(members, "patient", public=public), confirmed)

    def refused(members: str, public: str, confirmed: str | None = None) -> str:
        with pytest.raises(PipelineError, match="would become public and were private") as no:
            publish(members, public, confirmed)
        (word,) = re.findall(r"partition\.publish: (p\w{8}),", str(no.value))
        return str(word)

    publish("abcd", "")
    word = refused("abc", "d")
    assert refused("ab", "cd", word) != word
    assert refused("abc", "d", "yes") == word
    publish("abc", "d", word)
    publish("abc", "d")
    publish("abce", "dx")
    version = of("ab", "patient", public="cd")
    for used in (
        lambda: ledger.check_published("log", version),
        lambda: ledger.reserve(request(version), None),
    ):
        with pytest.raises(PipelineError, match="would become public and were private"):
            used()
    with pytest.raises(PipelineError, match="an earlier split made public"):
        publish("abcd", "x")


def test_units_that_were_private_never_become_public(ledger: Ledger) -> None:
    charge(ledger, of("abc", public="xy"))
    with pytest.raises(PipelineError, match="the public split holds units"):
        charge(ledger, of("de", public="xa"), "two")
    with pytest.raises(PipelineError, match="the private split holds units"):
        charge(ledger, of("cdx"), "two")
    charge(ledger, of("de", public="xyz"), "two")
    charge(ledger, of("cd"), "three")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 30)), st.sets(st.integers(31, 60))), min_size=2, max_size=6
    )
)
def test_versions_share_a_unit_exactly_if_their_sets_meet(
    versions: list[tuple[set[int], set[int]]],
) -> None:
    def digests(units: set[int]) -> bytes:
        return b"".join(unit.to_bytes(8, "little") + b"\7" * 8 for unit in units)

    rosters: list[Any] = []
    for number, sides in enumerate(versions):
        private, public = (heads(digests(side)) for side in sides)
        rosters.append(
            placed(private, public, number, range(number), lambda at: rosters[at].segment)
        )
    kept = [int(head) for roster in rosters for head in roster.segment]
    assert sorted(kept) == sorted(set().union(*(private | public for private, public in versions)))
    for one, mine in zip(rosters, versions, strict=True):
        for other, its in zip(rosters, versions, strict=True):
            for side, its_side in ((0, 0), (0, 1), (1, 0)):
                shared = one.shares(SIDES[side], other, SIDES[its_side])
                assert shared == bool(mine[side] & its[its_side])


def test_a_ledger_of_another_schema_is_refused(ledger_url: str, tmp_path: Path) -> None:
    opened(ledger_url, tmp_path).close()
    execute(ledger_url, "INSERT INTO ledger_schema (number) VALUES (99)")
    with pytest.raises(PipelineError, match="found tables of schema 99"):
        opened(ledger_url, tmp_path)
