"""A trained policy, ready for use. Needs numpy, safetensors and pydantic, and no torch."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from primorl.policy.saved import Array, SavedPolicy, read_policy
from primorl.project.errors import PipelineError


class ObservationError(PipelineError, ValueError):
    """An observation that a policy cannot be asked about; the message is one line."""


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
            observation: ``[S]`` or ``[n, S]``, in the environment's units: an array, a list or a tensor.

        Returns:
            In a box: float32 ``[A]`` or ``[n, A]`` within its bounds. Discrete: an int, or int64 ``[n]``.

        Raises:
            ObservationError: the width is wrong, a value is not a finite number, or it lies far outside the public
                range: further from it than the width of the range plus one standard deviation.
        """
        rows, single = self._rows(observation)
        actions = self._actions(rows)
        if not single:
            return actions
        return int(actions[0]) if self.discrete_actions else actions[0]

    def _rows(self, observation: Any) -> tuple[Array, bool]:
        """``[n, S]``, checked, and whether there was one observation and no batch."""
        if hasattr(observation, "detach"):  # a tensor, of any device
            observation = observation.detach().cpu()
        try:
            values = np.asarray(observation, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise ObservationError(f"observation: not numbers; give [{self._width}] or [n, {self._width}]") from None
        single, S = values.ndim == 1, self.observation_size
        if values.ndim not in (1, 2) or values.shape[-1] != S:
            shape = "x".join(map(str, values.shape)) or "a single number"
            raise ObservationError(f"observation: found shape {shape}; allowed: [{self._width}] or [n, {self._width}]")
        values = values[None] if single else values
        with np.errstate(over="ignore"):
            rows = values.astype(np.float32)
        self._refuse(~np.isfinite(rows), "is not a finite number", single)
        if self.saved.observation_range is not None:
            low, high = (side.astype(np.float64) for side in self.saved.observation_range)
            margin = high - low + self.saved.observation_scale
            what = "lies far outside the public range"
            self._refuse((values < low - margin) | (values > high + margin), what, single, (low, high))
        return rows, single

    def _refuse(
        self,
        wrong: npt.NDArray[np.bool_],
        what: str,
        single: bool,
        allowed: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None,
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
        raise ObservationError(f"{where}: {what}{hint}; check units and the order of columns")

    @property
    def _width(self) -> str:
        return str(self.observation_size)

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
