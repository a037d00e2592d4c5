"""Privacy statements to write beside a model or policy, and records made of plain content."""

import json
from dataclasses import replace
from typing import Any, TypeVar

from primorl.base.records import adapter
from primorl.model.architecture import ModelConfig
from primorl.policy.config import PolicyConfig
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.privacy.statement import Accountant, SpentOnDataset, Statement

Content = TypeVar("Content")


def record_of(kind: type[Content], content: dict[str, Any]) -> Content:
    """The record in a file with this content."""
    plain = {key: value for key, value in content.items() if key != "format"}
    unchecked: Any = kind
    made: Content = adapter(unchecked).validate_json(json.dumps(plain))
    return made


def _of_rounds(units: int, noise_multiplier: float) -> Statement:
    clip = EnsembleClip(0.35, "flat", 3, 3)
    rounds: Any = (0.1, clip, noise_multiplier, 150, 1e-5)
    return Mechanism(units, "trajectory", *rounds).statement(
        dataset_fingerprint="d473" * 16,
        public_assumptions=[f"the number of private units, {units}"],
        termination="none",
    )


OF_TRAINING = replace(
    _of_rounds(2970, 4.083),
    epsilon=1.19,
    epsilon_rdp=1.31,
    accountant=Accountant(name="dp_accounting.pld.PLDAccountant", version="0.1"),
    charge="5f0c1d2e",
    spent_on_dataset=SpentOnDataset(epsilon=2.5, delta=1e-5, charges=3),
)
PRIVATE = OF_TRAINING.to_json()
WITHOUT_NOISE = _of_rounds(9, 0.0)
_UNKNOWN = SpentOnDataset(epsilon=None, delta=1e-5, charges=1)
NOT_PRIVATE = WITHOUT_NOISE.with_payment("feedbeef", _UNKNOWN).to_json()

_SIZES: dict[str, Any] = {"observation_size": 3, "action_size": 1, "hidden": [64]}
_SIZES |= {"discrete_actions": False, "environment": "Pendulum-v1", "variant": "private"}
_MODEL: dict[str, Any] = {
    "members": 3,
    "log_variance_low": -9.0,
    "log_variance_high": 1.0,
    "rounds": 150,
}
_MODEL |= {"reward_low": -1.0, "reward_high": 0.0, "termination": "none"}
OF_MODEL = record_of(ModelConfig, _SIZES | _MODEL)
OF_POLICY = record_of(PolicyConfig, _SIZES | {"policy": "models/policy", "epochs": 1})
