"""A project to train in: partitions, settings that train in a moment, and what the stage wrote and
charged.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from minari.data_collector import EpisodeBuffer as Episode

from pipeline import plan, train_model
from primorl.base.files import BEHAVIOUR, MODEL, PARTITIONS, write_json
from primorl.base.reporting import StageLog
from primorl.config import params
from primorl.config.params import Params
from primorl.data.identity.membership import Membership, project_secret, secret_check
from primorl.data.storage.rows import PartReader, PartWriter
from primorl.data.storage.schema import DatasetInfo, Manifest
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from primorl.policy.config import write_nothing
from primorl.privacy.ledger.history import Charge
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.work import resolve, rules
from primorl.work.data import open_to_charge
from primorl.work.jobs import MechanismNumbers, solve_noise
from tests.data.builders import INFO, SPACES, table
from tests.mechanisms import KilledError
from tests.projects import from_plain

OUTPUT = Path("models/dynamics")
PRIVACY = {"target_epsilon": 5.0, "shares": {"model": 0.4}, "sampling_probability": 1.0}
PRIVACY |= {"rounds": 4, "delta": 1e-3}
DYNAMICS = {"hidden": [8], "early_stopping": {"every": 2, "patience": None}}


def edited(own: Params, /, **blocks: Any) -> Params:
    raw = params.plain(own)
    for name, changes in blocks.items():
        raw[name] = raw[name] | changes if isinstance(changes, dict) else changes
    return from_plain(raw)


def with_changes(small: Params, **blocks: Any) -> Params:
    own = {"privacy": PRIVACY, "dynamics": DYNAMICS}
    return edited(
        small, **blocks | {name: block | blocks.get(name, {}) for name, block in own.items()}
    )


def write_partitions(private: Sequence[Episode], public: Sequence[Episode] = ()) -> None:
    names = [f"a{i:03d}" for i in range(len(private))]
    names += [f"b{i:03d}" for i in range(len(public))]
    content = table([*private, *public], names=names)
    own = pc.less(content["unit_id"], "b")
    write_tables(content.filter(own), content.filter(pc.invert(own)))


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

    monkeypatch.setattr(rules, "_with_noise", known)
    monkeypatch.setattr(resolve, "cost_of", lambda *_: 0.0)


def quick_clone(
    monkeypatch: pytest.MonkeyPatch, rounds: int, q: float, noise: Callable[[float], float]
) -> None:
    """Let a clone's network take few rounds; its noise multiplier at an ε costs no time."""

    def known(epsilon: float, delta: float, *sampled: Any) -> float:
        clone = sampled[:2] == (q, rounds)
        return noise(epsilon) if clone else solve_noise(epsilon, delta, *sampled)

    for name in ("_CLONE_FROM_PUBLIC", "_CLONE_OF_NETWORK", "_CLONE_OF_LOGITS"):
        quick = replace(getattr(rules, name), rounds=rounds, q=q)
        monkeypatch.setattr(rules, name, quick)
    monkeypatch.setattr(rules, "solve_noise", known)


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
    ledger = open_to_charge(params)
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


TINY: dict[str, Any] = {
    "epochs": 2,
    "updates_per_epoch": 6,
    "rollout_every": 4,
    "rollout_batch": 8,
    "horizon": 5,
}
TINY |= {"buffer_size": 100, "hidden": [8, 8], "batch_size": 40}


def tiny(small: Params, variant: str = "private", **policy: Any) -> Params:
    return edited(small, dynamics={"variant": variant}, policy=TINY | policy)


def write_model(
    statement: dict[str, Any],
    *,
    variant: str = "private",
    actions: int | None = None,
    termination: str = "none",
) -> GaussianEnsemble:
    size = actions or 1
    shape = Architecture(3, size, 2, (8,), -10.0, 0.5, termination == "learned")
    low, high = SPACES.action_low, SPACES.action_high
    if actions is not None:
        low, high = (0.0,) * actions, (1.0,) * actions
    bounds = Bounds(
        torch.tensor(SPACES.observation_low),
        torch.tensor(SPACES.observation_high),
        torch.tensor(low),
        torch.tensor(high),
        reward_low=-17.0,
        reward_high=0.0,
        discrete_actions=actions is not None,
    )
    mean, scale = torch.tensor([0.1, 0.2, 0.3] + [0.0] * size), torch.ones(3 + size)
    scale[:3] = torch.tensor([0.7, 0.7, 3.0])
    normaliser = Normaliser(mean, scale, torch.zeros(4), torch.ones(4))
    ensemble = GaussianEnsemble(shape, shape.initial_weights(0), normaliser, bounds, termination)
    MODEL.mkdir(parents=True, exist_ok=True)
    ensemble.save(MODEL, environment="Pendulum-v1", variant=variant, rounds=1)
    write_json(MODEL / "privacy.json", statement)
    write_nothing(BEHAVIOUR)
    return ensemble


def write_tables(private: pa.Table, public: pa.Table, info: DatasetInfo | None = None) -> None:
    info, counts = info or INFO, []
    for content, name, units in (
        (private, "private", "units.bin"),
        (public, "public", "public_units.bin"),
    ):
        write_partition(PARTITIONS / name, content, info)
        members = Membership(
            project_secret(),
            info.population,
            by_rows=name == "private" or info.duplicates == "refuse",
        )
        members.update(content)
        (PARTITIONS / units).write_bytes(members.to_bytes())
        counts.append(pc.count_distinct(content["unit_id"]).as_py())
    units, public_units = counts
    manifest = Manifest(info, units, public_units, secret_check=secret_check(project_secret()))
    write_json(PARTITIONS / "manifest.json", manifest.to_json())


def write_partition(folder: Path, content: pa.Table, info: DatasetInfo | None = None) -> None:
    info = info or INFO
    folder.mkdir(parents=True)
    with PartWriter(folder, info.schema) as writer:
        writer.write(content)
        writer.finish(info)
