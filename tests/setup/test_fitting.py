"""Settings are fitted to public facts, once; what cannot learn is refused before anything is charged."""

import dataclasses
import json
import math
import shutil
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import train_model
from primorl.config import params as params_module
from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.project.files import locked
from primorl.project.paths import MANIFEST, PARTITIONS, PUBLIC
from primorl.setup import fitting, paid_training
from primorl.setup.fitting import MODEL_TRAINING, TRAINING_KEYS, Fit, check_verdict
from primorl.setup.model_work import make_plan, model_identity, training_setup
from primorl.setup.partitions import Partitions
from primorl.training import dry_run
from primorl.training.dry_run import DryRun, Outcome
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore
from tests.pipeline.fakes import FakeRun
from tests.pipeline.training_project import charged, trained, watch_private
from tests.projects import project_settings
from tests.setup.fitted_project import automatic, fit, fits, quick, write_data


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    write_data()
    quick(monkeypatch)
    return small


def setup_of(params: Params) -> Any:
    return training_setup(params, Manifest.load(MANIFEST), UnitStore.open(PUBLIC))


def identity(params: Params) -> str:
    fit(params)
    return identity_of(params)


def identity_of(params: Params) -> str:
    data = SimpleNamespace(identity="data", manifest=Manifest.load(MANIFEST))
    return model_identity(params, data)  # type: ignore[arg-type]


def test_who_comes_second_waits_for_the_first_one_s_fit(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    params = automatic(data)
    _, expected = fit(params)
    (file,) = Path(".primorl/fits").glob("*.json")
    kept = file.read_bytes()
    file.unlink()

    with ExitStack() as other:

        def meanwhile(seconds: float) -> None:
            file.write_bytes(kept)
            other.close()

        monkeypatch.setattr(fitting, "_by_dry_runs", None)
        monkeypatch.setattr("time.sleep", meanwhile)
        assert other.enter_context(locked(file.with_suffix(".lock")))
        assert fit(params)[1] == expected
    assert [found.name for found in file.parent.iterdir()] == [file.name]


def test_only_what_is_to_be_fitted_gets_a_value_and_what_is_given_holds(data: Params) -> None:
    params = automatic(data, privacy__rounds=3, dynamics__hidden=[5])
    chosen, found = fit(params)
    assert found.values.keys() == params.unfitted & TRAINING_KEYS == params.unfitted - chosen.unfitted
    assert (chosen.privacy.rounds, chosen.dynamics.hidden) == (3, (5,))
    assert chosen.dynamics.start == "public"
    assert chosen.dynamics.learning_rate in (0.001, 0.003)
    assert (chosen.dynamics.ensemble_size, chosen.privacy.clipping_norm > 0) == (2, True)
    assert not chosen.unfitted & TRAINING_KEYS
    assert make_plan(chosen, Manifest.load(MANIFEST)).rounds == 3
    with pytest.raises(ValueError, match="fit these first"):
        make_plan(params, Manifest.load(MANIFEST))


def test_the_candidate_with_the_lowest_loss_is_taken(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {(0.001, 1.0): 2.0, (0.003, 1.0): 1.0, (0.003, 0.0): 0.0, (0.003, 0.5): 0.9, (0.003, 0.01): 0.1}

    def outcome(self: DryRun, setup: Any, *, from_public: bool, noise: float = 1.0) -> Any:
        assert from_public
        loss = losses[setup.local.learning_rate, noise]
        return Outcome(start=3.0, loss=loss, constant=5.0, in_all=loss)

    monkeypatch.setattr(DryRun, "outcome", outcome)
    chosen, found = fit(automatic(data))
    assert chosen.dynamics.learning_rate == 0.003
    assert (found.learned, found.answer, found.helps) == (0.8, "marginal", 100.0)
    assert "keep 80% of what can be learned (yes from 90%, no below 60%); 100 times the people" in found.reason


def test_a_fit_is_made_once_for_the_same_public_facts(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    params = automatic(data)
    first = fit(params)
    (name,) = fits()
    fit(params, units=90)
    fit(automatic(data, privacy__noise_multiplier=2.0))
    assert len(fits()) == 3, "K and the noise are what it depends on"
    monkeypatch.setattr(dry_run, "DryRun", lambda *_, **__: pytest.fail("fitted again"))
    assert fit(params) == first
    assert fit(automatic(data, privacy__draw=1, dynamics__train_anyway=True))[1] == first[1]
    assert json.loads((Path(".primorl/fits") / name).read_text())["answer"] == first[1].answer


def test_no_private_byte_is_read(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    params = automatic(data)
    chosen, found = fit(params)
    weights = setup_of(chosen).first_weights()
    shutil.rmtree(PARTITIONS / "private")
    shutil.rmtree(Path(".primorl/fits"))
    watch_private(monkeypatch, lambda: pytest.fail("private rows were opened"))
    assert fit(params) == (chosen, found)
    for one, other in zip(weights, setup_of(chosen).first_weights(), strict=True):
        assert one.equal(other)


def test_what_cannot_learn_is_refused_before_the_ledger_is_asked(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    params = automatic(data, privacy__sampling_probability=1.0)
    with monkeypatch.context() as patched:
        watch_private(patched, lambda: pytest.fail("private rows were opened"))
        patched.setattr(train_model, "paid_training", lambda *_: pytest.fail("the ledger was asked"))
        with pytest.raises(PipelineError, match=r"cannot learn: .* Nothing was charged; .*dynamics.train_anyway: true"):
            train_model.body(params, FakeRun())  # type: ignore[arg-type]
    assert charged(params) == []
    assert not Path("models/dynamics").exists()
    anyway = automatic(data, privacy__sampling_probability=1.0, dynamics__train_anyway=True)
    trained(anyway)
    assert [charge.state for charge in charged(anyway)] == ["committed"]
    assert json.loads(Path("models/dynamics/config.json").read_text())["can_learn"] == "no"
    shutil.move(".primorl/fits", "kept")
    with monkeypatch.context() as patched:
        patched.setattr(fitting, "LEARNING_RATES", (0.0005,))
        with pytest.raises(PipelineError, match=r"^\.primorl/fits: the settings .* were others when"):
            trained(anyway)
    shutil.rmtree(".primorl/fits")
    shutil.move("kept", ".primorl/fits")
    watch_private(monkeypatch, lambda: pytest.fail("private rows were opened"))
    trained(anyway)
    assert [charge.state for charge in charged(anyway)] == ["committed"]


def test_only_a_private_training_is_refused(data: Params) -> None:
    no = Fit(values={}, answer="no", noise=1.0, learned=None, start=None, loss=None, constant=None, helps=None)
    for answer in ("yes", "marginal"):
        check_verdict(automatic(data), dataclasses.replace(no, answer=answer))  # type: ignore[arg-type]
    for variant in ("no_privacy", "no_clip", "mopo"):
        check_verdict(automatic(data, dynamics__variant=variant), no)
    with pytest.raises(PipelineError, match="more people or a larger ε alone would not do"):
        check_verdict(automatic(data), no)


@pytest.mark.parametrize(
    ("share", "answer"), [(0.1, "yes"), (0.199, "yes"), (0.201, "marginal"), (0.549, "marginal"), (0.551, "no")]
)
def test_without_a_public_split_a_rule_decides(data: Params, share: float, answer: str) -> None:
    shutil.rmtree(PARTITIONS)
    write_data(public=3)
    given = {"privacy__sampling_probability": 0.5, "privacy__rounds": 16, "dynamics__hidden": [5]}
    chosen, _ = fit(automatic(data, **given))
    weights = chosen.dynamics.ensemble_size * sum(w * b for w, b in ((4 + 1, 5), (5 + 1, 2 * 4 + 1)))
    noise = share * 0.5 * 9 * 4 / math.sqrt(weights)
    found = fit(automatic(data, **given, privacy__noise_multiplier=noise))[1]
    assert found.noise == pytest.approx(share)
    assert (found.answer, found.learned) == (answer, None)
    assert (found.helps is None) == (answer == "yes")
    if found.helps is not None:
        assert share / found.helps <= 0.2 < share / (found.helps - 0.11)


def test_the_rule_takes_the_largest_network_that_the_noise_leaves_room_for(data: Params) -> None:
    shutil.rmtree(PARTITIONS)
    write_data(public=3)
    params = automatic(data)
    sizes = [fit(params, units=units)[0].dynamics.hidden for units in (100_000, 60, 35, 9)]
    assert sizes[0] == (64, 64)
    assert sizes[-1] == (16,)
    assert sizes == sorted(sizes, key=lambda hidden: -sum(hidden))
    assert fit(params, units=5)[1].answer == "no"


def test_few_public_units_make_first_weights_from_which_small_steps_go(data: Params) -> None:
    shutil.rmtree(PARTITIONS)
    write_data(public=7)
    chosen, found = fit(automatic(data))
    assert (chosen.dynamics.start, found.learned) == ("public", None)
    assert (chosen.dynamics.learning_rate, chosen.privacy.rounds, chosen.privacy.clipping_norm) == (0.0003, 20, 0.02)
    assert fit(automatic(data, dynamics__start="random"))[0].privacy.rounds == 100
    statistics = project_settings()["privacy"]["statistics"] | {"normaliser": "private"}
    assert fit(automatic(data, privacy__statistics=statistics), units=10_000)[0].dynamics.start == "random"


def test_a_fit_that_comes_out_otherwise_is_the_same_paid_work(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(automatic(data))
    shutil.rmtree(".primorl/fits")
    monkeypatch.setattr(fitting, "LEARNING_RATES", (0.0005,))
    monkeypatch.setattr(fitting, "ROUNDS", (5,))
    assert identity(automatic(data)) == before
    assert identity(automatic(data, dynamics__train_anyway=True)) == before
    others: list[dict[str, Any]] = [
        {"privacy__noise_multiplier": 2.0},
        {"privacy__draw": 1},
        {"privacy__rounds": 5},
        {"dynamics__batch_size": 3},
    ]
    assert len({before, *(identity(automatic(data, **other)) for other in others)}) == 5


def test_work_that_was_paid_for_before_settings_were_fitted_is_the_same_work(data: Params) -> None:
    raw = project_settings()
    raw["privacy"] |= {"target_epsilon": None, "noise_multiplier": 1.0}
    params = params_module.from_plain(raw)
    assert identity_of(params) == "94d69b1dde5a431f84cd4fc5fee2e8e11f51b1473a57f53f60553e5e2c0423cd"


def test_processes_agree_on_what_is_fitted(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    params = automatic(data, dynamics__train_anyway=True)
    granted = []
    monkeypatch.setattr(paid_training, "Group", nullcontext)
    monkeypatch.setattr(paid_training, "wait_for_grant", lambda group: granted[-1])
    monkeypatch.setattr(paid_training, "_open_private", lambda *_: (_ for _ in ()).throw(InterruptedError))
    setup = setup_of(fit(params)[0])
    other = dataclasses.replace(setup, plan=dataclasses.replace(setup.plan, rounds=setup.plan.rounds + 1))
    for first, error in ((setup, InterruptedError), (other, PipelineError)):
        paid = model_identity(params, Partitions.open(PARTITIONS))
        granted.append(paid_training._agreed(paid, first))
        with pytest.raises(error):
            paid_training.work_for_first(params, MODEL_TRAINING, PARTITIONS)
