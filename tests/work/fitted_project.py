"""A project whose params.yaml leaves to the data what can be fitted."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from primorl.base.paths import MANIFEST, PUBLIC
from primorl.config import params as params_module
from primorl.config.params import RULED, Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine import public
from primorl.work import model_rules
from primorl.work.model_rules import Fit
from tests.data.builders import INFO, episode
from tests.pipeline.training_project import write_partitions
from tests.projects import write_settings

PRIVACY = {"target_epsilon": 5.0, "delta": 1e-3}
COMMON = {"dynamics.ensemble_size": 2, "dynamics.log_variance_bounds": (-5.0, 3.0)}
COMMON |= {"dynamics.server_momentum": 0.6, "dynamics.server_averaging": 0.9}


def write_data(public: int = 10) -> None:
    write_partitions(
        [episode(1 + 7 * i % 30, i) for i in range(9)],
        [episode(20, 100 + i) for i in range(public)],
    )


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_rules, "_COMMON", COMMON)
    pooled = dataclasses.replace(public._POOLED, max_epochs=3)
    monkeypatch.setattr(public, "_POOLED", pooled)


def automatic(small: Params, **given: Any) -> Params:
    raw = params_module.plain(small) | {"dataset": INFO.dataset}
    write_settings(raw)
    raw["privacy"] |= PRIVACY
    raw["dynamics"] |= {"train_anyway": False, "early_stopping": {"every": 2, "patience": None}}
    for key, value in (dict.fromkeys(RULED) | given).items():
        *path, name = key.replace("__", ".").split(".")
        block = raw
        for part in path:
            block = block[part]
        block[name] = value
    own = {key: value for key, value in raw.items() if key not in ("chosen", "online")}
    Path("params.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    return params_module.load(Path("params.yaml"))


def fit(params: Params, units: int | None = None) -> tuple[Params, Fit]:
    manifest = Manifest.load(MANIFEST)
    if units is not None:
        manifest = dataclasses.replace(manifest, private_units=units)
    return model_rules.fit_model(params, manifest, UnitStore.open(PUBLIC))
