"""What DVC makes of the settings: it follows the chosen dataset, and a change is one
changed line.
"""

from pathlib import Path

import pytest
import yaml
from dvc.cli import main as dvc  # in this process: starting each takes as long as all they do
from dvc.utils.hydra import apply_overrides

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


def test_dvc_follows_the_chosen_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dvc(["init", "--quiet", "--no-scm"]) == 0
    Path("datasets").mkdir()
    for name in (
        "params.yaml",
        *(f"datasets/{file.name}" for file in (ROOT / "datasets").glob("*.yaml")),
    ):
        Path(name).write_bytes((ROOT / name).read_bytes())
    Path("dvc.yaml").write_text(TINY, encoding="utf-8")
    runs = 0
    log, replay = "datasets/csv-log.yaml", "datasets/pendulum-replay.yaml"
    unseen = [
        "params.yaml seed=4",
        f"{log} suggested.partition.public_fraction=0.2",
        f"{replay} options.episodes=7",
    ]
    for changes, followed in (
        (["params.yaml seed=3"], True),  # the first run
        (["params.yaml policy.discount=0.98"], True),
        (["params.yaml dataset=csv-log"], True),
        ([f"{log} options.sorted=true"], True),
        ([f"{log} suggested.privacy.total_epsilon=0.7"], True),
        (["datasets/defaults.yaml policy.discrete_target_entropy=0.4"], True),
        (unseen, False),
    ):
        for file, change in map(str.split, changes):
            apply_overrides(file, [change])
        assert dvc(["repro", "--quiet"]) == 0
        runs += followed
        assert len(Path("made.txt").read_text(encoding="utf-8")) == runs, changes


FILES = (
    "params.yaml",
    *(f"datasets/{name}.yaml" for name in (*names(ROOT / "datasets"), "defaults")),
)


@pytest.mark.parametrize("file", FILES)
def test_a_change_by_dvc_is_one_changed_line(file: str, tmp_path: Path) -> None:
    copy, text = tmp_path / "copy.yaml", (ROOT / file).read_text(encoding="utf-8")
    copy.write_text(text, encoding="utf-8")
    known = yaml.safe_load(text)
    key = next(
        (name for name in ("seed", "environment") if name in known), "partition.public_fraction"
    )
    apply_overrides(str(copy), [f"{key}=77"])
    old, new = text.splitlines(), copy.read_text(encoding="utf-8").splitlines()
    assert sum(a != b for a, b in zip(old, new, strict=True)) == 1
