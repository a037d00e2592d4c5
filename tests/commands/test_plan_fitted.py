"""``primorl plan`` says what is fitted to the data, and whether it can learn."""

import shutil
from pathlib import Path

import pytest
import yaml

from primorl.config.params import Params
from primorl.project.paths import MANIFEST
from primorl.setup.model_work import make_plan
from primorl.trajectories.storage.manifest import Manifest
from tests.commands.conftest import Call
from tests.commands.test_data import logged
from tests.commands.test_plan import answered, said
from tests.pipeline.training_project import watch_private
from tests.setup.conftest import small
from tests.setup.fitted_project import automatic, fit, fits, quick, write_data

__all__ = ["small"]


def edit(file: str, **changes: object) -> None:
    content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    for key, value in changes.items():
        content[key] = content[key] | value if isinstance(value, dict) else value
    Path(file).write_text(yaml.safe_dump(content), encoding="utf-8")


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    """Nine private units and ten public ones; quick to fit and to account."""
    write_data()
    quick(monkeypatch)
    watch_private(monkeypatch, lambda: pytest.fail("private rows were opened"))
    return automatic(small, privacy__sampling_probability=1.0)


def test_text_and_json_say_what_is_fitted_and_whether_it_can_learn(data: Params, primorl: Call) -> None:
    """What training would take, to the last digit, although its verdict is no: to ask costs nothing.

    What the public split speaks against is said in its place.
    """
    lines, answer = said(primorl).splitlines(), answered(primorl)
    chosen, found = fit(data)
    assert (answer["can_learn"], answer["why"], answer["fitted"]) == (found.answer, found.reason, found.values)
    assert answer["rounds"] == chosen.privacy.rounds == make_plan(chosen, Manifest.load(MANIFEST)).rounds
    (values,) = (line for line in lines if "fitted to public facts of the data: " in line)
    assert f"dynamics.learning_rate {chosen.dynamics.learning_rate}, " in values
    assert "privacy.sampling_probability" not in values, "it is given"
    assert f"  can it learn? no: {found.reason}" in lines
    edit("datasets/small.yaml", bounds={"reward": [-16.5, -4.0]})
    (line,) = (each for each in said(primorl).splitlines() if "lie outside its bounds" in each)
    assert line.startswith("  can it learn? no: datasets/small.yaml: bounds.reward: ")


def test_without_environment_and_public_split_it_warns_of_values_that_count_the_whole_horizon(
    monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Twin: public recordings tell how long they go on."""
    quick(monkeypatch)
    for fraction, warned in ((0.0, True), (0.5, False)):
        logged(terminated=False, public_fraction=fraction)
        given = {"target_epsilon": None, "noise_multiplier": 5.0, "sampling_probability": 1.0, "rounds": 4}
        asked = {"normaliser": "bounds", "starts": True, "noise_multiplier": 30.0}
        edit("params.yaml", privacy=given | {"statistics": asked}, partition={"public_fraction": fraction})
        assert ("count every step up to the horizon (9)" in said(primorl)) is warned


def test_a_target_is_fitted_to_and_the_files_noise_is_in_use_where_rounds_are_looked_for(
    data: Params, primorl: Call
) -> None:
    """Without partitions, or with those of another dataset, a key that is to be fitted is one error."""
    chosen, _ = fit(data)
    solved = answered(primorl, "--target-epsilon 2")
    assert solved["rounds"] == chosen.privacy.rounds
    assert solved["noise_multiplier"] > 1.0
    assert "can_learn" not in solved, "it is not the run that params.yaml describes"
    assert len(fits()) == 2
    assert answered(primorl, "--target-epsilon 30 --solve rounds")["noise_multiplier"] == 1.0
    shutil.copy("datasets/small.yaml", "datasets/other.yaml")
    edit("params.yaml", dataset="other")
    refused = primorl("plan")[2]
    assert refused.startswith("error: params.yaml: dataset: found other, to which settings are to be fitted")
    assert refused.endswith("data/partitions holds small; run `dvc repro partition`\n")
    shutil.rmtree("data/partitions")
    missing = (
        "error: data/partitions: not there yet; run `dvc repro partition`, for privacy.rounds in params.yaml is fitted "
        "to the data; or give --rounds\n"
    )
    assert primorl("plan") == (1, "", missing)
    assert "can_learn" not in answered(primorl, "--rounds 4")
