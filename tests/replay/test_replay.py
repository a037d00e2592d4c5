"""What leaves a run on neighbouring data is the same to the byte, once the releases are the same.

docs/privacy-proofs.md says what this shows, and what it does not.
"""

import io
import json
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from examples import insulin_log
from pipeline.runner import run_stage
from primorl.base.files import write_json
from primorl.commands.main import main
from primorl.model.architecture import PublicLosses
from primorl.privacy.accounting import figures
from primorl.privacy.accounting.epsilon import event_from_json
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.stages import training
from tests.data.builders import episode, write_raw
from tests.projects import ROOT, inside, write_settings
from tests.release.released_project import SECRET, SHORT_POLICY, tiny_params, write_as_good
from tests.replay.tape import FINGERPRINT, Tape, playing

STAGES = (
    *("ingest", "partition", "plan", "train_model", "clone_behaviour", "optimize_policy"),
    *("evaluate_private", "evaluate", "report", "online"),
)
COMMANDS = (
    *("plan", "check --charges", "summary", "runs", "ledger show", "ledger show --json"),
    *("ledger verify", "report"),
    "predict --policy models/policy --against-advice --observations today.csv --out actions.csv",
    "release out --against-advice",
    "release --check out",
)
_INSIDE = (".primorl", "data", "mlflow.db", "mlflow.db.lock")
"""Inside the trust boundary; of the store, what it says is compared."""
_figures = cache(figures.figures.__wrapped__)
_OUTSIDE = ("data/partitions/manifest.json", "data/partitions/public")


class Leak(NamedTuple):
    """A private number, and a way out that it must not take.

    Attributes:
        number: computed after a stage or a command.
        tell: let the number out; the first argument is the stage's MLflow run (None after a
            command).
        place: how `differences` names it, with {} for the number.
    """

    number: Callable[[Tape], Any]
    tell: Callable[[Any, Any], object]
    place: str


@dataclass
class Outputs:
    """All that left a run.

    Attributes:
        content: of every file, of the MLflow store, and what every stage and command printed with
            its exit status.
        numbers: those of the leaks, also where they were not told.
        tape: the releases.
    """

    tape: Tape
    content: dict[str, bytes] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)


def with_simulator(*, neighbour: bool) -> None:
    """Write a project with an environment and a few public people; the last trajectory is
    private.
    """
    raw = tiny_params()
    raw["chosen"]["termination"] = "learned"
    raw["privacy"]["sampling_probability"] = 0.5
    shares = {"model": 0.6, "clone": 0.2, "behaviour": 0.2}
    raw["privacy"] |= {"target_epsilon": 4.0, "shares": shares}
    raw["policy"]["seeds"] = [0, 1]
    raw["online"] |= {"users": 6, "cohort": 3, "steps": 20}
    write_settings(raw)
    episodes = [episode(20 + i % 3, seed=i, terminated=i % 4 == 0) for i in range(13)]
    last = episode(9, 999, terminated=True) if neighbour else episode(30, 998)
    write_raw(Path("data/raw"), [*episodes, last])
    write_json(Path("metrics/stages/collect.json"), {"seconds": 1.0, "metrics": []})
    Path("today.csv").write_text("observation_0,observation_1,observation_2\n0.1,0.2,0.3\n")


def log_of_people(*, neighbour: bool) -> None:
    """Write a project of a log without an environment and without public people: linear heads, all
    fitted.
    """
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8")) | {"dataset": "log"}
    raw["dynamics"]["train_anyway"] = True
    raw["policy"] |= SHORT_POLICY
    raw["behaviour"]["hidden"] = [8]
    entry = yaml.safe_load((ROOT / "datasets/csv-log.yaml").read_text(encoding="utf-8"))
    entry["population"], entry["options"]["files"] = "log", "data/log.csv"
    actions = {"column": "dose", "count": 2}
    entry["options"]["columns"] |= {"observation": ["glucose"], "action": actions}
    entry["bounds"] = {"observation": {"low": [2.0], "high": [25.0]}, "reward": [-1.0, 0.0]}
    entry["recipe"] = {"privacy": {"target_epsilon": 8.0}}
    entry["card"] = dict.fromkeys(("owner", "purpose", "contact", "licence"), "tests")
    Path("datasets").mkdir()
    Path("datasets/log.yaml").write_text(yaml.safe_dump(entry), encoding="utf-8")
    Path("params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    Path("data").mkdir()
    rows = ["patient,stay,time,glucose,dose,reward"]
    for patient in range(24):
        changed = neighbour and patient == 23
        random = np.random.default_rng([patient, changed])
        for stay in range(4 if changed else 1 + patient % 3):
            for step in range(9 if changed else 3 + (patient + stay) % 4):
                values = f"{random.uniform(3, 20):.3f},{random.integers(2)},{-random.uniform():.3f}"
                rows.append(f"{'q' if changed else 'p'}{patient:02d},{stay},{step},{values}")
    Path("data/log.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    Path("today.csv").write_text("glucose\n5.5\n", encoding="utf-8")


def events_of_people(*, neighbour: bool) -> None:
    """Write a project of events in MEDS; of the last person other events, more of them and values
    beyond bounds.
    """
    log_of_people(neighbour=False)
    entry = yaml.safe_load((ROOT / "datasets/insulin-meds.yaml").read_text(encoding="utf-8"))
    entry["population"], entry["options"]["folder"] = "log", "data/meds"
    Path("datasets/log.yaml").write_text(yaml.safe_dump(entry), encoding="utf-8")
    rows = list[list[Any]]()
    for patient in range(24):
        changed = neighbour and patient == 23
        generator = np.random.default_rng([patient, changed])
        for stay in range(3 if changed else 1):
            rows += insulin_log._stay(generator, patient, stay)
    if neighbour:
        rows[-5][3] = 99.0  # mmol/L
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(insulin_log, "MEDS", Path("data/meds"))
        insulin_log._write_meds(rows, np.random.default_rng(0))


@dataclass(frozen=True)
class Capture:
    """What stages and commands print, and the leaks among them.

    Attributes:
        found: to which it is added.
        leaks: by stage or command.
        told: whether the leaks let their numbers out.
    """

    found: Outputs
    leaks: Mapping[str, Leak]
    told: bool

    def run(self, name: str, work: Callable[[str, Callable[[Any], None]], int]) -> None:
        """Run a stage, or a command with its words, and keep what it prints."""
        self.found.tape.stage = name
        torch.manual_seed(0)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            try:
                status = work(name, partial(self._leak, name))
            except SystemExit as ended:
                status = int(ended.code or 0)
        text = f"exit status {status}\n{out.getvalue()}\n{err.getvalue()}"
        self.found.content[name] = text.encode()

    def _leak(self, name: str, log: Any = None) -> None:
        if name in self.leaks:
            self.found.numbers[name] = self.leaks[name].number(self.found.tape)
            if self.told:
                self.leaks[name].tell(log, self.found.numbers[name])


def stage(name: str, leak: Callable[[Any], None]) -> int:
    """Run a script of the pipeline."""
    script = import_module(f"pipeline.{name}")

    def body(params: Any, log: Any) -> None:
        script.body(params, log)
        leak(log)

    def idle(params: Any) -> bool:
        if not (hasattr(script, "idle") and script.idle(params)):
            return False
        leak(None)
        return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", [name])
        return run_stage(name, "", body, idle)


def command(words: str, leak: Callable[[Any], None]) -> int:
    """Run ``primorl`` with words."""
    status = main(words.split()[1:])
    leak(None)
    return status


@contextmanager
def quick() -> Iterator[None]:
    """Leave out what is slow, and find good what few rounds on few people came to."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PublicLosses, "diverged", False)
        patched.setattr(training, "write_model", write_as_good)
        # Computed from released things alone, and slow.
        patched.setattr("primorl.stages.asking.ROLLOUTS", 64)
        patched.setattr(figures, "figures", _figures)
        patched.setattr(figures, "GROUP_SIZES", ())
        yield


def outputs(
    folder: Path,
    store: Path,
    write: Callable[..., None],
    tape: Tape,
    *,
    stages: Sequence[str],
    commands: Sequence[str],
    leaks: Mapping[str, Leak],
    told: bool = False,
) -> Outputs:
    """Run stages and commands in ``folder``, which is empty afterwards; return what left.

    Args:
        folder: same for all runs that are compared.
        store: an empty MLflow store.
        write: `with_simulator` or `log_of_people`; the second run gets the neighbour.
        tape: of the run.
        stages: to be run.
        commands: to be run after them.
        leaks: by stage or command.
        told: whether the leaks let their numbers out.
    """
    found, terminated = Outputs(tape), signal.getsignal(signal.SIGTERM)
    capture = Capture(found, leaks, told)
    folder.mkdir(exist_ok=True)
    shutil.copy(store, folder / "mlflow.db")
    with inside(folder), playing(tape), quick():
        Path(".primorl").mkdir(mode=0o700)
        Path(".primorl/secret").write_bytes(SECRET)
        Path(".primorl/secret").chmod(0o600)
        write(neighbour=tape.first is not None)
        for name in stages:
            capture.run(name, stage)
        for words in commands:
            capture.run(f"primorl {words}", command)
        with closing(sqlite3.connect("mlflow.db")) as tables:
            found.content["MLflow"] = "\n".join(tables.iterdump()).encode()
        for path in sorted(Path().rglob("*")):
            inner = path.parts[0] in _INSIDE and not str(path).startswith(_OUTSIDE)
            if path.is_file() and not inner:
                found.content[str(path)] = path.read_bytes()
    signal.signal(signal.SIGTERM, terminated)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "mlflow.db":  # MLflow keeps it open, and the next run overwrites it
            path.unlink()
    return found


def differences(first: Outputs, second: Outputs) -> list[str]:
    """Name all in which two runs differ: releases, files, lines."""
    found = list(second.tape.faults)
    if len(second.tape.releases) != len(first.tape.releases):
        made = [len(run.tape.releases) for run in (second, first)]
        found.append(f"{made[0]} releases, {made[1]} in the first run")
    for name in sorted(first.content.keys() | second.content.keys()):
        one, other = first.content.get(name), second.content.get(name)
        if one is None or other is None:
            found.append(f"{name}: only in one run")
        elif one != other:
            found += [f"{name}: {what}" for what in _differing(one, other)]
    return found


def _differing(one: bytes, other: bytes) -> list[str]:
    try:
        lines, others = (Counter(content.decode().splitlines()) for content in (one, other))
    except UnicodeDecodeError:
        return [f"{len(other)} bytes, {len(one)} in the first run"]
    return sorted((lines - others) + (others - lines)) or ["other order or ends of lines"]


pytestmark = pytest.mark.timeout(600)  # on a busy machine
DATA = Path("data/trajectories/rows.parquet")
RUN = Callable[[Tape, bool], Outputs]


def rows(tape: Tape) -> int:
    """Count the transitions."""
    return pq.read_metadata(DATA).num_rows


def secret(tape: Tape) -> int:
    """Return the size of the last cohort, or the steps of the online user who differs."""
    return tape.secret


def write(path: str, log: Any, number: float) -> None:
    """Write a file."""
    Path(path).write_text(str(number), encoding="utf-8")


def grow(path: str, log: Any, number: int) -> None:
    """Make a file longer."""
    Path(path).write_bytes(Path(path).read_bytes() + b" " * number)


def log_metric(log: Any, number: int) -> None:
    """Log to MLflow."""
    log.metric("leak", number)


def to_stdout(log: Any, number: int) -> None:
    """Print."""
    print(number)


def to_stderr(log: Any, number: int) -> None:
    """Print where errors go."""
    print(number, file=sys.stderr)


LEAKS = {
    "ingest": Leak(rows, to_stderr, "ingest: {}"),
    "partition": Leak(rows, to_stdout, "partition: {}"),
    "train_model": Leak(secret, log_metric, "('train_model.leak',{}"),
    "clone_behaviour": Leak(rows, log_metric, "('clone_behaviour.leak',{}"),
    "optimize_policy": Leak(rows, log_metric, "('optimize_policy.leak',{}"),
    "evaluate_private": Leak(
        rows, partial(grow, "metrics/private_evaluation.json"), "metrics/private_evaluation.json: "
    ),
    "evaluate": Leak(rows, partial(write, "metrics/leak"), "metrics/leak: only in"),
    "report": Leak(rows, partial(grow, "reports/report.html"), "reports/report.html: "),
    "online": Leak(secret, to_stderr, "online: {}"),
    "primorl summary": Leak(rows, to_stdout, "primorl summary: {}"),
    "primorl release --check out": Leak(rows, partial(write, "out/leak"), "out/leak: only in"),
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


def test_what_collect_prints_of_events_differs_and_leaves_by_no_other_way(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path
) -> None:
    """Its counts, also of values, stay inside the trust boundary: docs/privacy.md says so."""
    stages, folder = ("collect", "ingest", "partition", "plan"), tmp_path_factory.mktemp("events")
    commands = ("plan", "check --charges", "runs", "ledger show")
    found = pair(folder, empty_store, events_of_people, stages, commands)
    told = {line.partition(" subjects ")[0] for line in differences(*found[:2])}
    assert told == {"collect: collect: 24 of 24"}
    assert [found.first.content[name][:13] for name in stages] == [b"exit status 0"] * 4


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
