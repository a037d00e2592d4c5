"""Settings are fitted to public facts, once; what cannot learn is refused before anything is charged."""

import json
import math
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primorl.base.errors import PipelineError
from primorl.base.paths import MANIFEST, MODEL, PARTITIONS, PUBLIC
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine.rehearsal import DryRun, Outcome
from primorl.paid import fitting, training
from primorl.paid.fitting import MODEL_TRAINING, Fit, check_verdict
from primorl.paid.model import TRAINING_KEYS, make_plan, model_identity, training_setup
from primorl.paid.partitions import Partitions
from tests.data.builders import episode, table
from tests.paid.fitted_project import automatic, fit, fits, quick, write_data
from tests.pipeline import tiny_policy
from tests.pipeline.training_project import charged, states, trained, unopened

FITS = Path(".primorl/fits")


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    write_data()
    quick(monkeypatch)
    return small


def public_units(number: int) -> None:
    shutil.rmtree(PARTITIONS)
    write_data(public=number)


def setup_of(params: Params) -> Any:
    return training_setup(params, Manifest.load(MANIFEST), UnitStore.open(PUBLIC))


def test_only_what_is_to_be_fitted_gets_a_value_and_what_is_given_holds(data: Params) -> None:
    params = automatic(data, privacy__rounds=3, dynamics__hidden=[5])
    chosen, found = fit(params)
    assert (
        found.values.keys() == params.unfitted & TRAINING_KEYS == params.unfitted - chosen.unfitted
    )
    assert (chosen.privacy.rounds, chosen.dynamics.hidden, chosen.dynamics.start) == (
        3,
        (5,),
        "public",
    )
    assert chosen.dynamics.learning_rate in (0.001, 0.003)
    assert (chosen.dynamics.ensemble_size, chosen.privacy.clipping_norm > 0) == (2, True)
    assert not chosen.unfitted & TRAINING_KEYS
    assert make_plan(chosen, Manifest.load(MANIFEST)).rounds == 3
    with pytest.raises(ValueError, match="fit these first"):
        make_plan(params, Manifest.load(MANIFEST))


def test_the_candidate_with_the_lowest_loss_is_taken(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {
        (0.001, 1.0): 2.5,
        (0.003, 1.0): 2.0,
        (0.003, 0.0): 0.0,
        (0.003, 0.5): 1.6,
        (0.003, 0.01): 0.1,
    }

    def outcome(self: DryRun, setup: Any, *, from_public: bool, noise: float = 1.0) -> Any:
        assert from_public
        loss = losses[setup.local.learning_rate, noise]
        return Outcome(start=3.0, loss=loss, constant=5.0, in_all=loss)

    monkeypatch.setattr(DryRun, "outcome", outcome)
    chosen, found = fit(automatic(data))
    assert chosen.dynamics.learning_rate == 0.003
    assert (found.learned, found.answer, found.helps) == (pytest.approx(1 / 3), "marginal", 100.0)
    assert (
        "add 1 of the 3 that they could without noise (yes from 50% of it, no below 20%); 100 times"
        in found.reason
    )


def test_the_verdict_is_measured_against_what_the_public_split_alone_reaches(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loss, without_noise, doubt, answer in (
        (1.2, 0.0, 0.1, "yes"),
        (1.8, 0.0, 0.1, "marginal"),
        (2.9, 0.0, 0.1, "no"),
        (3.01, 0.0, 0.1, "no"),  # twin: 98% of what a constant lacks, and the rounds do harm
        (2.97, 2.965, 0.0, "not_needed"),
        (2.5, 2.4, 0.1, "yes"),
        (2.5, 2.4, 0.4, "not_needed"),  # twin: within the dry run's own error
    ):

        def outcome(self: DryRun, setup: Any, *, from_public: bool, noise: float = 1.0) -> Any:
            found = without_noise if noise < 1 else loss  # noqa: B023 - called at once
            return Outcome(start=3.0, loss=found, constant=5.0, in_all=found, doubt=doubt)  # noqa: B023

        monkeypatch.setattr(DryRun, "outcome", outcome)
        shutil.rmtree(FITS, ignore_errors=True)
        found = fit(automatic(data))[1]
        assert found.answer == answer
        assert ("privacy.train_on: public" in found.reason) is (answer in ("no", "not_needed"))


def test_a_fit_is_made_once_and_of_public_facts(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = automatic(data)
    first = fit(params)
    weights = setup_of(first[0]).first_weights()
    shutil.rmtree(PARTITIONS / "private")
    shutil.rmtree(FITS)
    unopened(monkeypatch)
    assert fit(params) == first
    for one, other in zip(weights, setup_of(first[0]).first_weights(), strict=True):
        assert one.equal(other)
    (name,) = fits()
    assert json.loads((FITS / name).read_text())["answer"] == first[1].answer
    fit(params, units=90)
    fit(automatic(data, privacy__noise_multiplier=2.0))
    assert len(fits()) == 3, "K and the noise are what it depends on"
    monkeypatch.setattr(fitting, "_by_dry_runs", None)
    assert fit(automatic(data, privacy__draw=1, dynamics__train_anyway=True))[1] == first[1]


def test_what_cannot_learn_is_refused_before_the_ledger_is_asked(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = automatic(data, privacy__sampling_probability=1.0)
    with monkeypatch.context() as patched:
        unopened(patched)
        with pytest.raises(
            PipelineError,
            match=r"cannot learn: .* Nothing was charged; .*dynamics.train_anyway: true",
        ):
            trained(params)
    assert charged(params) == []
    assert not MODEL.exists()
    anyway = automatic(data, privacy__sampling_probability=1.0, dynamics__train_anyway=True)
    trained(anyway)
    assert json.loads((MODEL / "config.json").read_text())["can_learn"] == "no"
    shutil.move(FITS, "kept")
    with monkeypatch.context() as patched:
        patched.setattr(fitting, "LEARNING_RATES", (0.0005,))
        with pytest.raises(
            PipelineError, match=r"^\.primorl/fits: the settings .* were others when"
        ):
            trained(anyway)
        assert states(anyway) == ["committed"], (
            "a fit that comes out otherwise is the same paid work"
        )
    shutil.rmtree(FITS)
    shutil.move("kept", FITS)
    unopened(monkeypatch)
    trained(anyway)
    assert states(anyway) == ["committed"]

    no = Fit(
        values={},
        answer="no",
        noise=1.0,
        learned=None,
        start=None,
        loss=None,
        constant=None,
        helps=None,
    )
    for answer in ("yes", "marginal"):
        check_verdict(automatic(data), replace(no, answer=answer))
    check_verdict(automatic(data, dynamics__variant="no_privacy"), no)
    with pytest.raises(PipelineError, match="more people or a larger ε alone would not do"):
        check_verdict(automatic(data), no)


def test_without_a_public_split_a_rule_decides(data: Params) -> None:
    public_units(3)
    given = {"privacy__sampling_probability": 0.5, "privacy__rounds": 16, "dynamics__hidden": [5]}
    chosen, _ = fit(automatic(data, **given))
    weights = chosen.dynamics.ensemble_size * sum(
        w * b for w, b in ((4 + 1, 5), (5 + 1, 2 * 4 + 1))
    )
    for share, answer in ((0.199, "yes"), (0.201, "marginal"), (0.549, "marginal"), (0.551, "no")):
        noise = share * 0.5 * 9 * 4 / math.sqrt(weights)
        found = fit(automatic(data, **given, privacy__noise_multiplier=noise))[1]
        assert found.noise == pytest.approx(share)
        assert (found.answer, found.learned, found.helps is None) == (answer, None, answer == "yes")
        if found.helps is not None:
            assert share / found.helps <= 0.2 < share / (found.helps - 0.11)
    params = automatic(data)
    sizes = [fit(params, units=units)[0].dynamics.hidden for units in (100_000, 60, 35, 9)]
    assert (sizes[0], sizes[-1]) == ((64, 64), (16,)), (
        "the largest network that the noise leaves room for"
    )
    assert sizes == sorted(sizes, key=lambda hidden: -sum(hidden))
    assert fit(params, units=5)[1].answer == "no"


def test_processes_agree_on_what_is_fitted(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    params = automatic(data, dynamics__train_anyway=True)
    granted = []
    monkeypatch.setattr(training, "Group", nullcontext)
    monkeypatch.setattr(training, "wait_for_grant", lambda group: granted[-1])
    monkeypatch.setattr(
        training, "open_private", lambda *_, **__: (_ for _ in ()).throw(InterruptedError)
    )
    setup = setup_of(fit(params)[0])
    other = replace(setup, plan=replace(setup.plan, rounds=setup.plan.rounds + 1))
    for first, error in ((setup, InterruptedError), (other, PipelineError)):
        paid = model_identity(params, Partitions.open(PARTITIONS, None))
        granted.append(training._agreed(paid, first))
        with pytest.raises(error):
            training.work_for_first(params, MODEL_TRAINING, PARTITIONS)


def test_advice_for_linear_heads_is_followed_and_checked(small: Params) -> None:
    """With so many times the people as it says, and the same degree, the answer is yes; with half of them it is not."""
    tiny_policy.write_partitions(
        content := table([episode(9, i) for i in range(12)]), content.slice(0, 0)
    )
    asked = {
        "partition__public_fraction": 0,
        "privacy__target_epsilon": 1.0,
        "privacy__noise_multiplier": None,
    }
    asked |= {
        f"privacy__statistics__{key}": "auto"
        for key in ("normaliser", "starts", "noise_multiplier")
    }
    params = automatic(small, **asked, dynamics__model="auto", dynamics__degree=2)
    answers = {}
    for units in (20, 100, 3000):
        chosen, found = fit(params, units)
        answers[units] = found.answer
        assert chosen.dynamics.model == "linear"
        if found.helps is not None:
            assert fit(params, math.ceil(units * found.helps))[1].answer == "yes"
            assert fit(params, int(units * found.helps / 2))[1].answer != "yes"
    assert answers == {20: "no", 100: "marginal", 3000: "yes"}
