"""DPTD on the partitions of a project: the value of what people did, for a charge to its ledger."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from primorl.base.files import MODEL, MODELS, write_json
from primorl.config.params import load
from primorl.data.storage.rows import UnitStore
from primorl.evaluate.private.problem import Recordings
from primorl.model.ensemble import Bounds
from primorl.privacy.ledger.checkpoint import State
from primorl.privacy.ledger.history import Request
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.stages.training import model_bounds
from primorl.work.desk import Desk, Paid
from primorl.work.jobs import EVALUATE_PRIVATE, digest
from research import dptd
from research.dptd_network import ValueNetwork

FOLDER = MODELS / "value"


@dataclass(frozen=True)
class Learned(State):
    """One network between two blocks of rounds; all of it is released."""

    theta: Tensor
    omega: Tensor
    p: Tensor
    d: Tensor
    offset: Tensor
    started: int = 0
    asked: bool = False
    finished: bool = False

    @property
    def lost(self) -> bool:
        """See `State.lost`: the question is asked once."""
        return self.asked and not self.finished

    @property
    def values(self) -> dict[str, Tensor]:
        """The tensors that a step changes."""
        return {name: getattr(self, name) for name in ("theta", "omega", "p", "d")}


def scale(bounds: Bounds, observations: Tensor) -> Tensor:
    """Scale observations ``[.., S]`` by their declared bounds, to about [-1, 1]."""
    low, high = bounds.observation_low, bounds.observation_high
    half = ((high - low) / 2).clamp(min=1e-6)
    return ((observations - (low + high) / 2) / half).clamp(-4, 4)


def log_of(bounds: Bounds, largest: float, store: UnitStore) -> dptd.Log:
    """Take a store's transitions, with rewards as a share of the largest one. Sensitive."""
    (inputs, targets), S = store.flat(), store.observation_size
    here, lengths = inputs[:, :S], store.lengths(torch.arange(store.units))
    states = scale(bounds, here), scale(bounds, here + targets[:, :S])
    factor = dptd.DISCOUNT * (1 - targets[:, S + 1])
    reward = (targets[:, S] / largest).clamp(-1, 1)
    return dptd.Log(*states, reward, factor, lengths.cumsum(0) - lengths, lengths)


def evaluate(epsilon: float) -> None:
    """Pay, learn, and write ``models/value`` with its statement; run again after a kill, it goes on
    at no cost.
    """
    params, algorithm = load(), replace(dptd.ALGORITHM, members=1)
    desk = Desk.open(params)
    data, delta = desk.partitions, params.privacy.delta
    manifest = data.manifest
    bounds = model_bounds(params.chosen.bounds, manifest, data.public)
    largest = max(abs(bounds.reward_low), abs(bounds.reward_high))
    starts = scale(bounds, Recordings.of(MODEL, data.public).first_states(params.seed))
    mechanism = dptd.mechanism_of(
        manifest.private_units, manifest.info.unit, delta, "offset", epsilon
    )
    network = ValueNetwork(starts.shape[-1], algorithm.hidden)
    scales = [bounds.observation_low.tolist(), bounds.observation_high.tolist(), largest]
    asked = {
        "name": "dptd",
        "plan": repr(mechanism),
        "scales": scales,
        "data": data.identity,
    }
    request = Request(
        data.version,
        manifest.info.dataset,
        EVALUATE_PRIVATE,
        digest(asked),
        mechanism.event,
        delta,
    )
    values: dict[str, Any] = algorithm.begin(network, params.seed)
    begin = Learned(**values, offset=torch.zeros(1))
    with desk.pay(request, begin) as paid:
        state = paid.state
        if not paid.finished:
            state = learn(paid, mechanism, network, state, partial(log_of, bounds, largest))
        value = float(network.values(state.theta.float(), starts[None]).mean())
        found = {
            "value": (value + float(state.offset)) * largest,
            "before_the_offset": value * largest,
            "discount": dptd.DISCOUNT,
            "network": state.theta[0].tolist(),
        }
        with paid.finish(FOLDER, paid.state_privacy(mechanism)) as folder:
            write_json(folder / "value.json", found)
    before = found["before_the_offset"]
    print(f"{FOLDER}: value {found['value']:.4g}; {before:.4g} before its mean error was asked")


def learn(
    paid: Paid[Learned],
    mechanism: Mechanism,
    network: ValueNetwork,
    state: Learned,
    read: Callable[[UnitStore], dptd.Log],
) -> Learned:
    """Run the rounds that are left, then ask how far off values are. A block of rounds, and the
    question, is spent from the moment it is announced.
    """
    algorithm, log = replace(dptd.ALGORITHM, members=1), None
    while state.started < mechanism.rounds:
        first = state.started
        state = replace(state, started=min(mechanism.rounds, first + dptd.EPOCH))
        paid.save(state)
        log = log or read(paid.open_rows(mechanism))
        for done in range(first, state.started):
            total = dptd.sum_gradients(mechanism, network, state.values, log)
            released = mechanism.release(total)
            values: dict[str, Any] = algorithm.step(state.values, released, done)
            state = replace(state, **values)
    state = replace(state, asked=True)
    paid.save(state)
    log = log or read(paid.open_rows(mechanism))
    offset = dptd.ask_offset(mechanism, log, network, state.theta)
    state = replace(state, offset=offset, finished=True)
    paid.save(state)
    return state
