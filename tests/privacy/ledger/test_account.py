"""Who shares what with whom: kinds of units, people under other names, units that were public, and old ledgers."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.groups import grouped
from primorl.privacy.ledger.chain import Chain
from primorl.privacy.ledger.ledger import Budget, BudgetExceeded, Ledger, Version
from primorl.privacy.ledger.roster import heads, placed
from primorl.project.errors import PipelineError
from tests.privacy.ledger.ledgers import DELTA, GAUSSIAN, SECRET, adaptive, execute, opened, request, version

RUN = training_event(0.1, 20.0, 150)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(opened(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)) as found:
        yield found


def stays(members: str = "abc", most: int | None = None) -> Version:
    return replace(version(members), trajectories_per_person=most)


def patients(members: str = "abc", most: int | None = None) -> Version:
    return replace(version(members, "7" * 64), unit="patient", trajectories_per_person=most)


# Kinds of units


def test_charges_on_a_finer_unit_count_once_for_every_unit_that_a_person_has(ledger: Ledger) -> None:
    """What one stay's run reveals of a patient with four stays is that of four stays together."""
    ledger.reserve(request(stays(most=4), RUN), None)
    ledger.reserve(request(patients(most=4), RUN, identity="two"), None)
    spent = ledger.account(patients(most=4)).total(DELTA)
    events = [grouped(RUN, 4), RUN]
    assert spent.epsilon == pytest.approx(adaptive(*events), rel=1e-9)
    assert spent.epsilon_fixed == pytest.approx(compose(events, DELTA).epsilon_pld, rel=1e-9)
    assert spent.epsilon_fixed > 1.5 * compose([RUN, RUN], DELTA).epsilon_pld, "at face value it would be that"


def test_a_stay_belongs_to_one_patient(ledger: Ledger) -> None:
    """Seen from the finer unit, each charge counts once; from the coarser one, as often as was declared."""
    ledger.reserve(request(patients(most=4), RUN), None)
    ledger.reserve(request(stays(), RUN, identity="two"), None)
    assert ledger.account(stays()).total(DELTA).epsilon_fixed == compose([RUN, RUN], DELTA).epsilon_pld
    events = [RUN, grouped(RUN, 4)]
    found = ledger.account(patients(most=4)).total(DELTA).epsilon_fixed
    assert found == pytest.approx(compose(events, DELTA).epsilon_pld, rel=1e-9)


@pytest.mark.parametrize("budget", [None, Budget(1e6, DELTA)])
def test_without_a_bound_the_coarser_unit_is_refused(ledger: Ledger, budget: Budget | None) -> None:
    first = ledger.reserve(request(stays(), RUN), None)
    with pytest.raises(PipelineError) as refused:
        ledger.reserve(request(patients(), RUN, identity="two"), budget)
    assert f"found 'patient', and charge {first.id} on the same people was made on unit 'trajectory'" in str(
        refused.value
    )
    assert "trajectories_per_person in datasets/pendulum.yaml" in str(refused.value)
    assert len(ledger.charges()) == 1
    assert ledger.account(patients()).epsilon(DELTA) == float("inf"), "nothing can be said, so nothing is promised"


def test_without_a_bound_the_finer_unit_is_refused_after_the_coarser(ledger: Ledger) -> None:
    """In this order too, what a patient reveals could not be told any more."""
    ledger.reserve(request(patients(), RUN), None)
    with pytest.raises(PipelineError, match=r"found 'trajectory', and charge .* was made on unit 'patient'"):
        ledger.reserve(request(stays(), RUN, identity="two"), None)
    assert ledger.account(patients()).epsilon(DELTA) < 1


def test_the_budget_holds_on_the_coarser_unit_whichever_comes_first(ledger: Ledger) -> None:
    """A run on stays fits for a stay, and not for the patient whose four stays it trains on."""
    budget = Budget(1.05 * adaptive(RUN, RUN), DELTA)
    ledger.reserve(request(patients(most=4), RUN), budget)
    with pytest.raises(BudgetExceeded, match=r"is spent for one patient \(1 charged\)"):
        ledger.reserve(request(stays(most=4), RUN, identity="two"), budget)
    enough = Budget(1.01 * adaptive(RUN, grouped(RUN, 4)), DELTA)
    ledger.reserve(request(stays(most=4), RUN, identity="two"), enough)
    assert ledger.account(patients(most=4)).epsilon(DELTA) <= enough.epsilon


@pytest.mark.parametrize(("then", "now", "most"), [(4, None, None), (None, 3, 3), (2, 3, 3), (3, 2, 3)])
def test_the_largest_declared_bound_holds_and_that_of_another_kind_alone_says_nothing(
    ledger: Ledger, then: int | None, now: int | None, most: int | None
) -> None:
    """Declared for admissions, 1 may be true; it says nothing of how many a patient has."""
    ledger.reserve(request(stays(most=then), RUN), None)
    account = ledger.account(patients(most=now))
    assert [entry.units for entry in account.entries] == [most]


def test_the_budget_counts_them_so(ledger: Ledger) -> None:
    budget = Budget(1.05 * adaptive(RUN, RUN), DELTA)
    ledger.reserve(request(stays(most=4), RUN), budget)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(request(patients(most=4), RUN, identity="two"), budget)
    ledger.reserve(request(stays(most=4), RUN, identity="two"), budget)


CLINIC = "c" * 32


def of(version_: Version, unit: str = "trajectory", population: str = CLINIC, most: int | None = 4) -> Version:
    return replace(version_, unit=unit, population=population, trajectories_per_person=most)


def test_other_kinds_of_units_of_one_population_share_people_without_a_common_digest(ledger: Ledger) -> None:
    """Ids of other units differ, and so do the rows where a column was computed anew. The people are the same."""
    admissions, people = of(version("abc"), "admission"), of(version("xyz"), "patient")
    ledger.reserve(request(admissions, RUN), None)
    ledger.reserve(request(people, RUN, identity="two"), None)
    events = [grouped(RUN, 4), RUN]
    found = ledger.account(people).total(DELTA).epsilon_fixed
    assert found == pytest.approx(compose(events, DELTA).epsilon_pld, rel=1e-9)
    assert ledger.account(of(version("xyz"), "patient", "d" * 32)).charges == ledger.account(people).charges[1:]
    with pytest.raises(PipelineError, match="trajectories_per_person"):
        ledger.reserve(request(of(version("uvw"), "person", most=None), RUN, identity="three"), None)


def test_one_column_name_in_two_populations_is_two_kinds(ledger: Ledger) -> None:
    """`id` names a visit in one table and a person in the other; equal rows show that they meet."""
    ledger.reserve(request(of(version("abc"), "id", "1" * 32), RUN), None)
    (entry,) = ledger.account(of(version("cde"), "id", "2" * 32)).entries
    assert entry.units == 4
    (entry,) = ledger.account(of(version("cde"), "id", "1" * 32)).entries
    assert entry.units == 1


def test_the_largest_bound_of_all_versions_on_these_people_counts(ledger: Ledger) -> None:
    ledger.reserve(request(of(version("ab"), most=None), RUN), None)
    ledger.reserve(request(of(version("abc", "1" * 64), "patient", most=8), RUN, identity="two"), None)
    (first, _) = ledger.account(of(version("a", "2" * 64), "patient", most=2)).entries
    assert first.units == 8


def test_another_unit_is_refused_where_some_units_are_public(ledger: Ledger) -> None:
    """A patient may be private where one of her admissions was public, and no digest tells."""
    shown = replace(of(version("abc"), "admission"), public=version("xy").members)
    ledger.reserve(request(shown, RUN), None)
    with pytest.raises(PipelineError, match=r"found 'patient', and an earlier run on the same population had 'adm"):
        ledger.reserve(request(of(version("uvw"), "patient"), RUN, identity="two"), None)
    ledger.reserve(request(of(version("uvw"), "patient", "d" * 32), RUN, identity="two"), None)


# Public and private


def test_units_that_were_public_never_become_private(ledger: Ledger) -> None:
    ledger.reserve(request(replace(version("abc"), public=version("xy").members)), None)
    with pytest.raises(PipelineError, match="the private split holds units that earlier runs used as public"):
        ledger.reserve(request(version("cdx"), identity="two"), None)
    ledger.reserve(request(version("cd"), identity="two"), None)  # the twin


def test_units_that_were_private_never_become_public(ledger: Ledger) -> None:
    ledger.reserve(request(replace(version("abc"), public=version("xy").members)), None)
    with pytest.raises(PipelineError, match="the public split holds units that earlier runs were charged for"):
        ledger.reserve(request(replace(version("de"), public=version("xa").members), identity="two"), None)
    ledger.reserve(request(replace(version("de"), public=version("xyz").members), identity="two"), None)


# Rosters


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 30)), st.sets(st.integers(31, 60))), min_size=2, max_size=6))
def test_versions_share_a_unit_exactly_if_their_sets_meet(versions: list[tuple[set[int], set[int]]]) -> None:
    """Whatever versions came before, every digest is kept once, and bits say who shares."""

    def digests(units: set[int]) -> bytes:
        return b"".join(unit.to_bytes(8, "little") + b"\7" * 8 for unit in units)

    rosters: list[Any] = []
    for number, (private, public) in enumerate(versions):
        earlier = range(number)
        rosters.append(
            placed(heads(digests(private)), heads(digests(public)), number, earlier, lambda at: rosters[at].segment)
        )
    kept = [int(head) for roster in rosters for head in roster.segment]
    assert sorted(kept) == sorted(set().union(*(private | public for private, public in versions)))
    for one, mine in zip(rosters, versions, strict=True):
        for other, its in zip(rosters, versions, strict=True):
            for side, its_side in ((0, 0), (0, 1), (1, 0)):
                names = ("private", "public")
                shared = one.shares(names[side], other, names[its_side])
                assert shared == bool(mine[side] & its[its_side])


def test_the_same_people_are_kept_once(tmp_path: Path) -> None:
    """Ten versions of the same two thousand people take little more room than one."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    people = [str(number) for number in range(2000)]
    with closing(opened(url, tmp_path)) as ledger:
        sizes = []
        for number in range(10):
            ledger.reserve(request(version(people[number:]), identity=str(number)), None)
            engine = sa.create_engine(url)
            with engine.connect() as connection:
                kept = [
                    connection.execute(sa.text(f"SELECT SUM(LENGTH(content)) FROM {table}")).scalar() or 0
                    for table in ("ledger_segments", "ledger_bits")
                ]
            sizes.append(sum(kept))
        assert sizes[0] >= 8 * 2000
        assert sizes[-1] < 1.2 * sizes[0]
        assert len(ledger.account(version(people[1500:1501])).charges) == 10


# Ledgers of schema 1


def old_ledger(url: str, folder: Path) -> list[Version]:
    """What the version before this one would have written: whole digests, and records that know neither bound nor
    cost, kept under no schema number.
    """
    opened(url, folder).close()
    execute(url, *(f"DROP TABLE ledger_{table}" for table in ("segments", "bits", "schema")))
    chain, data = Chain(SECRET, "old"), [version("abc"), version("cde")]
    contents: list[dict[str, Any]] = []
    for number, each in enumerate(data):
        at = 2 * number + 1
        contents += [
            {
                "kind": "version",
                "time": "2026-01-01T00:00:00+00:00",
                "fingerprint": each.fingerprint,
                "unit": each.unit,
                "units": each.units,
                "members": chain.members_digest(each.members),
            },
            {
                "kind": "reserved",
                "time": "2026-01-01T00:00:00+00:00",
                "charge": f"old{number}",
                "version": at,
                "dataset": "pendulum",
                "stage": "train_model",
                "identity": f"old{number}",
                "event": {"type": "GaussianDpEvent", "noise_multiplier": 5.0},
                "epsilon": 0.9,
                "delta": DELTA,
                "accountant": {"name": "any", "version": "0"},
                "git_commit": None,
                "mlflow_run": None,
            },
        ]
        execute(
            url, "INSERT INTO ledger_members (version, content) VALUES (:at, :members)", at=at, members=each.members
        )
    records = chain.following(contents)
    for record in records:
        execute(
            url,
            "INSERT INTO ledger_records (sequence, body, previous, hash) VALUES (:sequence, :body, :previous, :hash)",
            **vars(record),
        )
    (folder / "ledger.head").write_text(json.dumps({"sequence": len(records), "hash": records[-1].hash}))
    return data


def test_an_old_ledger_is_upgraded_and_nothing_is_forgotten(ledger_url: str, tmp_path: Path) -> None:
    first, second = old_ledger(ledger_url, tmp_path)
    with closing(opened(ledger_url, tmp_path)) as ledger:
        assert ledger.verify() == 4
        assert [charge.id for charge in ledger.account(first).charges] == ["old0", "old1"]
        assert ledger.account(second).epsilon(DELTA) == pytest.approx(adaptive(GAUSSIAN, GAUSSIAN), rel=1e-9)
        new = ledger.reserve(request(version("ef"), identity="new"), None)
        assert [charge.id for charge in ledger.account(second).charges] == ["old0", "old1", new.id]
        assert [charge.id for charge in ledger.account(version("ef")).charges] == ["old1", new.id]
        assert ledger.verify() == 6
    execute(ledger_url, "UPDATE ledger_members SET content = :other WHERE version = 3", other=version("xyz").members)
    with pytest.raises(PipelineError, match="record 3: the members of this dataset version were edited"):
        opened(ledger_url, tmp_path).verify()


def test_tables_of_a_later_program_are_refused(ledger_url: str, tmp_path: Path) -> None:
    opened(ledger_url, tmp_path).close()
    execute(ledger_url, "INSERT INTO ledger_schema (number) VALUES (99)")
    with pytest.raises(PipelineError, match="found tables of schema 99, this version knows up to 2"):
        opened(ledger_url, tmp_path)


def test_without_a_guarantee_in_groups() -> None:
    assert grouped(dp_event.NonPrivateDpEvent(), 4) == dp_event.NonPrivateDpEvent()
