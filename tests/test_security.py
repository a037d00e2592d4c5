"""The house is safe to live in: nothing from outside runs, nothing leaves by a side door, no
password is told.
"""

import io
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pipeline import evaluate, ingest, optimize_policy, train_model
from primorl.base import PipelineError
from primorl.base.files import read_json, write_json
from primorl.base.records import to_json
from primorl.base.reporting import StageLog
from primorl.config import params
from primorl.release import bundle, contents
from primorl.release.build import release
from primorl.simulators.environments import reset_states
from tests.projects import ROOT
from tests.release.conftest import released, trained

__all__ = ["released", "trained"]

CANARY = "it-ran"


@pytest.fixture
def project(trained: Path, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_runs = shutil.ignore_patterns("mlflow.db")  # they belong to the other folder
    folder = shutil.copytree(trained, tmp_path / "project", ignore=without_runs)
    shutil.copytree(released, folder / "out")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


DANGERS = re.compile(
    r"""^\s*(import|from)\ (_?c?pickle|cPickle|dill|cloudpickle|joblib|shelve|marshal|code|pty)\b
    |(?<![\w.])(eval|exec|compile|__import__)\(
    |\b(os\.(system|popen)|torch\.(load|save|jit\.load)|yaml\.(full_|unsafe_)?load(_all)?|read_pickle)\(
    |\bmlflow\.(pyfunc|pytorch)\.load_model\b
    |^\s*from\ (os|torch|yaml)\ import\ (.*\W)?(system|popen|save|(full_|unsafe_)?load|load_all)\b
    |\b(C?Full|C?Unsafe|C)?Loader\b
    |\b(allow_pickle|shell)=True\b""",
    re.MULTILINE | re.VERBOSE,
)


def test_no_module_can_turn_data_into_code() -> None:
    files = [
        file
        for package in ("primorl", "pipeline")
        for file in sorted((ROOT / package).rglob("*.py"))
    ]
    assert len(files) > 50
    assert [str(file) for file in files if DANGERS.search(file.read_text(encoding="utf-8"))] == []
    for planted in (
        "import pickle",
        "def f(x):\n    return eval(x)",
        "torch.load('x', weights_only=True)",
        "class L(yaml.FullLoader): pass",
        "subprocess.run(x, shell=True)",
    ):
        assert DANGERS.search(planted), planted


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return exec, (f"open({CANARY!r}, 'w').close()",)


TORCH_ARCHIVE = io.BytesIO()
torch.save({"weights": Bomb()}, TORCH_ARCHIVE)
PAYLOADS = {
    "pickle": pickle.dumps(Bomb()),
    "text pickle": pickle.dumps(Bomb(), protocol=0),
    "torch archive": TORCH_ARCHIVE.getvalue(),
    "yaml object": f"!!python/object/apply:builtins.exec [\"open('{CANARY}', 'w')\"]".encode(),
    "python": f"open({CANARY!r}, 'w').close()\n".encode(),
    "deep json": b'{"a":' * 100_000,
    "deep yaml": b"[" * 20_000,
    "infinite json": b'{"format": 1, "observation_size": 1e999, "hidden": [1e999]}',
    "list": b"[]",
    "huge header": b"\xff" * 64,
    "empty": b"",
}


def run(stage: ModuleType) -> None:
    stage.body(params.load(), StageLog())


STATED = ("config.json", "privacy.json")
PARTITIONS = ("data/partitions/manifest.json", "data/partitions/public/rows.parquet")
OF_STAGES = {
    ingest: [f"data/raw/small-v0/data/{name}" for name in ("metadata.json", "main_data.hdf5")],
    train_model: [*PARTITIONS, ".primorl/checkpoints/*.safetensors"],
    optimize_policy: [f"models/dynamics/{name}" for name in ("model.safetensors", *STATED)],
    evaluate: [
        f"models/policy/{name}" for name in ("policy.safetensors", "epochs.safetensors", *STATED)
    ],
}
READERS: dict[str, Callable[[], object]] = {"params.yaml": params.load}
READERS |= {name: partial(run, stage) for stage, names in OF_STAGES.items() for name in names}
READERS["metrics/private_evaluation.json"] = partial(run, evaluate)
READERS["metrics/summary.json"] = lambda: release(Path("new"), params.load())
for each in (*contents.POLICY, contents.LEDGER, contents.CARD, contents.MANIFEST):
    READERS[f"out/{each}"] = partial(bundle.verify, Path("out"))


@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file_runs_nothing_and_is_one_clear_error(project: Path, name: str) -> None:
    (path,) = project.glob(name)
    for payload, content in PAYLOADS.items():
        path.write_bytes(content)
        if name.startswith("out/") and not name.endswith(contents.MANIFEST):
            out = project / "out"
            write_json(out / contents.MANIFEST, to_json(contents.make_manifest(out)))
        with pytest.raises(PipelineError) as refused:
            READERS[name]()
        said = str(refused.value)
        assert path.name in said or str(path.parent.relative_to(project)) in said, payload
        assert not any(wrong in said for wrong in ("\n", CANARY)), payload
        assert not Path(CANARY).exists(), payload


def test_a_models_config_cannot_name_a_module_to_import(project: Path) -> None:
    (project / "trap.py").write_text(f"open({CANARY!r}, 'w').close()", encoding="utf-8")
    path = project / "models/dynamics/config.json"
    write_json(path, read_json(path) | {"environment": "trap:Pendulum-v1"})
    with pytest.raises(
        PipelineError,
        match=r"config.json: found variant 'private' for environment 'trap:Pendulum-v1'",
    ):
        run(optimize_policy)
    assert not Path(CANARY).exists()
    reset_states("trap:Pendulum-v1", 1, seed=0)  # the twin: the trap would have sprung
    del sys.modules["trap"]
    assert Path(CANARY).exists()
