"""What DVC makes of the settings: it follows the chosen dataset, and a change is one changed line."""

import subprocess
from pathlib import Path

import pytest
import yaml

from primorl.config.params import names

ROOT = Path(__file__).resolve().parent.parent
TINY = """stages:
  make:
    cmd: python -c "open('made.txt', 'a').write('x')"
    params:
    - dataset
    - policy
    - datasets/${dataset}.yaml:
      - options
      - suggested.privacy
    - datasets/defaults.yaml:
      - policy
    outs:
    - made.txt:
        persist: true
"""
IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost")


def run(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def test_dvc_follows_the_chosen_dataset_and_changes_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc.cli import main as dvc  # in this process: starting eight takes as long as all they do

    monkeypatch.chdir(tmp_path)
    run(tmp_path, "git", "init", "--quiet")
    assert dvc(["init", "--quiet"]) == 0
    (tmp_path / "datasets").mkdir()
    for name in ("params.yaml", *(f"datasets/{file.name}" for file in (ROOT / "datasets").glob("*.yaml"))):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "dvc.yaml").write_text(TINY, encoding="utf-8")
    run(tmp_path, "git", "add", "--all")
    run(tmp_path, "git", *IDENTITY, "commit", "--quiet", "-m", "tiny")
    runs = 0
    for change, files in (
        ("seed=3", ()),  # nothing that the stage follows
        ("policy.discount=0.98", ("params.yaml",)),
        ("dataset=csv-log", ("params.yaml",)),
        ("datasets/csv-log.yaml:options.sorted=true", ("datasets/csv-log.yaml",)),
        ("datasets/csv-log.yaml:suggested.privacy.target_epsilon=0.7", ("datasets/csv-log.yaml",)),
        ("datasets/defaults.yaml:policy.discrete_target_entropy=0.4", ("datasets/defaults.yaml",)),
        # Not followed: another block of the chosen dataset, and a dataset that is not chosen
        (
            "datasets/csv-log.yaml:suggested.partition.public_fraction=0.2 "
            "datasets/pendulum-replay.yaml:options.episodes=7",
            (),
        ),
    ):
        before = {file: (tmp_path / file).read_text(encoding="utf-8") for file in ("params.yaml", *files)}
        words = [word for part in change.split() for word in ("--set-param", part)]
        assert dvc(["exp", "run", "--quiet", *words]) == 0
        runs += bool(files) or change == "seed=3"  # the first run is of everything
        assert len((tmp_path / "made.txt").read_text(encoding="utf-8")) == runs, change
        for file in files:
            old, new = before[file].splitlines(), (tmp_path / file).read_text(encoding="utf-8").splitlines()
            assert len(old) == len(new), change
            assert sum(a != b for a, b in zip(old, new, strict=True)) == 1, change


@pytest.mark.parametrize(
    "file", ["params.yaml", *(f"datasets/{name}.yaml" for name in (*names(ROOT / "datasets"), "defaults"))]
)
def test_settings_are_written_in_dvcs_style(file: str, tmp_path: Path) -> None:
    from dvc.utils.hydra import apply_overrides

    copy, old = tmp_path / "copy.yaml", (ROOT / file).read_text(encoding="utf-8").splitlines()
    copy.write_bytes((ROOT / file).read_bytes())
    key = next(name for name in ("seed", "environment", "partition.public_fraction") if has_key(file, name))
    apply_overrides(str(copy), [f"{key}=77"])
    new = copy.read_text(encoding="utf-8").splitlines()
    assert len(old) == len(new)
    assert sum(a != b for a, b in zip(old, new, strict=True)) == 1


def has_key(file: str, key: str) -> bool:
    value = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    for part in key.split("."):
        if part not in value:
            return False
        value = value[part]
    return True
