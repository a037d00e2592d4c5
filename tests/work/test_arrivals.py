"""Who is met in which cohort, and how the ledger knows them: nobody too often, nobody twice in one
sum.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primorl.base.errors import PipelineError
from primorl.config.params import Params
from primorl.data.identity.membership import Membership, project_secret
from primorl.stages.online import Arrivals, in_cohorts
from tests.data.builders import episode, table
from tests.projects import project_settings, write_settings

IDS = st.lists(st.sampled_from("abcdefgh"), max_size=40)
TODAY = "data/arrivals/today"


@given(IDS, st.integers(1, 4), st.integers(1, 3))
def test_nobody_is_met_more_often_than_is_paid_for(
    ids: list[str], size: int, appearances: int
) -> None:
    cohorts = in_cohorts(ids, size, appearances)
    met = Counter(ids[number] for cohort in cohorts for number in cohort)
    assert all(count <= appearances for count in met.values())
    for cohort in cohorts:
        assert len({ids[number] for number in cohort}) == len(cohort) == size
    numbers = [number for cohort in cohorts for number in cohort]
    assert len(set(numbers)) == len(numbers)


def test_users_are_met_in_the_order_of_arrival_and_again_in_a_later_cohort_until_the_cap() -> None:
    assert in_cohorts(list("abcdefg"), 3, 1) == ((0, 1, 2), (3, 4, 5))
    assert in_cohorts(list("abaacbdaea"), 2, 2) == ((0, 1), (2, 4), (5, 6))
    assert in_cohorts(list("abaacbdaea"), 2, 1) == ((0, 1), (4, 6))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    for folder, content in (("arrivals/today", "p1\np2\np3\n"), ("withdrawals/gone", "p2\n")):
        Path("data", folder).parent.mkdir(parents=True)
        Path("data", folder).write_text(content)
    return tmp_path


def asking(
    unit: str = "trajectory", seed: int = 0, gone: str | None = None, **online: Any
) -> Params:
    content = project_settings("pendulum-replay" if unit == "trajectory" else "csv-log")
    content["seed"] = seed
    content["online"] |= {"cohort": 2} | online
    content["chosen"]["ingestion"]["exclude_units"] = gone
    return write_settings(content)


def digests(members: bytes) -> set[bytes]:
    return {members[at : at + 16] for at in range(0, len(members), 16)}


def test_simulated_users_are_the_same_people_for_the_same_seed_alone(project: Path) -> None:
    first, again, other = (Arrivals.of(asking(users=6, seed=seed)).version for seed in (0, 0, 1))
    assert first == again
    assert not digests(first.members) & digests(other.members)
    assert len(digests(first.members)) == 6


def test_people_of_the_log_are_recognised_where_the_unit_is_a_person(project: Path) -> None:
    params = asking(unit="person", arrivals=TODAY)
    version = Arrivals.of(params).version
    log = Membership(project_secret(), params.chosen.population)
    log.update(table([episode(2, 0), episode(2, 1)], units=["p2", "q9"], names=["t1", "t2"]))
    assert len(digests(version.members) & digests(log.to_bytes())) == 1
    assert (version.unit, version.units) == (params.chosen.unit, 2)
    assert params.same_people
    of_trajectories = asking(arrivals=TODAY)
    assert not of_trajectories.same_people
    version = Arrivals.of(of_trajectories).version
    assert version.unit == "user"
    assert not digests(version.members) & digests(log.to_bytes())
    withdrawn = asking(unit="person", arrivals=TODAY, gone="data/withdrawals/gone")
    assert Arrivals.of(withdrawn).cohorts == ((0, 2),), "who withdrew from the log is not met"
    Path(TODAY).write_text("p1\np2 \np3\n")
    with pytest.raises(PipelineError, match=rf"{TODAY}: found ids of units"):
        Arrivals.of(withdrawn)


def test_a_wrong_list_is_one_clear_error(project: Path) -> None:
    for name, content, says in (
        ("data/arrivals/gone", None, "data/arrivals/gone: No such file"),
        (
            "data/elsewhere",
            b"1\n2\n",
            "online.yaml: arrivals: found 'data/elsewhere'; allowed is one in data/arrivals",
        ),
        (TODAY, b"1\n1\n1\n", "online.yaml: cohort: found 2, and 1 different users come"),
        (TODAY, b"\xff\xfe1", f"{TODAY}: not UTF-8 text"),
        (TODAY, b"17\n18\n17.0\n19\n", rf"{TODAY}: found ids of units \(1\)"),
        (TODAY, b"p1\np2\np1 \np3\n", rf"{TODAY}: found ids of units \(1\)"),
    ):
        if content is not None:
            Path(name).write_bytes(content)
        with pytest.raises(PipelineError, match=says):
            Arrivals.of(asking(arrivals=name))
