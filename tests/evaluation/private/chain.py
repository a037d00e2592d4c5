"""Chains of one-hot states, whose value is known, as units in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from primorl.evaluation.private.dptd import Dptd
from primorl.evaluation.private.problem import Problem


@dataclass(frozen=True)
class Logged:
    """Units in memory: inputs, targets and which rows begin a trajectory, of each unit."""

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    first: Sequence[Tensor]

    @property
    def units(self) -> int:
        return len(self.inputs)

    def lengths(self, units: Tensor) -> Tensor:
        return torch.tensor([len(self.inputs[u]) for u in units.tolist()], dtype=torch.int64)

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return self._rows(self.inputs, units, steps), self._rows(self.targets, units, steps)

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        return self._rows(self.first, units, steps)

    def behaviour_probabilities(self, units: Tensor, steps: Tensor) -> Tensor | None:
        return None

    @staticmethod
    def _rows(of: Sequence[Tensor], units: Tensor, steps: Tensor) -> Tensor:
        return torch.stack([of[u][s] for u, s in zip(units.tolist(), steps, strict=True)])


def chain(lengths: Sequence[int], states: int = 3, action: float = 0.0) -> Logged:
    """Units that walk through the states in turn, then stay in the last, which is terminal; state s pays 1 - s/2."""
    here, eye = [torch.arange(length).clamp(max=states - 1) for length in lengths], torch.eye(states)
    inputs = [torch.cat((eye[s], torch.full((len(s), 1), action)), 1) for s in here]
    ended = [s == states - 1 for s in here]
    change = [eye[(s + 1).clamp(max=states - 1)] - eye[s] for s in here]
    targets = [
        torch.cat((c, (1 - 0.5 * s)[:, None], e[:, None].float()), 1)
        for c, s, e in zip(change, here, ended, strict=True)
    ]
    return Logged(inputs, targets, [torch.arange(length) == 0 for length in lengths])


def problem(units: int, states: int = 3, **changes: Any) -> Problem:
    settings: dict[str, Any] = {
        "units": units,
        "unit": "trajectory",
        "delta": 1e-5,
        "horizon": None,
        "discount": 0.9,
        "observation_low": torch.full((states,), -5.0),
        "observation_high": torch.full((states,), 5.0),
        "observation_mean": torch.zeros(states),
        "observation_scale": torch.ones(states),
        "action_low": torch.tensor([-1.0]),
        "action_high": torch.tensor([1.0]),
        "discrete_actions": False,
        "reward_low": -1.0,
        "reward_high": 1.0,
        "return_low": 0.0,
        "return_high": 0.0,
        "policy": lambda observation: torch.zeros(len(observation), 1),
        "ensemble": None,
        "starts": torch.eye(states)[:1],
    }
    return Problem(**settings | changes).with_return_bounds(None)


def settings(kind: type[Dptd] = Dptd, **changes: Any) -> Dptd:
    """Small settings that converge on a chain."""
    defaults: dict[str, Any] = {
        "of": "behaviour",
        "privacy_unit": "dataset",
        "hidden": (8,),
        "members": 2,
        "rounds": 4,
        "sampling_probability": 1.0,
        "clipping_norm": 1.0,
        "alpha": 3.0,
        "beta": 3.0,
        "kappa": 2.0,
        "eta": 20.0,
        "output": "average",
        "query_share": 0.1,
    }
    return kind(**defaults | changes)
