"""The house is safe to live in: nothing from outside runs, nothing leaves by a side door, no password is told."""

import ast
import io
import json
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipeline import evaluate, ingest, optimize_policy
from primorl.commands import main as cli
from primorl.config import params
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.training import Released
from primorl.privacy.ledger import checkpoint
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.project.records import to_json
from primorl.release import bundle, contents
from primorl.release.build import release
from primorl.simulators.environments import reset_states
from primorl.tracking import stage_run
from primorl.training.training import TrainingState
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.store import UnitStore
from tests.audit_dependencies import verdict
from tests.pipeline.tiny_policy import RememberingRun
from tests.projects import inside
from tests.release.released_project import EPISODES, run_stages, tiny_params

ROOT = Path(__file__).resolve().parent.parent
CANARY = "it-ran"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "project"
    run_stages(folder, tiny_params(), EPISODES)
    with inside(folder):
        release(Path("out"), params.load(Path("params.yaml")), void_ok=False)
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    shutil.copytree(trained, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    return tmp_path / "project"


# What the code may call

_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "code", "pty"}
_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "torch.save", "torch.jit.load"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "pd.read_pickle", "pandas.read_pickle"),
    *("mlflow.pyfunc.load_model", "mlflow.pytorch.load_model"),
}
_LOADERS = {"Loader", "FullLoader", "UnsafeLoader", "CLoader", "CFullLoader", "CUnsafeLoader"}


def dangers(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [f"line {node.lineno}: imports {name}" for name in names if name.partition(".")[0] in _MODULES]
            if getattr(node, "module", None) in ("os", "torch", "yaml"):
                whole = [f"{getattr(node, 'module', '')}.{alias.name}" for alias in node.names]
                found += [f"line {node.lineno}: imports {name}" for name in whole if name in _CALLS]
        elif isinstance(node, ast.Attribute) and node.attr in _LOADERS:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            risky = {keyword.arg for keyword in node.keywords if ast.unparse(keyword.value) == "True"}
            if called in _CALLS or risky & {"allow_pickle", "shell"}:
                found.append(f"line {node.lineno}: {called}")
    return found


def test_no_module_can_turn_data_into_code() -> None:
    found = {
        file.relative_to(ROOT).as_posix(): dangers(file.read_text(encoding="utf-8"))
        for package in ("primorl", "pipeline")
        for file in sorted((ROOT / package).rglob("*.py"))
    }
    assert len(found) > 50
    assert {file: places for file, places in found.items() if places} == {}


def test_the_scan_sees_a_planted_danger() -> None:
    for planted in (
        "import pickle",
        "from joblib import load",
        "def f(x):\n    return eval(x)",
        "import torch\ntorch.load('x', weights_only=True)",
        "from torch import load",
        "import yaml\nclass L(yaml.FullLoader): pass",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import subprocess\nsubprocess.run(x, shell=True)",
    ):
        assert dangers(planted), planted


# What lies in the outputs


def is_pickle(content: bytes) -> bool:
    try:
        NothingAllowed(content).load()
    except ForbiddenError:
        return True
    except Exception:
        return False
    return True


class ForbiddenError(Exception):
    pass


class NothingAllowed(pickle.Unpickler):
    def __init__(self, content: bytes):
        super().__init__(io.BytesIO(content))

    def find_class(self, module: str, name: str) -> Any:
        raise ForbiddenError


def test_no_output_is_a_pickle_or_an_archive_of_them(trained: Path) -> None:
    outputs = [file for folder in ("models", "metrics", "plots", "out") for file in (trained / folder).rglob("*.*")]
    outputs += [file for file in (trained / ".primorl").rglob("*") if file.is_file() and file.name != "secret"]
    assert len(outputs) > 20
    assert [file for file in outputs if zipfile.is_zipfile(file) or is_pickle(file.read_bytes())] == []


def test_the_search_for_pickles_finds_them() -> None:
    assert is_pickle(pickle.dumps({"weights": [1.0]}))
    assert is_pickle(pickle.dumps(Bomb(), protocol=0))
    assert not is_pickle(b"{}")


# What a stranger puts in a file's place


class Bomb:
    """Runs code when unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return exec, (f"open({CANARY!r}, 'w').close()",)


def torch_archive() -> bytes:
    file = Path("bomb.pt")
    torch.save({"weights": Bomb()}, file)
    content = file.read_bytes()
    file.unlink()
    return content


PAYLOADS: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps(Bomb()),
    "text pickle": lambda: pickle.dumps(Bomb(), protocol=0),
    "torch archive": torch_archive,
    "yaml object": lambda: f"!!python/object/apply:builtins.exec [\"open('{CANARY}', 'w')\"]".encode(),
    "python": lambda: f"open({CANARY!r}, 'w').close()\n".encode(),
    "deep json": lambda: b'{"a":' * 100_000,
    "deep yaml": lambda: b"[" * 20_000,
    "infinite json": lambda: b'{"format": 1, "observation_size": 1e999, "action_size": 1e999, "hidden": [1e999]}',
    "list": lambda: b"[]",
    "huge header": lambda: b"\xff" * 64,
    "empty": lambda: b"",
}


def read_checkpoint() -> None:
    (file,) = Path(".primorl/checkpoints").glob("*.safetensors")
    shape = Architecture(3, 1, 3, (8,), -10.0, 0.5)
    checkpoint.read_checkpoint(file, partial(TrainingState.restore, shape), file.stem)


def load_params() -> params.Params:
    return params.load(Path("params.yaml"))


READERS: dict[str, Callable[[], object]] = {
    "params.yaml": load_params,
    "data/raw/small-v0/data/metadata.json": lambda: ingest.body(load_params(), RememberingRun()),  # type: ignore[arg-type]
    "data/raw/small-v0/data/main_data.hdf5": lambda: ingest.body(load_params(), RememberingRun()),  # type: ignore[arg-type]
    "data/partitions/manifest.json": lambda: Manifest.load(Path("data/partitions/manifest.json")),
    "data/partitions/public/part-00000.parquet": lambda: UnitStore.open(Path("data/partitions/public")),
    "models/dynamics/model.safetensors": lambda: GaussianEnsemble.load(Path("models/dynamics"), torch.device("cpu")),
    "models/dynamics/config.json": lambda: GaussianEnsemble.load(Path("models/dynamics"), torch.device("cpu")),
    "models/dynamics/privacy.json": lambda: Released.read(
        Path("models/dynamics"), variant="private", environment="Pendulum-v1"
    ),
    "models/policy/policy.safetensors": lambda: DeterministicPolicy.load(Path("models/policy")),
    "models/policy/epochs.safetensors": lambda: DeterministicPolicy.load_epochs(Path("models/policy")),
    "models/policy/config.json": lambda: DeterministicPolicy.load(Path("models/policy")),
    "models/policy/privacy.json": lambda: evaluate.body(load_params(), RememberingRun()),  # type: ignore[arg-type]
    "metrics/summary.json": lambda: release(Path("new"), load_params(), void_ok=False),
    "metrics/private_evaluation.json": lambda: evaluate.body(load_params(), RememberingRun()),  # type: ignore[arg-type]
    ".primorl/checkpoints/*.safetensors": read_checkpoint,
    **{f"out/{name}": lambda: bundle.check(Path("out"), void_ok=False) for name in sorted(contents.FILES)},
    f"out/{contents.MANIFEST}": lambda: bundle.check(Path("out"), void_ok=False),
}


@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file_runs_nothing_and_is_one_clear_error(project: Path, name: str) -> None:
    (path,) = project.glob(name)
    before = set(sys.modules)
    for payload, content in PAYLOADS.items():
        path.write_bytes(content())
        if name.startswith("out/") and not name.endswith(contents.MANIFEST):
            write_json(project / "out" / contents.MANIFEST, to_json(contents.manifest_of(project / "out")))
        with pytest.raises(PipelineError) as refused:
            READERS[name]()
        assert "\n" not in str(refused.value), payload
        assert CANARY not in str(refused.value), payload
        assert not Path(CANARY).exists(), payload
    assert {module for module in set(sys.modules) - before if module.startswith("joblib")} == set()


def test_a_datasets_own_description_of_its_environment_builds_nothing(project: Path) -> None:
    path = project / "data/raw/small-v0/data/metadata.json"
    metadata = {key: value for key, value in json.loads(path.read_text()).items() if not key.endswith("_space")}
    entry = {"entry_point": "subprocess:call", "kwargs": {"args": ["touch", CANARY]}, "id": "Evil-v0"}
    metadata["env_spec"] = json.dumps(json.loads(metadata["env_spec"]) | entry)
    path.write_text(json.dumps(metadata), encoding="utf-8")
    ingest.body(load_params(), RememberingRun())  # type: ignore[arg-type]
    assert not Path(CANARY).exists()


def test_a_models_config_cannot_name_a_module_to_import(project: Path) -> None:
    (project / "trap.py").write_text(f"open({CANARY!r}, 'w').close()", encoding="utf-8")
    path = project / "models/dynamics/config.json"
    write_json(path, read_json(path) | {"environment": "trap:Pendulum-v1"})
    with pytest.raises(PipelineError, match=r"config.json: found variant 'private' for environment 'trap:Pendulum-v1'"):
        optimize_policy.body(load_params(), RememberingRun())  # type: ignore[arg-type]
    assert not Path(CANARY).exists()


def test_the_trap_would_have_sprung(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "trap.py").write_text(f"open({CANARY!r}, 'w').close()", encoding="utf-8")
    reset_states("trap:Pendulum-v1", 1, seed=0)
    monkeypatch.delitem(sys.modules, "trap")
    assert Path(CANARY).exists()


# YAML and paths


# Passwords in addresses

PASSWORD = "hush-9281"
ADDRESS = f"postgresql+psycopg://ana:{PASSWORD}@127.0.0.1:1/x?password={PASSWORD}"


def everything(project: Path) -> Iterator[bytes]:
    for file in project.rglob("*"):
        if file.is_file() and file.name != "params.yaml":
            yield file.read_bytes()


@pytest.mark.parametrize("block", ["ledger", "tracking"])
def test_a_password_in_an_address_is_told_nowhere(
    project: Path, block: str, capsys: pytest.CaptureFixture[str], empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(empty_store, project / "mlflow.db")
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)  # its own take minutes
    raw = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    raw[block]["uri" if block == "tracking" else "url"] = ADDRESS
    (project / "params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    chosen = load_params()
    if block == "tracking":
        with pytest.raises(PipelineError) as refused, stage_run("evaluate", chosen):
            pass
    else:
        with stage_run("optimize_policy", chosen) as run:
            optimize_policy.body(chosen, run)
        with pytest.raises(PipelineError) as refused:
            release(Path("new"), chosen, void_ok=False)
    assert PASSWORD not in str(refused.value)
    assert "127.0.0.1" in str(refused.value)
    cli.main(["release", "new"])
    captured = capsys.readouterr()
    assert PASSWORD not in captured.out + captured.err
    assert not any(PASSWORD.encode() in content for content in everything(project))


# The dependency audit


def listed(*dependencies: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(dependencies), "fixes": []})


CLEAN = {"name": "six", "version": "1.17.0", "vulns": []}
SKIPPED = {"name": "torch", "skip_reason": "not found"}
BAD = {"name": "jinja2", "version": "3.1.2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.3"], "aliases": []}]}


@pytest.mark.parametrize(
    ("output", "status", "says"),
    [
        (listed(CLEAN, CLEAN), 0, "audit: 2 of 2 pinned packages looked up, no known vulnerability"),
        (listed(CLEAN, SKIPPED), 0, "audit: 1 of 2 pinned packages looked up, no known vulnerability"),
        (listed(CLEAN, BAD), 1, "jinja2 3.1.2: PYSEC-1 (fixed in 3.1.3)"),
        (listed(SKIPPED, SKIPPED), 0, "NOT AUDITED"),
        ("", 0, "NOT AUDITED"),
        ("Traceback", 0, "NOT AUDITED"),
    ],
)
def test_an_audit_that_looked_nothing_up_never_passes_for_a_clean_one(output: str, status: int, says: str) -> None:
    assert verdict(output)[0] == status
    assert says in verdict(output)[1]
