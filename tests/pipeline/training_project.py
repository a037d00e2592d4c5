"""A project to train in: partitions, settings that train in a moment, and what the stage wrote and
charged.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from minari.data_collector import EpisodeBuffer as Episode

from pipeline import plan, train_model
from primorl.base.reporting import StageLog
from primorl.config import params as params_module
from primorl.config.params import Params
from primorl.data.storage.rows import PartReader
from primorl.privacy.ledger.history import Charge
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.work import clone_rules, model_rules, resolve
from primorl.work.data import open_to_charge
from primorl.work.jobs import MechanismNumbers
from tests.data.builders import table
from tests.pipeline import tiny_policy
from tests.projects import from_plain

OUTPUT = Path("models/dynamics")
PRIVACY = {"target_epsilon": 5.0, "shares": {"model": 0.4}, "sampling_probability": 0.5}
PRIVACY |= {"rounds": 4, "delta": 1e-3}
DYNAMICS = {"hidden": [8], "early_stopping": {"every": 2, "patience": None}}


class KilledError(BaseException):
    """Stands for a kill: no handler of a stage may see it."""


def edited(params: Params, **blocks: Any) -> Params:
    raw = params_module.plain(params)
    for name, changes in blocks.items():
        raw[name] = raw[name] | changes if isinstance(changes, dict) else changes
    return from_plain(raw)


def with_changes(small: Params, **blocks: Any) -> Params:
    own = {"privacy": PRIVACY, "dynamics": DYNAMICS}
    return edited(
        small, **blocks | {name: block | blocks.get(name, {}) for name, block in own.items()}
    )


def write_partitions(
    private: list[Episode], public: list[Episode], units: list[str] | None = None
) -> None:
    names = units or [f"a{i:03d}" for i in range(len(private))]
    others = [f"b{i:03d}" for i in range(len(public))]
    tiny_policy.write_partitions(
        table(private, units=names, names=names), table(public, units=others, names=others)
    )


def trained(params: Params) -> StageLog:
    run = StageLog()
    plan.body(params, run)
    train_model.body(params, run)
    return run


def noise_of_model(
    monkeypatch: pytest.MonkeyPatch, multiplier: float, queries: float = 14.0
) -> None:
    """Let a model's rounds have a known noise multiplier, whatever that costs."""

    def known(_: Params, mechanism: MechanismNumbers) -> MechanismNumbers:
        asked = dict.fromkeys(mechanism.queries, queries)
        return replace(mechanism, noise_multiplier=multiplier, queries=asked)

    monkeypatch.setattr(model_rules, "_with_noise", known)
    monkeypatch.setattr(resolve, "cost_of", lambda *_: 0.0)


def quick_clone(
    monkeypatch: pytest.MonkeyPatch, rounds: int, q: float, noise: Callable[[float], float]
) -> None:
    """Let a clone's network take few rounds; its noise multiplier at an ε costs no time."""
    solved = clone_rules.solve_noise

    def known(epsilon: float, delta: float, *sampled: Any) -> float:
        clone = sampled[:2] == (q, rounds)
        return noise(epsilon) if clone else solved(epsilon, delta, *sampled)

    for start in ("CLONE", "BEGUN"):
        monkeypatch.setattr(clone_rules, f"_{start}_ROUNDS", rounds)
        monkeypatch.setattr(clone_rules, f"_{start}_Q", q)
    monkeypatch.setattr(clone_rules, "solve_noise", known)


@contextmanager
def killed(at: int = 1, method: str = "release", where: Any = Mechanism) -> Iterator[None]:
    """Kill the block at a call of a method of the mechanism, or of another class or module."""
    original, calls = getattr(where, method), count(1)

    def dying(*arguments: Any, **named: Any) -> Any:
        if next(calls) == at:
            raise KilledError
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(where, method, dying)
        with pytest.raises(KilledError):
            yield


def watch_private(monkeypatch: pytest.MonkeyPatch, opened: Callable[[], object]) -> None:
    begin = PartReader.__init__

    def spying(self: PartReader, folder: Path, made_by: str) -> None:
        if folder.name == "private":
            opened()
        begin(self, folder, made_by)

    monkeypatch.setattr(PartReader, "__init__", spying)


def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_private(monkeypatch, lambda: pytest.fail("the private partition was opened"))


def charged(params: Params) -> list[Charge]:
    with closing(open_to_charge(params)) as ledger:
        ledger.verify()
        return ledger.charges()


def states(params: Params) -> list[str]:
    return [charge.state for charge in charged(params)]


def statement() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((OUTPUT / "privacy.json").read_text(encoding="utf-8"))
    return content


def steps_of(log: StageLog) -> dict[str, list[int]]:
    """Steps of a stage's numbers, by name."""
    found: dict[str, list[int]] = {}
    for name, _, step in log.metrics:
        found.setdefault(name, []).append(step)
    return found
