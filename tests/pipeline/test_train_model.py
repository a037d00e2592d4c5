"""The stages that read private data, of the model and of the clone: charged before that, never
twice; what they write, refuse, and never say; and where no unit is public, what standardises, where
rollouts begin, what is asked of private units and what that costs.
"""

import math
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pipeline import clone_behaviour, ingest, partition, plan
from primorl.base import PipelineError
from primorl.base.files import MODEL, PARTITIONS, PLAN, read_json
from primorl.base.reporting import StageLog
from primorl.config.params import Params
from primorl.data.storage.rows import data_changed
from primorl.engine import public
from primorl.engine.queries import PredictionQuery
from primorl.engine.training import ENGINE_VERSION
from primorl.model.architecture import ModelConfig
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.starts import StartModel
from primorl.model.termination import RULES, Rule
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import BehaviourConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.epsilon import event_from_json
from primorl.privacy.ledger.history import Charge
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.stages import training
from primorl.stages.policy import PublicLog
from primorl.work.bill import Bill
from primorl.work.data import Partitions
from primorl.work.desk import Paid
from primorl.work.jobs import RunPlan
from primorl.work.resolve import preview
from primorl.work.rules import epsilon_of
from tests.data.builders import INFO, SPACES, episode, episodes, snapshot, table, write_raw
from tests.mechanisms import watch
from tests.pipeline import training_project
from tests.pipeline.training_project import (
    OUTPUT,
    charged,
    edited,
    killed,
    noise_of_model,
    quick_clone,
    statement,
    states,
    steps_of,
    trained,
    unopened,
    watch_private,
    with_changes,
    write_partition,
    write_partitions,
)
from tests.privacy.ledger.ledgers import adaptive


def model() -> GaussianEnsemble:
    return GaussianEnsemble.load(MODEL, torch.device("cpu"))


def test_it_is_charged_first_and_states_what_it_cost(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    watch_private(monkeypatch, lambda: seen.append(states(data)))
    run = trained(with_changes(data, privacy={"sampling_probability": 0.5}))
    assert {tuple(each) for each in seen} == {("reserved",)}
    (charge,) = charged(data)
    assert (charge.state, charge.stage) == ("committed", "train_model")
    assert (charge.dataset, charge.units) == (INFO.dataset, 9)
    said = statement()
    assert (said["private"], said["void"], said["units"]) == (True, [], 9)
    assert (said["rounds"], said["noise_multiplier"], said["sampling_probability"]) == (4, 1.0, 0.5)
    assert 0 < said["epsilon"] == pytest.approx(charge.epsilon, rel=1e-3)
    assert steps_of(run)["public_loss"] == [2, 4]
    assert said["charge"] == charge.id
    alone = accounting.compose([event_from_json(said["event"])], data.privacy.delta)
    assert said["spent_on_dataset"]["epsilon"] == pytest.approx(alone.epsilon_pld)


def test_what_was_paid_for_is_not_paid_twice(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(data)
    (charge,) = charged(data)
    first = snapshot(MODEL)
    shutil.rmtree(MODEL)
    unopened(monkeypatch)
    trained(data)
    assert snapshot(MODEL) == first

    def write_other(folder: Path, *_: object) -> None:
        (folder / "model.safetensors").write_bytes(b"another draw")

    with monkeypatch.context() as patched:
        patched.setattr(training, "write_model", write_other)
        with pytest.raises(PipelineError, match="which it made first"):
            trained(data)
    assert snapshot(MODEL) == first
    budget = {"epsilon": 1.01 * (charge.epsilon or 0.0)}
    with pytest.raises(PipelineError, match=r"^[^\n]*budget[^\n]*$"):
        trained(replace(with_changes(data, privacy={"budget": budget}), seed=1))
    trained(with_changes(data, privacy={"budget": budget, "delta": 1e-4}))
    assert statement()["delta"] == 1e-4, "the same release, read at another δ"
    assert len(charged(data)) == 1
    with pytest.raises(pytest.fail.Exception, match="was opened"):
        trained(replace(data, seed=1))
    assert states(data) == ["committed", "reserved"]


def test_a_log_that_cannot_be_written_is_refused_before_anybody_is_charged(data: Params) -> None:
    with pytest.raises(PipelineError, match=r"tracking\.uri: the MLflow store host cannot be used"):
        trained(replace(data, tracking=replace(data.tracking, uri="ftp://host/x")))
    assert charged(data) == []


def test_an_edit_of_the_engine_charges_nobody(
    data: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one_batch = {"batch_size": 64}  # the same rows in every round
    everybody = with_changes(data, dynamics=one_batch)
    trained(everybody)
    first, weights = snapshot(MODEL), model().weights[0]
    monkeypatch.setattr("primorl.engine.training.ENGINE_VERSION", ENGINE_VERSION + 1)
    trained(everybody)
    assert len(charged(data)) == 1
    assert snapshot(MODEL) == first
    assert "it is restored, and nothing is spent" in capsys.readouterr().err
    for _ in range(2):
        trained(with_changes(data, privacy={"draw": 1}, dynamics=one_batch))
        assert len(charged(data)) == 2
    assert float((weights - model().weights[0]).abs().max()) > 1e-2


@pytest.mark.verdict
def test_a_model_that_came_to_nothing_stays_spent(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    def infinite(self: Mechanism, total: torch.Tensor) -> torch.Tensor:
        return torch.full_like(total, math.inf).float()

    noise_of_model(monkeypatch, 500.0)
    loud = with_changes(data, privacy={"draw": 7})
    with monkeypatch.context() as patched:
        patched.setattr(Mechanism, "release", infinite)
        with pytest.raises(PipelineError, match="diverged"):
            trained(data)
    for params, says in (
        (data, r"diverged .* the same settings cost nothing again"),
        (loud, r"no better than a constant: its public loss is .* lower dynamics"),
        (loud, "no better than a constant"),
    ):
        with pytest.raises(PipelineError, match=says):
            trained(params)
    assert len(charged(data)) == 2
    assert not MODEL.exists()
    learning = {"learning_rate": 0.05, "hidden": [32], "variant": "no_privacy"}
    trained(with_changes(data, privacy={"rounds": 150, "clipping_norm": 5.0}, dynamics=learning))
    assert statement()["spent_on_dataset"]["charges"] == 3, "a model that learned something is kept"


def test_what_was_lost_or_exchanged_charges_nobody(
    small: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = with_changes(small)
    public = PARTITIONS / "public_units.bin"
    secret = Path(".primorl/secret")
    raw = Path("data/raw")
    write_raw(raw, episodes(12))

    def lose_one() -> None:
        """As where somebody withdrew, and a ``.dvcignore`` hides rows from DVC."""
        for several in (11, 12):
            shutil.rmtree(raw)
            write_raw(raw, episodes(several))
            if several == 11:
                ingest.body(params, StageLog())

    for break_it, says in (
        (lose_one, "data/partitions: of other rows than data/trajectories"),
        (lambda: secret.write_bytes(b"n" * 32), "secret_check: made under another secret than"),
        (
            lambda: public.write_bytes(b"\0" * public.stat().st_size),
            "public_units.bin: not of the units in data/",
        ),
        (secret.unlink, "secret: not there, and data/partitions needs it"),
        (lambda: None, None),
    ):
        ingest.body(params, StageLog())
        partition.body(params, StageLog())
        break_it()
        if says is None:
            trained(params)
            assert len(charged(params)) == 1
            assert not data_changed()
            lose_one()
            assert data_changed(), "so that no bundle is made of it"
            return
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "reserve", lambda *_: pytest.fail("a charge was asked for"))
            unopened(patch)
            previewed = partial(preview, changed=set())
            for work in (trained, previewed):
                with pytest.raises(PipelineError, match=rf"^[^\n]*{says}[^\n]*$"):
                    work(params)


def test_bounds_and_normaliser_come_from_the_public_split(data: Params) -> None:
    found = []
    for scale in (1.0, 1e4):
        private = [
            replace(one, observations=one.observations * scale, rewards=one.rewards * scale)
            for one in (episode(10, i) for i in range(5))
        ]
        shutil.rmtree(PARTITIONS)
        write_partitions(private, [episode(20, 100 + i) for i in range(4)])
        trained(edited(data, chosen={"bounds": {"observation": "public", "reward": "public"}}))
        maps, bounds = model().normaliser, model().bounds
        scales = [each for each in vars(maps).values() if isinstance(each, torch.Tensor)]
        found.append([*scales, bounds.observation_high, torch.tensor(bounds.reward_low)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert bounds.reward_low > -16.3


def test_bad_input_is_one_clear_error_and_the_last_model_stays(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data)
    before, sound = snapshot(MODEL), shutil.copytree(PARTITIONS, "sound")
    (part,) = (PARTITIONS / "private").iterdir()
    for file, length, says in (
        (part, -40, "data/partitions/private"),
        (PARTITIONS / "units.bin", -16, "units.bin: missing, or not of 9 units"),
        (PARTITIONS / "units.bin", None, "units.bin: missing, or not of 9 units"),
    ):
        file.write_bytes(file.read_bytes()[:length])
        if length is None:
            file.unlink()
        with pytest.raises(PipelineError, match=rf"^[^\n]*{says}[^\n]*$"):
            trained(replace(data, seed=1))
        assert snapshot(MODEL) == before
        shutil.rmtree(PARTITIONS)
        shutil.copytree(sound, PARTITIONS)
    names = [f"a{i:03d}" for i in range(9)]
    shutil.rmtree(PARTITIONS / "private")
    other = table([episode(9, 50 + i) for i in range(9)], units=names, names=names)
    write_partition(PARTITIONS / "private", other)
    with pytest.raises(PipelineError, match="its parts are of different partitions"):
        trained(replace(data, seed=1))  # not the rows of the units that are charged
    unopened(monkeypatch)
    with pytest.raises(PipelineError, match=r"found 0\.5, .*allowed is below 1/9"):
        trained(with_changes(data, privacy={"delta": 0.5}))


@pytest.mark.parametrize(
    ("termination", "refused"),
    [
        ("sideways", "found 'sideways'; allowed at size 3: "),
        ("learned", None),
        ("upright", None),
    ],
)
def test_ends_are_declared_part_of_the_model_and_stated(
    small: Params, monkeypatch: pytest.MonkeyPatch, termination: str, refused: str | None
) -> None:
    monkeypatch.setitem(
        RULES, "upright", Rule(3, lambda observation, action, following: following[:, 0] < 0)
    )
    names = ("glucose", "ward=A", "ward=B")
    spaces = replace(INFO.spaces, observation_names=names)
    monkeypatch.setattr(
        training_project, "INFO", replace(INFO, termination=termination, spaces=spaces)
    )
    write_partitions(
        *([episode(n, n + i, terminated=True) for i in range(k)] for n, k in ((5, 3), (20, 2)))
    )
    params = with_changes(small)
    if refused is not None:
        with pytest.raises(PipelineError, match=refused):
            trained(params)
        assert not MODEL.exists()
        assert charged(small) == []
        return
    run, learned = trained(params), termination == "learned"
    assert (model().termination, model().architecture.learned_termination) == (termination, learned)
    assert statement()["termination"] == termination
    taken = "when an episode ends: the declared rule upright"
    assert (taken in statement()["public_assumptions"]) is not learned
    assert {*steps_of(run)} == {"public_loss"}


FOLDER = Path("models/behaviour")
CLONED = {"shares": {"model": 0.4, "clone": 0.2}}


@pytest.fixture
def asked(data: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    quick_clone(monkeypatch, rounds=4, q=1.0, noise=lambda _: 1.0)
    monkeypatch.setattr(public, "_POOLED", replace(public._POOLED, max_epochs=3))
    return with_changes(data, privacy=CLONED)


def cloned(params: Params) -> StageLog:
    run = StageLog()
    plan.body(params, run)
    if not clone_behaviour.idle(params):
        clone_behaviour.body(params, run)
    return run


def test_it_is_idle_unless_an_epsilon_is_given(data: Params) -> None:
    cloned(with_changes(data))
    assert sorted(file.name for file in FOLDER.iterdir()) == ["behaviour.json"]
    assert not BehaviourConfig.read(FOLDER).made
    assert not Path(".primorl/ledger.db").exists()


def test_a_clone_is_charged_before_it_is_trained(
    asked: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_clone(monkeypatch, rounds=4, q=0.5, noise=lambda _: 1.0)
    seen: list[list[str]] = []
    watch_private(monkeypatch, lambda: seen.append(states(asked)))
    released: list[Mechanism] = []
    watch(monkeypatch, Mechanism, "release", lambda own, _: released.append(own))
    cloned(asked)
    assert {tuple(each) for each in seen} == {("reserved",)}
    drawn = [(own.noise_multiplier, own.sampling_probability, own.units) for own in released]
    assert drawn == [(1.0, 0.5, 9)] * 4, "no noise is drawn beside the mechanism"
    (charge,) = charged(asked)
    assert (charge.state, charge.stage) == ("committed", "clone_behaviour")
    assert (charge.dataset, charge.units) == (INFO.dataset, 9)
    stated = read_json(FOLDER / "privacy.json")
    assert stated["epsilon"] == pytest.approx(charge.epsilon, rel=1e-3)
    assert (stated["charge"], stated["private"], stated["rounds"]) == (charge.id, True, 4)
    config = BehaviourConfig.read(FOLDER)
    assert (config.made, config.rounds, config.engine_version) == (True, 4, ENGINE_VERSION)
    (query,) = stated["queries"]  # squares and products could not be told of nine people
    assert config.persistence is not None
    assert config.products is None
    noise = query["noise_multiplier"] / 9
    assert (query["what"], noise) == ("persistence", pytest.approx(config.persistence[1]))
    assert config.warnings == training.warn_of_reasons(config.persistence, None)
    cloned(asked)
    assert len(charged(asked)) == 1
    policy, rows = DeterministicPolicy.load(FOLDER), torch.randn(1, 7, 3)
    mean, _ = BehaviourPolicy.load(FOLDER, torch.device("cpu")).mean_and_std(rows[0])
    torch.testing.assert_close(policy.act(rows)[0], 2 * mean)  # Pendulum's torque


def test_what_cannot_be_cloned_is_refused_before_the_charge(
    asked: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_clone(monkeypatch, rounds=4, q=1.0, noise=lambda _: 2000.0)
    with pytest.raises(PipelineError, match=r"behaviour\.hidden: found \[2048, 2048\], whose"):
        cloned(with_changes(asked, privacy=CLONED, behaviour={"hidden": [2048, 2048]}))
    assert not charged(asked)
    assert not FOLDER.exists()


def test_a_charge_of_another_stage_opens_no_private_rows() -> None:
    nothing, charge = cast(Any, None), SimpleNamespace(id="c", stage="online")
    paid = Paid(cast(Charge, charge), nothing, desk=nothing)
    with pytest.raises(ValueError, match="charge c of online opens no private rows"):
        paid.open_rows(nothing)


# Without public units

CPU = torch.device("cpu")
NOBODY = {"partition": {"public_fraction": 0, "public": None}, "policy": {"starts": "released"}}
ASKED = ["scales", "finer_scales", "explained", "first_states"]


def without_public(small: Params, privacy: Any = None, **blocks: Any) -> Params:
    return with_changes(small, privacy=privacy or {}, **NOBODY | blocks)


@pytest.fixture
def people(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    noise_of_model(monkeypatch, 1.0)
    write_partitions([episode(5 + i % 4, i) for i in range(80)])
    return small


def test_every_query_is_charged_with_the_rounds_and_first(
    people: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    watch(monkeypatch, Mechanism, "answer", lambda *_: seen.append(states(people)))
    trained(without_public(people))
    assert seen == [["reserved"]] * 4
    said = statement()
    assert [query["what"] for query in said["queries"]] == ASKED
    whole = accounting.Training(1.0, 1.0, 4, (14.0,) * 4)
    assert event_from_json(said["event"]) == whole.event
    assert said["epsilon"] == whole.compute_spent(1e-3).epsilon_pld
    alone = accounting.Training(1.0, 1.0, 4).compute_spent(1e-3).epsilon_pld
    assert alone < said["epsilon"]
    (charge,) = charged(people)
    assert charge.event == said["event"]
    assert "that nobody is public" in said["public_assumptions"]
    told = ModelConfig.read(OUTPUT).explained
    assert told is not None
    assert len(told) == 4, "the observation's dimensions and the reward"
    reason = RunPlan.read(PLAN).reason
    assert re.search(r"the noise may hide a reward whose standard deviation is below \d", reason)
    starts, high = StartModel.load(OUTPUT, CPU), torch.tensor(SPACES.observation_high)
    bounds = GaussianEnsemble.load(OUTPUT, CPU).bounds
    assert torch.equal(starts.high, high), "as declared: bounds see nobody"
    assert torch.equal(bounds.observation_high, high)
    begun = PublicLog(OUTPUT, None).first_states(seed=0)
    assert bool((begun >= starts.low).all() & (begun <= starts.high).all())


def test_what_needs_public_units_charges_nobody(
    people: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = {"early_stopping": {"every": 2, "patience": 3}}
    by_reward = {"bounds": {"observation": "space", "reward": "public"}}
    by_rows = {"bounds": {"observation": "public", "reward": [-17.0, 0.0]}}
    beyond = {"bounds": {"observation": "space", "reward": [-17.0, 0.0], "angles": [[0, 3]]}}
    drawn = {"partition": {"public_fraction": 0.5, "public": None}, "policy": {}}
    refusals: list[tuple[dict[str, Any], str]] = [
        (drawn, r"partition.public_fraction: needs public"),
        ({"dynamics": patient}, r"patience: needs .* allowed: null"),
        ({"chosen": by_rows}, r"bounds.observation: needs .* allowed: space"),
        ({"chosen": beyond}, r"bounds.angles: found column 3, .* from 0 to 2"),
        ({"chosen": by_reward}, r"bounds.reward: needs .* allowed: \[low, high\]"),
    ]
    for blocks, says in refusals:
        with pytest.raises(PipelineError, match=says) as refused:
            trained(without_public(people, **blocks))
        assert re.match(r"params.yaml: |datasets/[a-z-]+\.yaml: ", str(refused.value))
        assert "\n" not in str(refused.value)
    assert not OUTPUT.exists()
    assert charged(people) == []


def test_nothing_is_asked_twice_under_one_charge(
    people: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anybody charged anew for an answer that is lost; another draw is charged."""
    params = without_public(people)
    with killed(2, "answer"):
        trained(params)
    with pytest.raises(PipelineError, match=r"one answer only; it stays spent; .*privacy\.draw"):
        trained(params)
    assert states(people) == ["reserved"]
    partitions = Partitions.open(params)
    assert Bill.of(params, RunPlan.read_for(params, partitions), partitions).unpaid == []

    params = edited(params, privacy={"draw": 1})
    with killed(3, "release"):
        trained(params)
    assert states(people) == ["reserved"] * 2
    asked: list[str] = []
    watch(monkeypatch, Mechanism, "answer", lambda _, query, total: asked.append(query.what))
    trained(params)
    assert asked == ["explained", "first_states"], "nothing is asked twice under one charge"
    assert states(people) == ["reserved", "committed"]
    assert read_json(OUTPUT / "config.json")["rounds"] == 3
    once, spent = event_from_json(statement()["event"]), statement()["spent_on_dataset"]
    twice = adaptive(once, once, delta=spent["delta"])
    assert spent["epsilon"] == pytest.approx(twice, rel=1e-9)


def test_linear_heads_and_all_that_they_ask_are_one_charge(
    people: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while their rows are summed loses nothing; one between two of the late answers loses
    these, and nobody is asked again.
    """
    heads = {"model": "linear", "degree": 2, "hidden": [], "learning_rate": 1.0}
    heads["max_transitions_per_unit"] = 8
    shares = {"model": 0.4, "clone": 0.1}
    params = without_public(people, dynamics=heads, privacy={"shares": shares})
    trained(params)
    said = statement()
    asked = [query["what"] for query in said["queries"]]
    assert asked == ["scales", "finer_scales", "residuals", "explained", "first_states"]
    whole = accounting.Training(1.0, 1.0, 4, (14.0,) * 5)
    assert event_from_json(said["event"]) == whole.event
    members = GaussianEnsemble.load(OUTPUT, CPU).architecture.members
    assert members == params.dynamics.ensemble_size
    assert StartModel.load(OUTPUT, CPU).survival is None
    clone_behaviour.body(params, StageLog())
    clone = read_json(FOLDER / "privacy.json")
    of_model, of_clone = clone["mechanisms"]  # it acts in the scales that the model was told
    assert [query["what"] for query in of_clone["queries"]] == ["persistence"]
    assert 0.9 < of_clone["epsilon"] / epsilon_of(params, "clone") <= 1.0
    events = [charge.event for charge in charged(people)]
    assert events == [said["event"], of_clone["event"]] == [of_model["event"], of_clone["event"]]
    both = [event_from_json(event) for event in events]
    assert clone["epsilon"] == accounting.compose(both, clone["delta"]).epsilon_pld
    assert [clone["charge"], said["charge"]] == [of_clone["charge"], of_model["charge"]]
    other = edited(params, privacy={"draw": 1})
    asked = []
    watch(monkeypatch, Mechanism, "answer", lambda _, query, total: asked.append(query.what))
    with killed(2, "total", PredictionQuery):
        trained(other)
    with killed(2, "answer"):
        trained(other)
    trained(other)
    assert asked == ["scales", "finer_scales", "residuals"]
    assert not (OUTPUT / "starts.safetensors").exists(), "the answer is gone"
    config = read_json(OUTPUT / "config.json")
    assert any("explains of the reward is not known" in line for line in config["warnings"])
    assert config["rounds"] == 4, "no round was lost"
    assert states(people) == ["committed"] * 3
