"""``primorl plan`` says what is fitted to the data, and whether it can learn."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from primorl.commands import main as cli
from primorl.config.params import Params
from primorl.project.paths import MANIFEST
from primorl.setup.model_work import make_plan
from primorl.trajectories.storage.manifest import Manifest
from tests.commands.test_data import logged
from tests.commands.test_plan import answered, said
from tests.pipeline.training_project import watch_private
from tests.setup.conftest import small
from tests.setup.fitted_project import automatic, fit, fits, quick, write_data

__all__ = ["small"]


@pytest.fixture
def data(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    """Nine private units and ten public ones; quick to fit and to account."""
    write_data()
    quick(monkeypatch)
    watch_private(monkeypatch, lambda: pytest.fail("private rows were opened"))
    return automatic(small, privacy__sampling_probability=1.0)


def test_text_and_json_say_what_is_fitted_and_whether_it_can_learn(
    data: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    """What training would take, to the last digit, although its verdict is no: to ask costs nothing."""
    lines, answer = said(capsys).splitlines(), answered(capsys)
    chosen, found = fit(data)
    assert (answer["can_learn"], answer["why"], answer["fitted"]) == (found.answer, found.reason, found.values)
    assert answer["rounds"] == chosen.privacy.rounds == make_plan(chosen, Manifest.load(MANIFEST)).rounds
    (values,) = (line for line in lines if "fitted to public facts of the data: " in line)
    assert f"dynamics.learning_rate {chosen.dynamics.learning_rate}, " in values
    assert "privacy.sampling_probability" not in values, "it is given"
    assert f"  can it learn? no: {found.reason}" in lines


def test_what_the_public_split_speaks_against_is_said_in_place_of_the_verdict(
    data: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training would refuse in the same words."""
    file = Path("datasets/small.yaml")
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["bounds"]["reward"] = [-16.5, -4.0]
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    (line,) = (each for each in said(capsys).splitlines() if "lie outside its bounds" in each)
    assert line.startswith("  can it learn? no: datasets/small.yaml: bounds.reward: ")
    assert answered(capsys)["can_learn"] == "no"


def test_without_environment_and_public_split_it_warns_of_values_that_count_the_whole_horizon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twin: public recordings tell how long they go on."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    quick(monkeypatch)
    for fraction, warned in ((0.0, True), (0.5, False)):
        logged(terminated=False, public_fraction=fraction)
        params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
        params["privacy"] |= {"target_epsilon": None, "noise_multiplier": 5.0, "sampling_probability": 1.0, "rounds": 4}
        params["privacy"]["statistics"] |= {"normaliser": "bounds", "starts": True}
        params["partition"]["public_fraction"] = fraction
        Path("params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
        assert ("count every step up to the horizon (9)" in said(capsys)) is warned


def test_a_target_is_fitted_to_and_the_files_noise_is_in_use_where_rounds_are_looked_for(
    data: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen, _ = fit(data)
    solved = answered(capsys, "--target-epsilon", "2")
    assert solved["rounds"] == chosen.privacy.rounds
    assert solved["noise_multiplier"] > 1.0
    assert "can_learn" not in solved, "it is not the run that params.yaml describes"
    assert len(fits()) == 2
    assert answered(capsys, "--target-epsilon", "30", "--solve", "rounds")["noise_multiplier"] == 1.0


def test_without_partitions_a_key_that_is_to_be_fitted_is_one_error(
    data: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twin: given, it is answered."""
    shutil.rmtree("data/partitions")
    assert cli.main(["plan"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "error: data/partitions: not there yet; run `dvc repro partition`, for privacy.rounds in params.yaml is fitted "
        "to the data; or give --rounds"
    )
    assert cli.main(["plan", "--rounds", "4", "--json"]) == 0
    assert "can_learn" not in json.loads(capsys.readouterr().out)


def test_partitions_of_another_dataset_are_one_error(data: Params, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("params.yaml")
    file.write_text(file.read_text(encoding="utf-8").replace("dataset: small", "dataset: other"), encoding="utf-8")
    shutil.copy("datasets/small.yaml", "datasets/other.yaml")
    assert cli.main(["plan"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: params.yaml: dataset: found other, to which settings are to be fitted")
    assert line.endswith("data/partitions holds small; run `dvc repro partition`")
