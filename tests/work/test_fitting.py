"""What is left open is decided from public facts; what cannot learn is refused before anything is
charged.
"""

import json
import math
import shutil
from dataclasses import replace

import pytest

from primorl.base.errors import PipelineError
from primorl.base.paths import MODEL, PARTITIONS
from primorl.config.params import Params
from tests.data.builders import episode, table
from tests.pipeline import tiny_policy
from tests.pipeline.training_project import charged, noise_of_model, states, trained, unopened
from tests.work.fitted_project import automatic, fit, quick, write_data


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    write_data()
    quick(monkeypatch)
    return small


def public_units(number: int) -> None:
    shutil.rmtree(PARTITIONS)
    write_data(public=number)


def test_only_what_is_left_open_gets_a_value_and_what_is_given_holds(data: Params) -> None:
    params = automatic(data, privacy__rounds=3, dynamics__hidden=[5])
    chosen, _ = fit(params)
    left = chosen.undecided - {"dynamics.degree"}  # which a network does not have
    assert {key.partition(".")[0] for key in left} == {"policy"}
    assert {"privacy.clipping_norm", "dynamics.degree"} & params.undecided
    assert (chosen.privacy.rounds, chosen.dynamics.hidden) == (3, (5,))
    assert chosen.dynamics.start == "public"
    assert (chosen.dynamics.ensemble_size, chosen.privacy.clipping_norm > 0) == (2, True)


def test_a_fit_reads_no_private_row(data: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    params = automatic(data)
    first = fit(params)
    shutil.rmtree(PARTITIONS / "private")
    unopened(monkeypatch)
    assert fit(params) == first


def test_a_round_that_hardly_anybody_joins_is_refused(data: Params) -> None:
    fit(automatic(data, privacy__sampling_probability=0.12))
    with pytest.raises(PipelineError, match=r"found 0\.1, at which less than one of 9 units"):
        fit(automatic(data, privacy__sampling_probability=0.1))


def test_what_cannot_learn_is_refused_before_the_ledger_is_asked(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise_of_model(monkeypatch, 20.0)
    noisy = {"privacy__sampling_probability": 1.0}
    params = automatic(data, **noisy)
    with monkeypatch.context() as patched:
        unopened(patched)
        with pytest.raises(PipelineError, match=r"cannot learn: .* Nothing was charged"):
            trained(params)
    assert charged(params) == []
    assert not MODEL.exists()
    anyway = automatic(data, **noisy, dynamics__train_anyway=True)
    trained(anyway)
    config = json.loads((MODEL / "config.json").read_text())
    assert config["can_learn"] == "no"
    assert any("cannot learn" in line for line in config["warnings"]), "it bars a trial"
    unopened(monkeypatch)
    trained(anyway)
    assert states(anyway) == ["committed"]


def test_the_noise_of_all_rounds_decides_about_a_network(
    data: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    public_units(3)
    given = {"privacy__sampling_probability": 0.5, "privacy__rounds": 16, "dynamics__hidden": [5]}
    chosen, _ = fit(automatic(data, **given))
    layers = ((4 + 1, 5), (5 + 1, 2 * 4 + 1))
    weights = chosen.dynamics.ensemble_size * sum(w * b for w, b in layers)
    for share, answer in ((0.199, "yes"), (0.201, "marginal"), (0.549, "marginal"), (0.551, "no")):
        noise = share * 0.5 * 9 * 4 / math.sqrt(weights)
        noise_of_model(monkeypatch, noise)
        assert fit(automatic(data, **given))[1].answer == answer
    noise_of_model(monkeypatch, 1.0)
    params = automatic(data)
    sizes = [fit(params, units=units)[0].dynamics.hidden for units in (100_000, 60, 35, 9)]
    assert (sizes[0], sizes[-1]) == ((64, 64), (16,)), "the largest that the noise leaves room for"
    assert sizes == sorted(sizes, key=lambda hidden: -sum(hidden))
    assert fit(params, units=5)[1].answer == "no"


def test_the_noise_in_predictions_decides_about_linear_heads(small: Params) -> None:
    tiny_policy.write_partitions(
        content := table([episode(9, i) for i in range(12)]), content.slice(0, 0)
    )
    asked = {
        "partition__public_fraction": 0,
        "privacy__target_epsilon": 1.0,
    }
    params = automatic(small, **asked, dynamics__model="linear", dynamics__degree=2)
    answers = {}
    for units in (20, 100, 3000):
        chosen, found = fit(params, units)
        assert chosen.dynamics.model == "linear"
        answers[units] = found.answer
    assert answers == {20: "no", 100: "marginal", 3000: "yes"}


def test_the_class_is_a_network_where_noise_and_rows_allow_one(small: Params) -> None:
    tiny_policy.write_partitions(
        content := table([episode(9, i) for i in range(12)]), content.slice(0, 0)
    )
    for units, epsilon, hidden, expected, answer in (
        (10**6, 1.0, None, "network", "yes"),
        (10**5, 0.002, None, "linear", "marginal"),  # instead of a network that may learn little
        (10**4, 0.01, (64, 64), "linear", "marginal"),  # instead of the network of so many rows
        (3000, 100.0, None, "linear", "yes"),  # too few rows
    ):
        asked = {"partition__public_fraction": 0, "privacy__target_epsilon": epsilon}
        if hidden is not None:
            asked["dynamics__hidden"] = hidden
        params = automatic(
            small,
            **asked,
        )
        left = replace(params, dynamics=replace(params.dynamics, model=None))
        chosen, found = fit(left, units)
        assert (chosen.dynamics.model, found.answer) == (expected, answer)
