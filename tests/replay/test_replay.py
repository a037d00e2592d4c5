"""What leaves a run on neighbouring data is the same to the byte, once the releases are the same.

docs/privacy-proofs.md says what this shows, and what it does not.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import torch

from primorl.privacy.accounting.epsilon import event_from_json
from primorl.privacy.mechanism.clipping import EnsembleClip
from tests.replay.project import (
    COMMANDS,
    STAGES,
    Leak,
    Outputs,
    differences,
    log_of_people,
    outputs,
    with_simulator,
)
from tests.replay.tape import FINGERPRINT, Tape

pytestmark = pytest.mark.timeout(600)  # on a busy machine
DATA = Path("data/trajectories/rows.parquet")
RUN = Callable[[Tape, bool], Outputs]


def rows(tape: Tape) -> int:
    """Count the transitions."""
    return pq.read_metadata(DATA).num_rows


def secret(tape: Tape) -> int:
    """Return the size of the last cohort, or the steps of the online user who differs."""
    return tape.secret


def mean(tape: Tape) -> float:
    """Average the reward."""
    return float(pq.read_table(DATA)["reward"].to_numpy().mean())


def write(path: str, log: Any, number: float) -> None:
    """Write a file."""
    Path(path).write_text(str(number), encoding="utf-8")


def grow(path: str, log: Any, number: int) -> None:
    """Make a file longer."""
    Path(path).write_bytes(Path(path).read_bytes() + b" " * number)


LEAKS = {
    "ingest": Leak(rows, lambda log, number: print(number, file=sys.stderr), "ingest: {}"),
    "partition": Leak(rows, lambda log, number: print(number), "partition: {}"),
    "train_model": Leak(
        secret, lambda log, number: log.metric("cohort", number), "('train_model.cohort',{}"
    ),
    "clone_behaviour": Leak(
        mean, lambda log, number: log.metric("data", number), "('clone_behaviour.data',"
    ),
    "optimize_policy": Leak(
        rows, lambda log, number: log.metric("rows", number), "('optimize_policy.rows',{}"
    ),
    "evaluate_private": Leak(
        rows, partial(grow, "metrics/private_evaluation.json"), "metrics/private_evaluation.json: "
    ),
    "evaluate": Leak(mean, partial(write, "metrics/mean"), "metrics/mean: only in"),
    "report": Leak(rows, partial(grow, "reports/report.html"), "reports/report.html: "),
    "online": Leak(secret, lambda log, number: print(number, file=sys.stderr), "online: {}"),
    "primorl summary": Leak(rows, lambda log, number: print(number), "primorl summary: {}"),
    "primorl release --check out": Leak(mean, partial(write, "out/mean"), "out/mean: only in"),
}


LEAKY = "summary", "release"  # commands that leak, or that they need


class Pair(NamedTuple):
    """Two runs, and a way to make a third one."""

    first: Outputs
    second: Outputs
    again: RUN


def pair(
    folder: Path,
    store: Path,
    write: Callable[..., None],
    stages: Sequence[str],
    commands: Sequence[str],
) -> Pair:
    def run(tape: Tape, told: bool) -> Outputs:
        place = folder / "project"
        asked = [words for words in commands if not told or words.startswith(LEAKY)]
        return outputs(
            place, store, write, tape, stages=stages, commands=asked, leaks=LEAKS, told=told
        )

    first = run(Tape(), False)
    return Pair(first, run(Tape(first.tape.releases), False), run)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Pair:
    """A few public people and an environment."""
    return pair(tmp_path_factory.mktemp("simulated"), empty_store, with_simulator, STAGES, COMMANDS)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Pair:
    """A log alone, and nobody public."""
    stages = ("collect", *STAGES)
    return pair(tmp_path_factory.mktemp("logged"), empty_store, log_of_people, stages, COMMANDS)


@pytest.mark.parametrize("which", ["simulated", "logged"])
def test_all_that_leaves_a_run_on_neighbouring_data_is_the_same(
    which: str, request: pytest.FixtureRequest
) -> None:
    found: Pair = request.getfixturevalue(which)
    assert differences(found.first, found.second) == []
    for name, content in found.first.content.items():
        if name in STAGES or name.startswith("primorl"):
            assert content.startswith(b"exit status 0"), content.decode()


@pytest.mark.parametrize("which", ["simulated", "logged"])
def test_every_release_is_paid_for_and_depends_on_the_unit(
    which: str, request: pytest.FixtureRequest
) -> None:
    """Counts releases by stage against the events of the ledger; of a user online, those of her own
    cohort.
    """
    found: Pair = request.getfixturevalue(which)
    mechanisms = [release.mechanism for release in found.first.tape.releases]
    made = Counter(stage for stage, kind, _ in mechanisms if kind != FINGERPRINT)
    charges = json.loads(found.first.content["primorl ledger show --json"].partition(b"\n")[2])
    paid = Counter[str]()
    for charge in charges:
        stage = charge["stage"].partition(":")[0]
        paid[stage] += releases(event_from_json(charge["event"]))
    paid["online"] *= 2  # cohorts
    assert made == +paid
    moved = {release.mechanism[0] for release in found.second.tape.releases if release.moved > 0}
    assert moved >= made.keys()


def releases(event: Any) -> int:
    """Count the releases of an accounted event."""
    if hasattr(event, "events"):
        return sum(releases(each) for each in event.events)
    return getattr(event, "count", 1) * (releases(event.event) if hasattr(event, "event") else 1)


@pytest.fixture(scope="module")
def leaky(simulated: Pair) -> tuple[list[str], Outputs]:
    """Differences of a second run with every leak, and updates of the clone that are beyond the
    clip.
    """
    finish, tape = EnsembleClip.finish, Tape(simulated.first.tape.releases)

    def beyond(clip: EnsembleClip, updates: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            part.mul_(8.0 if tape.stage == "clone_behaviour" else 1.0)
            for part in finish(clip, updates)
        ]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EnsembleClip, "finish", beyond)
        found = simulated.again(tape, True)
    return differences(simulated.first, found), found


@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_named(
    name: str, leaky: tuple[list[str], Outputs], simulated: Pair
) -> None:
    found, run = leaky
    assert run.numbers[name] == simulated.second.numbers[name] != simulated.first.numbers[name]
    place = LEAKS[name].place.format(run.numbers[name])
    assert any(place in difference for difference in found), found


def test_an_update_beyond_the_clip_is_named(leaky: tuple[list[str], Outputs]) -> None:
    found, _ = leaky
    assert any("round of clone_behaviour: moved by" in difference for difference in found)
    assert not any("round of train_model" in difference for difference in found)


def test_releases_of_other_mechanisms_and_other_numbers_of_them_are_named() -> None:
    first = Tape(stage="stage")
    one, far = torch.zeros(2), torch.tensor([3.0, 4.0])
    for settings in "ab":
        first.release("round", settings, one, 2.5, lambda: "drawn")
    second = Tape(first.releases, stage="stage")
    assert second.release("round", "a", far, 2.5, lambda: pytest.fail("drawn again")) == "drawn"
    assert second.faults == ["release 0, round of stage: moved by 2 times its sensitivity"]
    for stage, kind, settings in (
        ("other", "round", "b"),
        ("stage", "query", "b"),
        ("stage", "round", "a"),
    ):
        second.stage = stage
        with pytest.raises(AssertionError, match="the first run has none"):
            second.release(kind, settings, one, 1.0, lambda: None)
    assert differences(Outputs(first), Outputs(second))[-1] == "1 releases, 2 in the first run"
