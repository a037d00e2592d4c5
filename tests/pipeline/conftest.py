from pathlib import Path
from typing import Any

import pytest
import yaml

from primorl.config import params
from primorl.config.params import Params

ROOT = Path(__file__).parents[2]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """The project's own params.yaml with six tiny episodes, in an empty project."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    raw: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    raw["dataset"] = "pendulum-replay"
    raw["datasets"]["pendulum-replay"]["options"] |= {"episodes": 6, "num_envs": 3, "hidden": [8]}
    raw["datasets"]["pendulum-replay"]["termination"] = "learned"  # half of the tests' episodes terminate
    raw["partition"] = {"public_fraction": 0.5, "salt": "primorl"}
    Path("params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    return params.load(Path("params.yaml"))
