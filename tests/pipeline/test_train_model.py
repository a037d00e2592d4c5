"""The one door to private data: what it writes, refuses, and never says."""

import dataclasses
import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline import train_model
from primorl.config import params as params_module
from primorl.config.params import Params
from primorl.dynamics.ensemble import Architecture, GaussianEnsemble
from primorl.dynamics.termination import RULES, Rule
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.ledger import charges
from primorl.privacy.ledger.ledger import Charge, Ledger
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.errors import PipelineError
from primorl.project.files import locked, write_json
from primorl.setup import reporting
from primorl.setup.accounts import project_ledger
from primorl.tracking import stage_run
from primorl.training.engine_version import ENGINE_VERSION
from primorl.training.training import PublicEvaluation
from primorl.trajectories.sources.replay.recording import Episode
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.parquet import PartReader
from tests.pipeline import tiny_policy
from tests.pipeline.tiny_policy import RememberingRun
from tests.trajectories.builders import INFO, episode, snapshot, table
from tests.units import training_setup

OUTPUT = Path("models/dynamics")
PRIVACY = {"target_epsilon": None, "noise_multiplier": 1.0, "sampling_probability": 0.5, "rounds": 4, "delta": 1e-3}
DYNAMICS = {"hidden": [8], "early_stopping": {"every": 2, "patience": None}}
MOPO = {"batch_size": 8, "learning_rate": 1e-3, "weight_decay": 0.0, "max_epochs": 2, "patience": 2}


def with_changes(small: Params, **blocks: dict[str, Any]) -> Params:
    raw = params_module.plain(small)
    raw["privacy"] |= PRIVACY
    raw["dynamics"] |= DYNAMICS | {"mopo": MOPO}
    for name, changes in blocks.items():
        raw[name] |= changes
    return params_module.from_plain(raw)


def write_partitions(private: list[Episode], public: list[Episode], units: list[str] | None = None) -> None:
    names, others = units or [f"a{i:03d}" for i in range(len(private))], [f"b{i:03d}" for i in range(len(public))]
    tiny_policy.write_partitions(table(private, units=names, names=names), table(public, units=others, names=others))


@pytest.fixture
def data(small: Params) -> Params:
    """Nine private units of uneven length and four public ones, and params to train on them in a moment."""
    write_partitions([episode(1 + 7 * i % 30, i) for i in range(9)], [episode(20, 100 + i) for i in range(4)])
    return with_changes(small)


def trained(params: Params) -> RememberingRun:
    run = RememberingRun()
    train_model.body(params, run)  # type: ignore[arg-type]
    return run


def watch_private(monkeypatch: pytest.MonkeyPatch, opened: Callable[[], object]) -> None:
    """Call ``opened`` before anything reads a file of the private partition."""
    begin = PartReader.__init__

    def spying(self: PartReader, folder: Path, made_by: str) -> None:
        if folder.name == "private":
            opened()
        begin(self, folder, made_by)

    monkeypatch.setattr(PartReader, "__init__", spying)


def charged(params: Params) -> list[Charge]:
    with closing(project_ledger(params)) as ledger:
        ledger.verify()
        return ledger.charges()


def statement() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((OUTPUT / "privacy.json").read_text(encoding="utf-8"))
    return content


def test_the_model_travels_with_its_statement(data: Params) -> None:
    """What is stated is what was reserved, and MLflow's tags repeat it."""
    run = trained(data)
    said = statement()
    assert said["private"] is True
    assert said["void"] == []
    assert said["units"] == 9
    assert (said["rounds"], said["noise_multiplier"], said["sampling_probability"]) == (4, 1.0, 0.5)
    assert said["epsilon"] > 0
    assert run.logged["epsilon"] == said["epsilon"] == pytest.approx(run.logged["epsilon_so_far"])
    assert run.steps["epsilon_so_far"] == [2, 4]
    assert said["spent_on_dataset"]["charges"] == 1
    assert said["spent_on_dataset"]["epsilon"] == pytest.approx(
        accounting.compose([event_from_json(said["event"])], data.privacy.budget.delta).epsilon_pld
    )
    assert run.logged["charge"] == said["charge"] == charged(data)[0].id
    ensemble = GaussianEnsemble.load(OUTPUT, torch.device("cpu"))
    assert ensemble.architecture.hidden == (8,)
    assert ensemble.bounds.observation_high.tolist() == [1.0, 1.0, 8.0]
    assert json.loads((OUTPUT / "config.json").read_text())["environment"] == "Pendulum-v1"


def test_two_runs_of_one_config_differ_in_noise(data: Params) -> None:
    """The seed fixes where training starts and nothing of the noise.

    Everybody joins, with all rows in one batch: cohorts and orders cannot differ, so noise alone can. Without
    noise (the twin) the two runs agree.
    """
    certain = {"sampling_probability": 1.0}
    gaps = {}
    for variant in ("private", "no_privacy"):
        runs = []
        for _ in range(2):
            shutil.rmtree(".primorl/checkpoints", ignore_errors=True)  # or the first would be restored
            trained(with_changes(data, privacy=certain, dynamics={"variant": variant, "batch_size": 64}))
            runs.append(GaussianEnsemble.load(OUTPUT, torch.device("cpu")).weights[0])
        gaps[variant] = float((runs[0] - runs[1]).abs().max())
    assert gaps["no_privacy"] < 1e-5
    assert gaps["private"] > 1e-2


@pytest.mark.parametrize(
    ("variant", "reasons"),
    [
        ("no_privacy", {"no noise is added"}),
        ("no_clip", {"no noise is added", "updates are not clipped"}),
        ("mopo", {"variant mopo: trained on raw private transitions, and its policy's rollouts start from them"}),
    ],
)
def test_variants_without_a_guarantee_say_so(data: Params, variant: str, reasons: set[str]) -> None:
    run = trained(with_changes(data, dynamics={"variant": variant}))
    said = statement()
    assert said["private"] is False
    assert said["epsilon"] is None
    assert set(said["void"]) == reasons
    assert run.logged["private"] == "False"


def test_a_target_is_kept(data: Params) -> None:
    trained(with_changes(data, privacy={"target_epsilon": 3.0, "noise_multiplier": None}))
    assert 2.9 < statement()["epsilon"] <= 3.0


@pytest.mark.parametrize(("delta", "warned"), [(0.2, True), (1e-3, False)])
def test_a_large_delta_is_warned_of_and_voids_the_statement(
    data: Params, delta: float, warned: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(with_changes(data, privacy={"delta": delta}))
    assert ("privacy.delta = 0.2 is not below 1/9" in capfd.readouterr().err) is warned
    assert bool(statement()["void"]) is warned


def test_bounds_and_normaliser_come_from_the_public_split(data: Params) -> None:
    """Private extremes, however large, move neither."""
    normalisers, bounds = [], []
    raw = params_module.plain(data)
    raw["chosen"]["bounds"] = {"observation": "public", "reward": "public"}
    changed = params_module.from_plain(raw)
    for scale in (1.0, 1e4):
        private = [episode(10, i) for i in range(5)]
        for one in private:
            one.observations = [o * scale for o in one.observations]
            one.rewards = [r * scale for r in one.rewards]
        shutil.rmtree("data/partitions")
        write_partitions(private, [episode(20, 100 + i) for i in range(4)])
        trained(changed)
        ensemble = GaussianEnsemble.load(OUTPUT, torch.device("cpu"))
        normalisers.append(
            torch.cat([t.flatten() for t in vars(ensemble.normaliser).values() if isinstance(t, torch.Tensor)])
        )
        bounds.append(ensemble.bounds)
    assert torch.equal(*normalisers)
    assert bounds[0].reward_low == bounds[1].reward_low > -16.3
    assert torch.equal(bounds[0].observation_high, bounds[1].observation_high)


MARKERS = [0.7654321, -6.1234567, 1.2349876]


def spellings(value: float) -> list[bytes]:
    """How a number might turn up in text or in bytes; fewer than five digits are left to chance."""
    single = np.float32(value)
    texts = {f"{value:.5f}", f"{value:.6f}", f"{value:.6g}", repr(float(single))}
    return [text.lstrip("-").encode() for text in texts] + [single.tobytes()]


@pytest.mark.parametrize("variant", ["private", "no_privacy"])
@pytest.mark.parametrize("planted", [False, True])
def test_nothing_private_is_logged(
    data: Params,
    empty_store: Path,
    capfd: pytest.CaptureFixture[str],
    variant: str,
    planted: bool,
) -> None:
    """Marker values and names of private units turn up nowhere: MLflow's database, artefacts, output, released files.

    The twin plants a leak (a private observation logged as a metric), which the same search must find.
    """
    private = [episode(20, i) for i in range(6)]
    for one in private:
        for row in one.observations:
            row[:] = MARKERS
        one.actions = [np.full(1, MARKERS[2], dtype=np.float32) for _ in one.actions]
        one.rewards = [MARKERS[1]] * len(one.rewards)
    shutil.rmtree("data/partitions")
    units = [f"mallory-{i}" for i in range(6)]
    write_partitions(private, [episode(20, 100 + i) for i in range(4)], units)
    Path("mlflow.db").write_bytes(empty_store.read_bytes())
    chosen = with_changes(data, dynamics={"variant": variant})
    with stage_run("train_model", chosen) as run:
        if planted:
            run.metric("oops", float(private[0].observations[0][0]))
        train_model.body(chosen, run)
    with sqlite3.connect("mlflow.db") as store:
        tables = [name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        dump = repr([store.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables]).encode()
    captured = capfd.readouterr()
    seen = b"\n".join([dump, captured.out.encode(), captured.err.encode()])
    released = [*snapshot(Path("mlruns")).values(), *snapshot(Path("models")).values()]
    needles = [b"mallory", *(spelling for value in MARKERS for spelling in spellings(value))]
    found = [needle for needle in needles if any(needle in hay for hay in (seen, *released))]
    assert bool(found) is planted, found


def broken_manifest() -> None:
    Path("data/partitions/manifest.json").write_text("{}", encoding="utf-8")


def no_manifest() -> None:
    Path("data/partitions/manifest.json").unlink()


def wrong_count() -> None:
    write_json(Path("data/partitions/manifest.json"), Manifest(INFO, 8, 4).to_json())


def truncated_partition() -> None:
    file = next(Path("data/partitions/private").iterdir())
    file.write_bytes(file.read_bytes()[:-40])


def no_units() -> None:
    Path("data/partitions/units.bin").unlink()


def units_of_another_partition() -> None:
    file = Path("data/partitions/units.bin")
    file.write_bytes(file.read_bytes()[:-16])


def no_partition() -> None:
    for file in Path("data/partitions/private").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (broken_manifest, "data/partitions/manifest.json: not a manifest"),
        (no_manifest, "data/partitions/manifest.json: not there"),
        (wrong_count, "data/partitions/units.bin: missing, or not of 8 units as manifest.json says"),
        (truncated_partition, "data/partitions/private"),
        (no_partition, "data/partitions/private"),
        (no_units, "data/partitions/units.bin: missing, or not of 9 units"),
        (units_of_another_partition, "data/partitions/units.bin: missing, or not of 9 units"),
    ],
)
def test_bad_input_is_one_clear_error_and_the_last_model_stays(data: Params, damage: Any, says: str) -> None:
    trained(data)
    before = snapshot(Path("models"))
    damage()
    with pytest.raises(PipelineError, match=says) as refused:
        trained(with_changes(data) if damage is no_manifest else replace(data, seed=1))
    assert "\n" not in str(refused.value)
    assert snapshot(Path("models")) == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target_epsilon": 1e-6, "noise_multiplier": None, "delta": 1e-9}, "target_epsilon = 1e-06: no noise"),
    ],
)
def test_an_impossible_budget_is_refused_before_private_data_is_read(
    data: Params, changes: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_private(monkeypatch, lambda: pytest.fail("private data was opened"))
    with pytest.raises(PipelineError, match=says):
        trained(with_changes(data, privacy=changes))


def test_bounds_of_another_size_are_refused(data: Params) -> None:
    raw = params_module.plain(data)
    raw["chosen"]["bounds"]["observation"] = {"low": [-1.0], "high": [1.0]}
    with pytest.raises(PipelineError, match=r"bounds.observation: found 1 dimensions, the data has 3"):
        trained(params_module.from_plain(raw))


def declare(monkeypatch: pytest.MonkeyPatch, termination: str) -> None:
    """Let the data be of an entry with this choice."""
    monkeypatch.setattr(tiny_policy, "INFO", dataclasses.replace(INFO, termination=termination))


def some_episodes(*, terminated: bool) -> None:
    write_partitions(
        [episode(5, i, terminated=terminated) for i in range(3)], [episode(20, 9 + i, terminated) for i in range(2)]
    )


@pytest.mark.parametrize(
    ("termination", "says"),
    [
        (
            "none",
            r"replay.yaml: termination: found none, but episodes of .* terminate; allowed is learned",
        ),
        ("sideways", r"termination: found 'sideways'; allowed for observations of size 3 are none, learned, upright$"),
        ("hopper", r"termination: found 'hopper', a rule for observations of size 11; allowed for those of size 3"),
    ],
)
def test_terminations_that_nobody_declared_are_refused_before_anything_is_charged(
    small: Params, monkeypatch: pytest.MonkeyPatch, termination: str, says: str
) -> None:
    monkeypatch.setitem(RULES, "upright", Rule(3, lambda observation, action, following: following[:, 0] < 0))
    declare(monkeypatch, termination)
    some_episodes(terminated=True)
    with pytest.raises(PipelineError, match=says):
        trained(with_changes(small))
    assert not OUTPUT.exists()
    assert charged(small) == []


def test_without_an_environment_somebody_must_say_how_long_an_episode_is_before_anything_is_charged(
    small: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_policy, "INFO", dataclasses.replace(INFO, environment=None, horizon=None))
    some_episodes(terminated=True)
    with pytest.raises(PipelineError, match=r"horizon: found null, .* known beforehand, not counted in the data$"):
        trained(with_changes(small))
    assert charged(small) == []


@pytest.mark.parametrize("variant", ["private", "mopo"])
def test_a_learned_termination_is_part_of_the_model_and_of_what_is_stated(
    small: Params, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """Its weights are among those that are clipped, noised and counted; its error is looked at like the others."""
    declare(monkeypatch, "learned")
    some_episodes(terminated=True)
    run = trained(with_changes(small, dynamics={"variant": variant}))
    ensemble = GaussianEnsemble.load(OUTPUT, torch.device("cpu"))
    assert (ensemble.termination, ensemble.architecture.learned_termination) == ("learned", True)
    assert ensemble.weights[-1].shape == (3, 1, 9)
    assert bool((ensemble.weights[-1][..., -1] != ensemble.architecture.initial_weights(0)[-1][..., -1]).any())
    assert statement()["termination"] == "learned"
    assert json.loads((OUTPUT / "config.json").read_text())["termination"] == "learned"
    assert "public_error.termination" in run.steps


def test_a_declared_rule_is_stated_among_what_was_taken_as_public(
    small: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "upright", Rule(3, lambda observation, action, following: following[:, 0] < 0))
    declare(monkeypatch, "upright")
    some_episodes(terminated=True)
    run = trained(with_changes(small))
    assert statement()["termination"] == "upright"
    assert "when an episode ends: the declared rule upright" in statement()["public_assumptions"]
    assert GaussianEnsemble.load(OUTPUT, torch.device("cpu")).weights[-1].shape == (3, 1, 8)
    assert "public_error.termination" not in run.steps


def test_episodes_that_never_terminate_need_no_choice(small: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, "none")
    some_episodes(terminated=False)
    trained(with_changes(small))
    assert statement()["termination"] == "none"
    assert "that no episode terminates" in statement()["public_assumptions"]
    assert not any("when an episode ends" in said for said in statement()["public_assumptions"])


SPACES_OF_IT = "observation and action sizes, the environment and its declared spaces"
COLUMNS_OF_IT = "observation and action sizes, the declared columns, categories and bounds"
LIMIT_OF_IT = "episodes of at most 200 steps, as declared or by the environment"


@pytest.mark.parametrize(
    ("environment", "horizon", "says", "says_not"),
    [
        ("Pendulum-v1", 200, [SPACES_OF_IT, LIMIT_OF_IT], [COLUMNS_OF_IT]),
        (None, 48, [COLUMNS_OF_IT, "episodes of at most 48 steps, as declared"], [SPACES_OF_IT]),
        ("Pendulum-v1", None, [SPACES_OF_IT], [COLUMNS_OF_IT, "episodes of"]),
    ],
)
def test_what_was_taken_as_public_names_the_horizon_and_what_declared_the_spaces(
    small: Params,
    monkeypatch: pytest.MonkeyPatch,
    environment: str | None,
    horizon: int | None,
    says: list[str],
    says_not: list[str],
) -> None:
    """The horizon is a number of the result too (``model_value_horizon``), which only the assumption covers."""
    monkeypatch.setattr(tiny_policy, "INFO", dataclasses.replace(INFO, environment=environment, horizon=horizon))
    some_episodes(terminated=False)
    trained(with_changes(small))
    assumed = statement()["public_assumptions"]
    assert [one for one in says if one in assumed] == says
    assert not any(one.startswith(tuple(says_not)) for one in assumed)


def with_seed(params: Params, seed: int) -> Params:
    return replace(params, seed=seed)


def limited(params: Params, runs: float) -> Params:
    """``params`` under a budget that allows ``runs`` of them."""
    event = accounting.training_event(0.5, 1.0, 4)
    fits, beyond = (accounting.compose([event] * n, 1e-3).epsilon_pld for n in (runs, runs + 1))
    return with_changes(params, privacy={"budget": {"epsilon": (fits + beyond) / 2, "delta": 1e-3}})


def test_the_charge_is_made_before_a_private_byte_is_read(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[list[str]] = []
    watch_private(monkeypatch, lambda: states.append([charge.state for charge in charged(data)]))
    trained(data)
    assert states
    assert all(state == ["reserved"] for state in states)
    (charge,) = charged(data)
    assert (charge.state, charge.stage, charge.dataset, charge.units) == ("committed", "train_model", INFO.dataset, 9)
    assert charge.epsilon == pytest.approx(statement()["epsilon"], rel=1e-3)


def test_a_sweep_is_refused_where_the_budget_ends_and_needs_no_private_data_for_it(data: Params) -> None:
    """Two of three runs fit. The third is refused though the private partition is not even there; nothing changes."""
    tight = limited(data, 2)
    for seed in (0, 1):
        trained(with_seed(tight, seed))
    before = snapshot(Path("models"))
    shutil.rmtree("data/partitions/private")
    with pytest.raises(PipelineError, match="budget") as refused:
        trained(with_seed(tight, 2))
    assert "\n" not in str(refused.value)
    assert snapshot(Path("models")) == before
    assert len(charged(data)) == 2
    trained(with_seed(tight, 1))  # what was paid for is still there to be had
    assert len(charged(data)) == 2


@pytest.mark.parametrize("variant", ["no_privacy", "no_clip", "mopo"])
def test_a_variant_without_a_guarantee_is_counted_and_fits_no_budget(data: Params, variant: str) -> None:
    """It spends everything: what is trained after it says so."""
    free = with_changes(data, dynamics={"variant": variant})
    with pytest.raises(PipelineError, match="budget"):
        trained(limited(free, 100))
    trained(free)
    assert statement()["spent_on_dataset"] == {"epsilon": None, "epsilon_rdp": None, "delta": 1e-5, "charges": 1}
    trained(data)
    assert statement()["private"] is True
    assert statement()["spent_on_dataset"]["epsilon"] is None
    assert not list(Path(".primorl/checkpoints").glob(f"{charged(data)[0].id}*")), "its weights are private"


def test_what_was_paid_for_is_not_paid_twice(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same choices on the same data restore the same bytes without private data; another seed trains."""
    trained(data)
    first = snapshot(Path("models"))
    shutil.rmtree("models")
    watch_private(monkeypatch, lambda: pytest.fail("private data was opened"))
    trained(data)
    assert snapshot(Path("models")) == first
    trained(with_changes(data, privacy={"delta": 1e-4}))  # the same release, read at another δ
    assert statement()["delta"] == 1e-4
    assert len(charged(data)) == 1
    with pytest.raises(pytest.fail.Exception, match="private data was opened"):
        trained(with_seed(data, 1))
    assert [charge.state for charge in charged(data)] == ["committed", "reserved"]


class KilledError(BaseException):
    """Stands for a kill: no handler of the stage may see it."""


def dying(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let the process die in its release number ``at``."""
    release, count = Plan.release, 0

    def once(self: Plan, total: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise KilledError
        return release(self, total)

    monkeypatch.setattr(Plan, "release", once)


def test_a_killed_run_is_taken_up_and_costs_nothing_more(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """One charge, one ε; the round that died is lost from the reservation and is not made up for."""
    dying(monkeypatch, 3)
    with pytest.raises(KilledError):
        trained(data)
    assert [charge.state for charge in charged(data)] == ["reserved"]
    assert not OUTPUT.exists()
    run = trained(data)
    (charge,) = charged(data)
    assert charge.state == "committed"
    assert statement()["epsilon"] == pytest.approx(charge.epsilon, rel=1e-3)
    assert statement()["rounds"] == 4
    assert json.loads((OUTPUT / "config.json").read_text())["rounds"] == 3
    assert run.logged["epsilon_so_far"] == pytest.approx(statement()["epsilon"])


def test_a_kill_between_output_and_commit_is_mended_for_free(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Any, charge: str) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", killed)
        with pytest.raises(KilledError):
            trained(data)
    first = snapshot(Path("models"))
    trained(data)
    assert snapshot(Path("models")) == first
    assert [charge.state for charge in charged(data)] == ["committed"]


def test_a_damaged_checkpoint_is_named_and_nothing_is_charged(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting it, as the error says, trains anew, and both reservations stay spent."""
    with monkeypatch.context() as patched:
        dying(patched, 2)
        with pytest.raises(KilledError):
            trained(data)
    (file,) = Path(".primorl/checkpoints").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PipelineError, match=rf"{file.name}: not a checkpoint of this run, or damaged; delete it"):
        trained(data)
    assert len(charged(data)) == 1
    file.unlink()
    trained(data)
    assert [charge.state for charge in charged(data)] == ["reserved", "committed"]
    assert statement()["spent_on_dataset"]["charges"] == 2


def test_a_run_that_another_process_works_on_is_left_to_it(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        dying(patched, 2)
        with pytest.raises(KilledError):
            trained(data)
    (file,) = Path(".primorl/checkpoints").glob("*.safetensors")
    with locked(file.with_suffix(".lock")):
        trained(data)
    assert [charge.state for charge in charged(data)] == ["reserved", "committed"]


def test_training_that_diverges_is_aborted_and_stays_spent(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows does not restore it, and pays again."""

    def infinite(self: Plan, total: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.full_like(part, math.inf).float() for part in total)

    with monkeypatch.context() as patched:
        patched.setattr(Plan, "release", infinite)
        with pytest.raises(PipelineError, match="diverged"):
            trained(data)
    assert [charge.state for charge in charged(data)] == ["aborted"]
    trained(data)
    assert statement()["spent_on_dataset"]["charges"] == 2


def test_an_edit_of_the_engine_charges_nobody_and_says_what_made_the_model(
    data: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A paid model is restored whatever the code; a new draw is paid for where it is asked for, once a number."""
    trained(data)
    first = snapshot(Path("models"))
    monkeypatch.setattr("primorl.setup.paid_training.ENGINE_VERSION", ENGINE_VERSION + 1)
    trained(data)
    assert len(charged(data)) == 1
    assert snapshot(Path("models")) == first
    assert f"made by engine version {ENGINE_VERSION}; this one is {ENGINE_VERSION + 1}" in capsys.readouterr().err
    again = with_changes(data, privacy={"draw": 1})
    for _ in range(2):
        trained(again)
        assert len(charged(data)) == 2
    assert snapshot(Path("models")) != first
    trained(data)
    files = ("model.safetensors", "config.json")  # the statement counts the second charge
    assert [snapshot(Path("models"))[f"dynamics/{name}"] for name in files] == [
        first[f"dynamics/{name}"] for name in files
    ]


@pytest.mark.verdict
def test_a_model_that_training_made_worse_is_an_error_that_keeps_what_was_paid_for(data: Params) -> None:
    """Noise that no one can bear: the last model stays, and the same settings cost nothing again."""
    loud = with_changes(data, privacy={"target_epsilon": None, "noise_multiplier": 500.0})
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"no better than a constant: its public loss is .* lower dynamics"):
            trained(loud)
        assert [charge.state for charge in charged(loud)] == ["committed"]
    assert not Path("models/dynamics").exists()


@pytest.mark.verdict
def test_a_model_that_learned_something_is_kept(data: Params) -> None:
    """The twin: without noise, and with time to learn, the same data make a model that is better than a constant."""
    learning = {"learning_rate": 0.05, "hidden": [32]}
    privacy = {"rounds": 150, "clipping_norm": 5.0}
    trained(with_changes(data, privacy=privacy, dynamics={**learning, "variant": "no_privacy"}))
    assert Path("models/dynamics/config.json").exists()


def kill_in_round(data: Params, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    with monkeypatch.context() as patched:
        dying(patched, at)
        with pytest.raises(KilledError):
            trained(data)


def test_a_copy_of_a_checkpoint_is_gone_on_with_once(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on two machines with one ledger, or from a backup: the second copy is left alone, and pays for itself."""
    kill_in_round(data, monkeypatch, 2)
    (file,) = Path(".primorl/checkpoints").glob("*.safetensors")
    copy = file.read_bytes()
    kill_in_round(data, monkeypatch, 2)  # taken up once, and dead again
    file.write_bytes(copy)
    trained(data)
    assert [charge.state for charge in charged(data)] == ["reserved", "committed"]
    file.write_bytes(copy)
    trained(data)
    assert len(charged(data)) == 2, "the second charge is finished and restored"


def test_an_old_checkpoint_of_a_finished_charge_is_not_run_again(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_in_round(data, monkeypatch, 2)
    (file,) = Path(".primorl/checkpoints").glob("*.safetensors")
    copy = file.read_bytes()
    trained(data)
    file.write_bytes(copy)
    trained(data)
    assert [charge.state for charge in charged(data)] == ["committed", "committed"]


def test_a_full_disk_costs_nothing(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint comes before the reservation: where it cannot be written, nothing is reserved."""

    def full(path: Path, state: Any, *, charge: str, resumed: int) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(charges, "write_checkpoint", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                trained(data)
    assert charged(data) == []


def test_a_refusal_leaves_no_checkpoint(data: Params) -> None:
    with pytest.raises(PipelineError, match="budget"):
        trained(with_changes(data, privacy={"budget": {"epsilon": 0.01, "delta": 1e-3}}))
    assert list(Path(".primorl/checkpoints").iterdir()) == []


def test_a_budgets_delta_must_mean_something(data: Params) -> None:
    """At a δ of one over the units or more, everything would seem to cost nothing."""
    with pytest.raises(PipelineError, match=r"privacy.budget.delta: found 0.5, allowed is below 1/9"):
        trained(with_changes(data, privacy={"budget": {"epsilon": 1.0, "delta": 0.5}}))
    assert charged(data) == []


def test_units_that_were_charged_as_private_are_not_published(data: Params) -> None:
    """Another salt would draw them public, raw in the normaliser: what was promised to them would be undone."""
    trained(data)
    shutil.rmtree("data/partitions")
    private, public = [episode(20, i) for i in range(9)], [episode(20, 100 + i) for i in range(4)]
    private[0], public[0] = public[0], episode(1, 0)  # the first private unit of `data`, by its rows, is public now
    write_partitions(private, public)
    with pytest.raises(PipelineError, match="holds units that earlier runs were charged for as private"):
        trained(with_seed(data, 1))
    assert len(charged(data)) == 1


def test_rows_of_another_partition_than_the_one_charged_are_refused(data: Params) -> None:
    """As after a kill between the exchanges of `partition`, or a partial checkout: the account would be others'."""
    shutil.rmtree("data/partitions/private")
    names = [f"a{i:03d}" for i in range(9)]
    tiny_policy.write_partition(
        Path("data/partitions/private"), table([episode(9, 50 + i) for i in range(9)], units=names, names=names)
    )
    with pytest.raises(PipelineError, match="its parts are of different partitions; run `dvc repro partition`"):
        trained(data)


def test_accounting_takes_a_small_share_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """ε so far is computed where it is due: at the first evaluation, after 200 times what it took, and at the end."""
    clock, asked = 0.0, []

    def spent(plan: Plan, rounds: int) -> accounting.Spent:
        nonlocal clock
        clock += 0.25
        asked.append(rounds)
        return accounting.Spent(1.0, 1.0, 1e-5)

    monkeypatch.setattr(reporting.time, "monotonic", lambda: clock)
    monkeypatch.setattr(Plan, "spent", spent)
    run, plan = (
        RememberingRun(),
        Plan(9, "trajectory", PoissonSampler(0.5), EnsembleClip(0.5, "flat", 2, 2), 1.0, 100, 1e-3),
    )
    setup = training_setup(plan, Architecture(2, 1, 2, (4,), -10.0, 0.5))
    with reporting.TrainingReport(run, setup) as report:  # type: ignore[arg-type]
        for done in range(1, 101):
            clock += 1.0
            report(done, PublicEvaluation(done, 0.5, (0.1, 0.1, 0.1)) if done % 2 == 0 else None)
    assert asked == run.steps["epsilon_so_far"] == [2, 52, 100]
    assert len(run.steps["public_loss"]) == 50
