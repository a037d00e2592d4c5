"""What is found wrong before DVC removes the outputs of a stage."""

import shutil
from pathlib import Path

import pytest

from primorl.config import params
from primorl.project.errors import PipelineError
from tests.projects import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copytree(ROOT / "datasets", tmp_path / "datasets")
    return tmp_path


def edit(project: Path, old: str, new: str, file: str = "params.yaml") -> None:
    path = project / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def refusal(project: Path) -> str:
    with pytest.raises(PipelineError) as refused:
        params.load(project / "params.yaml")
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(f"{project}/", "")


@pytest.mark.parametrize("name", ["nope", "defaults", "../x", "a/b", "[a]", "3", "''"])
def test_an_unknown_dataset_gets_the_list_of_names(project: Path, name: str) -> None:
    edit(project, "dataset: pendulum-replay", f"dataset: {name}")
    message = refusal(project)
    assert message.startswith("params.yaml: dataset: found ")
    assert message.endswith("allowed are the files in datasets/: " + ", ".join(params.names(ROOT / "datasets")))


@pytest.mark.parametrize("key", ["bounds", "options", "horizon", "ingestion", "score", "suggested"])
def test_a_key_that_dvc_follows_and_a_dataset_lacks_is_named(project: Path, key: str) -> None:
    edit(project, f"\n{key}:", "\nother:", "datasets/pendulum-replay.yaml")
    message = refusal(project)
    assert message.startswith("datasets/pendulum-replay.yaml: ")
    assert f"{key}: missing" in message


def test_an_inline_dataset_is_told_where_it_goes(project: Path) -> None:
    edit(project, "seed: 0", "seed: 0\ndatasets:\n  my-log: {source: tabular}")
    assert refusal(project) == (
        "params.yaml: datasets: every dataset has a file of its own now; move the block datasets.my-log to "
        "datasets/my-log.yaml, rename settings to suggested there, and remove datasets here"
    )


@pytest.mark.parametrize("file", ["params.yaml", "datasets/pendulum-replay.yaml", "datasets/defaults.yaml"])
def test_alias_bombs_are_refused_in_every_file(project: Path, file: str) -> None:
    lines = ["b0: &b0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 10)}]" for n in range(1, 12)]
    with (project / file).open("a", encoding="utf-8") as out:
        out.write("\n".join(["", *lines, ""]))
    assert "aliases written out" in refusal(project)


@pytest.mark.parametrize("reserved", ["chosen", "origins"])
def test_names_of_our_own_are_no_keys(project: Path, reserved: str) -> None:
    edit(project, "seed: 0", f"seed: 0\n{reserved}: {{}}")
    assert f"{reserved}: unknown key" in refusal(project)
