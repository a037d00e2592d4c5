"""No unit is public: what standardises, where rollouts begin, what is asked of private units and what that costs."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from primorl.config import params as params_module
from primorl.config.params import Params
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.dynamics.starts import StartModel
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.queries import GaussianQuery
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.project.errors import PipelineError
from primorl.setup.policy_fitting import PublicLog
from primorl.training import rounds
from primorl.training.settings import Execution
from primorl.trajectories.storage.store import UnitStore
from tests.pipeline import tiny_policy
from tests.pipeline.training_project import OUTPUT, charged, statement, trained
from tests.privacy.ledger.ledgers import adaptive
from tests.trajectories.builders import INFO, episode, snapshot, table
from tests.units import local_training, training_setup

UNITS = 80
CPU = torch.device("cpu")
PRIVATE = {"normaliser": "private", "starts": True, "noise_multiplier": 0.5}
QUIET = PRIVATE | {"starts": False, "normaliser": "bounds"}


def with_statistics(small: Params, statistics: dict[str, Any], **blocks: dict[str, Any]) -> Params:
    raw = params_module.plain(small)
    raw["privacy"] |= {
        "target_epsilon": None,
        "noise_multiplier": 1.0,
        "sampling_probability": 1.0,  # quick to account
        "rounds": 4,
        "delta": 1e-3,
        "statistics": statistics,
    }
    raw["dynamics"] |= {"hidden": [8], "early_stopping": {"every": 2, "patience": None}}
    raw["dynamics"]["mopo"] |= {"batch_size": 64, "max_epochs": 2}
    for name, changes in blocks.items():
        raw[name] |= changes
    return params_module.from_plain(raw)


def write_partitions(shift: float = 0.0) -> None:
    private = [episode(5 + i % 4, i) for i in range(UNITS)]
    for one in private:
        one.observations = [o * (1 - shift) for o in one.observations]
    content = table(private)
    shutil.rmtree("data/partitions", ignore_errors=True)
    tiny_policy.write_partitions(content, content.slice(0, 0))


@pytest.fixture
def data(small: Params) -> Params:
    write_partitions()
    return small


def test_every_query_is_stated_and_charged_with_the_rounds(data: Params) -> None:
    run = trained(with_statistics(data, PRIVATE))
    said = statement()
    assert [query["what"] for query in said["queries"]] == ["normaliser", "starts"]
    assert said["queries"][0]["sensitivity"] == math.sqrt(7)
    assert said["queries"][1]["sensitivity"] == math.sqrt(9)
    event = event_from_json(said["event"])
    assert event == accounting.Training(1.0, 1.0, 4, (0.5, 0.5)).event
    assert said["epsilon"] == accounting.Training(1.0, 1.0, 4, (0.5, 0.5)).spent(1e-3).epsilon_pld
    alone = accounting.Training(1.0, 1.0, 4).spent(1e-3).epsilon_pld
    mu = math.sqrt(2) / 0.5
    queries_alone = accounting.spent(GaussianQuery("", 1.0, 1 / mu).event, 1e-3).epsilon_pld
    assert max(alone, queries_alone) * 1.05 < said["epsilon"] < alone + queries_alone
    (charge,) = charged(data)
    assert charge.event == said["event"]
    assert charge.epsilon == pytest.approx(said["epsilon"], rel=1e-3)
    assert said["spent_on_dataset"]["epsilon"] > alone
    assert run.logged["epsilon_so_far"] == pytest.approx(said["epsilon"])
    assert "public_loss" not in run.logged
    assert "no unit: there is no public split" in said["public_assumptions"]


def test_the_target_is_kept_with_the_queries(data: Params) -> None:
    asked = PRIVATE | {"noise_multiplier": 0.6}
    goal = {"target_epsilon": 20.0, "noise_multiplier": None}
    trained(with_statistics(data, asked, privacy=goal | {"statistics": asked}))
    said = statement()
    assert 19.9 < said["epsilon"] <= 20.0
    assert said["noise_multiplier"] > solve_noise_multiplier(20.0, 1e-3, 1.0, 4)
    low = {"target_epsilon": 1.0, "noise_multiplier": None, "statistics": asked}
    with pytest.raises(PipelineError, match=r"the queries before the rounds alone cost epsilon .* raise stat"):
        trained(with_statistics(data, asked, privacy=low))
    assert len(charged(data)) == 1


def test_first_states_travel_with_the_model_and_begin_rollouts(data: Params) -> None:
    trained(with_statistics(data, PRIVATE))
    ensemble, starts = GaussianEnsemble.load(OUTPUT, CPU), StartModel.load(OUTPUT, CPU)
    assert torch.equal(starts.high, ensemble.bounds.observation_high)
    raw = params_module.plain(with_statistics(data, PRIVATE))
    raw["policy"] |= {"starts": "released"}
    states = PublicLog(None).start_states(params_module.from_plain(raw))
    assert states.shape[1:] == (3,)
    assert bool((states >= starts.low).all() & (states <= starts.high).all())
    trained(with_statistics(data, QUIET))
    assert sorted(path.name for path in OUTPUT.iterdir()) == ["config.json", "model.safetensors", "privacy.json"]
    with pytest.raises(PipelineError, match=r"set privacy.statistics.starts: true"):
        PublicLog(None).start_states(params_module.from_plain(raw))
    raw["policy"] |= {"starts": "public"}
    with pytest.raises(PipelineError, match=r"policy.starts: found public, and no unit is public"):
        PublicLog(None).start_states(params_module.from_plain(raw))


def test_declared_bounds_cost_nothing_and_see_nothing(data: Params) -> None:
    for statistics, same in ((QUIET, True), (PRIVATE, False)):
        scales = []
        for shift in (0.0, 0.9):
            write_partitions(shift)
            trained(with_statistics(data, statistics))
            scales.append(GaussianEnsemble.load(OUTPUT, CPU).normaliser.input_scale)
        assert torch.equal(*scales) is same
        assert bool(statement()["queries"]) is not same


@pytest.mark.parametrize(
    ("statistics", "blocks", "says"),
    [
        (QUIET | {"normaliser": "public"}, {}, r"statistics.normaliser: found public, which needs .* allowed: bounds"),
        (QUIET, {"dynamics": {"early_stopping": {"every": 2, "patience": 3}}}, r"patience: found 3, .* allowed: null"),
        (QUIET, {"bounds": {"observation": "public"}}, r"bounds.observation: found public, .* allowed: space"),
        (QUIET, {"bounds": {"reward": "public"}}, r"bounds.reward: found public, .* allowed: \[low, high\]"),
        (
            PRIVATE | {"noise_multiplier": 30.0},
            {},
            r"noise_multiplier: found 30, which leaves nothing of .* allowed is up to 0.605",
        ),
    ],
)
def test_what_needs_public_units_is_one_clear_error_before_anything_is_charged(
    data: Params, statistics: dict[str, Any], blocks: dict[str, Any], says: str
) -> None:
    raw = params_module.plain(with_statistics(data, statistics))
    raw["dynamics"] |= blocks.get("dynamics", {})
    raw["chosen"]["bounds"] |= blocks.get("bounds", {})
    with pytest.raises(PipelineError, match=says) as refused:
        trained(params_module.from_plain(raw))
    assert str(refused.value).startswith(("params.yaml: ", "datasets/pendulum-replay.yaml: "))
    assert "\n" not in str(refused.value)
    assert not OUTPUT.exists()
    assert charged(data) == []


@pytest.mark.parametrize(
    ("environment", "variant", "starts", "says"),
    [
        (None, "private", False, "params.yaml: privacy.statistics.starts: found false"),
        (None, "mopo", True, "params.yaml: dynamics.variant: found mopo"),
        ("Pendulum-v1", "private", False, None),
    ],
)
def test_policies_need_somewhere_to_start_before_anything_is_charged(
    small: Params,
    monkeypatch: pytest.MonkeyPatch,
    environment: str | None,
    variant: str,
    starts: bool,
    says: str | None,
) -> None:
    monkeypatch.setattr(tiny_policy, "INFO", dataclasses.replace(INFO, environment=environment, horizon=9))
    write_partitions()
    params = with_statistics(small, PRIVATE | {"starts": starts}, dynamics={"variant": variant})
    if says is None:
        trained(params)
        assert len(charged(small)) == 1
        return
    with pytest.raises(PipelineError, match=says) as refused:
        trained(params)
    assert "nowhere to start" in str(refused.value)
    assert "datasets/pendulum-replay.yaml says environment: null" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not OUTPUT.exists()
    assert charged(small) == []


class KilledError(BaseException):
    """Stands for a kill: no handler of the stage may see it."""


def die(monkeypatch: pytest.MonkeyPatch, what: str, at: int, params: Params) -> None:
    method, count = getattr(Plan, what), 0

    def once(self: Plan, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise KilledError
        return method(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Plan, what, once)
        with pytest.raises(KilledError):
            trained(params)


def test_answers_are_kept_and_not_asked_for_again(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    params = with_statistics(data, PRIVATE)
    die(monkeypatch, "release", 3, params)
    monkeypatch.setattr(Plan, "answer", lambda *arguments: pytest.fail("asked twice under one charge"))
    trained(params)
    assert [charge.state for charge in charged(data)] == ["committed"]
    assert json.loads((OUTPUT / "config.json").read_text())["rounds"] == 3


def test_a_run_that_dies_while_it_asks_is_spent(
    data: Params, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    params = with_statistics(data, PRIVATE)
    die(monkeypatch, "answer", 2, params)
    assert [charge.state for charge in charged(data)] == ["reserved"]
    trained(params)
    assert [charge.state for charge in charged(data)] == ["aborted", "committed"]
    assert "pays for one answer only; it stays spent" in capfd.readouterr().err
    once = event_from_json(statement()["event"])
    both = adaptive(once, once, delta=data.privacy.budget.delta)
    assert statement()["spent_on_dataset"] == statement()["spent_on_dataset"] | {"charges": 2}
    assert statement()["spent_on_dataset"]["epsilon"] == pytest.approx(both, rel=1e-9)


def test_what_was_paid_for_is_restored_with_its_answers(data: Params) -> None:
    params = with_statistics(data, PRIVATE)
    trained(params)
    first = snapshot(Path("models"))
    kept = Path("data/partitions/private")
    kept.rename("aside")
    trained(params)
    assert snapshot(Path("models")) == first
    Path("aside").rename(kept)
    raw = params_module.plain(params)
    raw["chosen"]["bounds"]["reward"] = [-17.0, 0.0]
    trained(params_module.from_plain(raw))
    assert len(charged(data)) == 2
    trained(with_statistics(data, PRIVATE | {"starts": False}))
    assert len(charged(data)) == 3, "without a query it is another mechanism"


def test_the_charge_comes_before_the_question(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[list[str]] = []
    answer = Plan.answer

    def spying(self: Plan, query: GaussianQuery, total: torch.Tensor) -> torch.Tensor:
        states.append([charge.state for charge in charged(data)])
        return answer(self, query, total)

    monkeypatch.setattr(Plan, "answer", spying)
    params = with_statistics(data, PRIVATE)
    trained(params)
    assert states == [["reserved"], ["reserved"]]
    tight = {"budget": {"epsilon": statement()["epsilon"] * 1.01, "delta": 1e-3}}
    with pytest.raises(PipelineError, match="budget"):
        trained(dataclasses.replace(with_statistics(data, PRIVATE, privacy=tight), seed=1))
    assert len(states) == 2


def test_a_person_with_many_trajectories_is_one_unit(small: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{i:02d}" for i in range(12)]
    people = [f"p{i // 4}" for i in range(12)]
    content = table([episode(6, i) for i in range(12)], units=people, names=names)
    monkeypatch.setattr(tiny_policy, "INFO", dataclasses.replace(INFO, unit="person"))
    tiny_policy.write_partitions(content, content.slice(0, 0))
    trained(with_statistics(small, QUIET, privacy={"delta": 0.01}))
    assert statement()["units"] == 3
    (charge,) = charged(small)
    assert charge.units == 3


@pytest.mark.parametrize("by_person", [True, False])
def test_removing_a_person_moves_a_round_by_at_most_the_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_person: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = Architecture(3, 1, 2, (8,), -10.0, 0.5)
    maps = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4))
    local = local_training(learning_rate=1.0, batch_size=64)  # one batch: order cannot matter
    sums = []
    for people in (3, 2):
        names = [f"t{i:02d}" for i in range(4 * people)]
        units = [f"p{i // 4}" for i in range(4 * people)] if by_person else names
        folder = Path(f"{people}")
        tiny_policy.write_partition(folder, table([episode(6, i) for i in range(4 * people)], units=units, names=names))
        store = UnitStore.open(folder)
        assert store.units == (people if by_person else 4 * people)
        plan = Plan(
            store.units,
            "person",
            PoissonSampler(1.0),
            EnsembleClip(0.5, "flat", shape.members, len(shape.layers)),
            1.0,
            1,
            1e-3,
        )
        execution = Execution(CPU, 1 << 20)
        training = rounds.Rounds(training_setup(plan, shape, local=local, execution=execution), store, maps)
        total = training.sum(shape.initial_weights(0))
        sums.append(torch.cat([part.flatten() for part in total]))
    moved = float((sums[0] - sums[1]).norm())
    assert (moved <= 0.5 * (1 + 1e-6)) is by_person
    assert moved > 0.45, "the clip binds, or nothing was tested"
