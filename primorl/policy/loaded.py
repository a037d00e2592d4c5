"""A trained policy, ready for use. Needs numpy, safetensors and pydantic, and no torch."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from primorl.policy.observations import ObservationError as ObservationError  # part of this module's interface
from primorl.policy.observations import matrix
from primorl.policy.saved import Array, SavedPolicy, read_policy


class OutsideRangeError(ObservationError):
    """A finite observation that lies far outside the public range, so that an action would be a guess."""


@dataclass(frozen=True)
class Policy:
    """One policy: a ReLU network on standardised observations.

    With actions in a box: low + (high - low)·(tanh network + 1)/2. With discrete actions: the number of the largest
    output; the clone of the people's behaviour draws it, with probabilities softmax(output), as they do.

    Attributes:
        saved: the weights, scales and names that the files hold.
    """

    saved: SavedPolicy

    @property
    def observation_size(self) -> int:
        """S."""
        return len(self.saved.observation_mean)

    @property
    def action_size(self) -> int:
        """A: dimensions of an action, or the number of discrete actions."""
        return len(self.saved.action_low)

    @property
    def discrete_actions(self) -> bool:
        """Whether actions are numbers 0 … A - 1."""
        return self.saved.discrete_actions

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of the S dimensions, in the order that `act` takes them; empty if unknown."""
        return self.saved.observation_names

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the A dimensions or discrete actions; empty if unknown."""
        return self.saved.action_names

    def act(self, observation: Any) -> "int | npt.NDArray[Any]":
        """The environment's action for one observation or for each of a batch.

        Args:
            observation: ``[S]`` or ``[n, S]``, in the environment's units: an array, a list or a tensor. Of a table
                or a dict of columns, the columns are found by `observation_names`, in whatever order they stand, and
                others are left aside; where the policy has no names, a table's columns are taken in their order.

        Returns:
            In a box: float32 ``[A]`` or ``[n, A]`` within its bounds. Discrete: an int, or int64 ``[n]``.

        Raises:
            OutsideRangeError: a value lies outside `answerable_range`.
            ObservationError: the width is wrong, a column is missing, or a value is missing, masked or not a finite
                real number. Text is never read as a number.
        """
        values, single = self._values(observation)
        unknown, outside = self._unanswerable(values)
        self._refuse(unknown, "is not a finite number", single)
        self._refuse(outside, "lies far outside the public range", single, self.saved.observation_range)
        actions = self._actions(values.astype(np.float32))
        if not single:
            return actions
        return int(actions[0]) if self.discrete_actions else actions[0]

    def act_or_abstain(self, observations: Any) -> "tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]":
        """The environment's actions for the rows that `act` would answer; no action for the others.

        Args:
            observations: ``[n, S]``, in the environment's units, as `act` takes them; NaN, None or a mask marks a
                missing value.

        Returns:
            Actions, and whether the policy abstained, ``[n]``. In a box: float32 ``[n, A]``, NaN where it abstained.
            Discrete: int64 ``[n]``, -1 where it abstained.

        Raises:
            ObservationError: not real numbers, a column is missing, or not of shape ``[n, S]``.
        """
        values, single = self._values(observations)
        if single:
            size = self.observation_size
            raise ObservationError(f"observations: found shape {size}; allowed: [n, {size}]")
        unknown, outside = self._unanswerable(values)
        abstained: npt.NDArray[np.bool_] = np.any(unknown | outside, axis=1)
        answered = self._actions(values[~abstained].astype(np.float32))
        actions = np.full((len(values), *answered.shape[1:]), -1 if self.discrete_actions else np.nan, answered.dtype)
        actions[~abstained] = answered
        return actions, abstained

    @property
    def answerable_range(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The lowest and the highest value of each dimension that `act` answers, ``[S]``; infinite if nobody says.

        The public range, widened on both sides by one standard deviation of the public data. That of a simulator's
        policy is widened by its own width as well: the public episodes often know a small part of its states, and a
        wrong action there harms nobody.
        """
        if self.saved.observation_range is None:
            return np.full(self.observation_size, -np.inf), np.full(self.observation_size, np.inf)
        low, high = (side.astype(np.float64) for side in self.saved.observation_range)
        margin = self.saved.observation_scale + (high - low if self.saved.simulated else 0.0)
        return low - margin, high + margin

    def _unanswerable(self, values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Of ``values [n, S]``: which are not finite numbers, and which lie far outside the public range."""
        low, high = self.answerable_range
        with np.errstate(over="ignore"):
            unknown = ~np.isfinite(values.astype(np.float32))
        return unknown, (values < low) | (values > high)

    def _values(self, observation: Any) -> tuple[npt.NDArray[np.float64], bool]:
        """``[n, S]``, and whether there was one observation and no batch."""
        return matrix(observation, self.observation_names, self.observation_size)

    def _refuse(
        self,
        wrong: npt.NDArray[np.bool_],
        what: str,
        single: bool,
        allowed: tuple[Array, Array] | None = None,
    ) -> None:
        """Name the first wrong value by its place; the value itself may be a patient's."""
        if not wrong.any():
            return
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        where = f"observation[{column}]" if single else f"observation[{row}, {column}]"
        if self.observation_names:
            name = re.sub(r"[^ -~]", "?", self.observation_names[column])[:100]
            where += f" ({name})"
        hint = "" if allowed is None else f" [{allowed[0][column]:.6g}, {allowed[1][column]:.6g}]"
        kind = ObservationError if allowed is None else OutsideRangeError
        raise kind(f"{where}: {what}{hint}; check units and the order of columns")

    def _actions(self, rows: Array) -> npt.NDArray[Any]:
        saved = self.saved
        hidden = (rows - saved.observation_mean) / saved.observation_scale
        *inner, weight, bias = (layer[0] for layer in saved.layers)
        for inner_weight, inner_bias in zip(inner[::2], inner[1::2], strict=True):
            hidden = np.maximum(hidden @ inner_weight.T + inner_bias, 0)
        output = hidden @ weight.T + bias
        if self.discrete_actions:
            if saved.drawn:  # the largest sum of an output and a Gumbel variate has that output's probability
                output = output - np.log(np.random.default_rng().exponential(size=output.shape))
            numbers: npt.NDArray[np.int64] = np.argmax(output, axis=1)
            return numbers
        unit = (np.tanh(output) + 1) * np.float32(0.5)
        action = saved.action_low + unit * (saved.action_high - saved.action_low)
        held: Array = np.clip(action, saved.action_low, saved.action_high)  # rounding can step over a bound
        return held


def load_policy(folder: str | os.PathLike[str]) -> Policy:
    """Read a trained policy: ``models/policy``, or ``policy`` in a released bundle.

    Nothing in the files runs.

    Raises:
        PipelineError: a file is missing or broken, or the files contradict each other; one line.
    """
    return Policy(read_policy(Path(folder)))
