"""A project's settings in a folder of a test's own."""

from pathlib import Path
from typing import Any

import yaml

from primorl.config import params

ROOT = Path(__file__).resolve().parents[1]


def project_settings(dataset: str = "pendulum-replay") -> dict[str, Any]:
    """The repository's own settings with every ``auto`` decided, and what the dataset's file says as ``chosen``."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    return params.plain(params.parse(raw | {"dataset": dataset}, ROOT / "params.yaml"))


def write_settings(content: dict[str, Any], folder: Path = Path()) -> params.Params:
    """Write ``params.yaml`` and the dataset's file, both from `project_settings`; return them as a stage reads them."""
    (folder / "datasets").mkdir(exist_ok=True)
    own = {key: value for key, value in content.items() if key != "chosen"}
    for file, said in (
        ("params.yaml", own),
        (f"datasets/{content['dataset']}.yaml", content["chosen"]),
        ("datasets/defaults.yaml", {}),
    ):
        (folder / file).write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    return params.load(folder / "params.yaml")
