"""A trained policy on NumPy: its files, the observations that callers give, its actions.

Needs numpy, safetensors and pydantic, and no torch. Runs nothing from the files, and guesses nothing.
"""

import itertools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from primorl.base.errors import PipelineError
from primorl.base.records import ElapsedTime
from primorl.policy.advice import refuse_against_advice
from primorl.policy.config import FILE as CONFIG
from primorl.policy.config import PolicyConfig

FINAL, EPOCHS = "policy.safetensors", "epochs.safetensors"
SCALES = ("observation_mean", "observation_scale", "action_low", "action_high")
_UNKNOWN, _OUTSIDE = "is not a finite number", "lies far outside the public range"
_SEVERAL = "is not exactly one of its categories"
_KINDS_OF_NUMBERS = "biuf"  # of NumPy's types: truth values, whole numbers, floating-point numbers

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


class ObservationError(PipelineError, ValueError):
    """An observation that a policy cannot be asked about; the message is one line."""


class OutsideRangeError(ObservationError):
    """An observation far outside the public range, or of no single category, so that an action would be a guess."""


class _MismatchError(ValueError):
    """Two files of one policy that contradict each other."""


@dataclass(frozen=True)
class Policy:
    """A ReLU network on standardised observations; of P networks of one shape, the first one acts.

    With actions in a box: low + (high - low)·(tanh network + 1)/2. With discrete actions: the number of the largest
    output; the clone of the people's behaviour draws it, with probabilities softmax(output), as they do.

    Attributes:
        layers: weights ``[P, out, in]`` and biases ``[P, 1, out]`` in turn.
        observation_mean: ``[S]``, of the public normaliser.
        observation_scale: ``[S]``, of the public normaliser; positive.
        action_low: ``[A]``.
        action_high: ``[A]``; above ``action_low``.
        discrete_actions: whether actions are numbers 0 … A - 1.
        drawn: whether a discrete action is drawn, with probabilities softmax(output).
        observation_range: the lowest and the highest public value of each dimension, ``[S]`` each; None: unknown.
        simulated: whether the policy is for a simulator, and not for the people of a log.
        observation_names: names of the S dimensions, in the order that `act` takes them; empty if unknown.
        action_names: names of the A dimensions or discrete actions; empty if unknown.
        elapsed: the dimension that is the time since the row before; None: there is none.
        categories: dimensions of which exactly one is 1 and all others 0, such as ``meal=none`` and ``meal=snack``.
    """

    layers: tuple[Array, ...] = field(repr=False)
    observation_mean: Array
    observation_scale: Array
    action_low: Array
    action_high: Array
    discrete_actions: bool
    drawn: bool
    observation_range: tuple[Array, Array] | None
    simulated: bool
    observation_names: tuple[str, ...]
    action_names: tuple[str, ...]
    elapsed: ElapsedTime | None = None
    categories: tuple[range, ...] = ()

    @property
    def observation_size(self) -> int:
        """S."""
        return len(self.observation_mean)

    @property
    def action_size(self) -> int:
        """A: dimensions of an action, or the number of discrete actions."""
        return len(self.action_low)

    def act(self, observation: Any) -> "int | npt.NDArray[Any]":
        """The environment's action for one observation or for each of a batch.

        Args:
            observation: ``[S]`` or ``[n, S]``, in the environment's units: an array, a list or a tensor. Of a table
                or a dict of columns, the columns are found by `observation_names`, in any order, and
                others are left aside. A category ``meal=snack`` is also read from a column ``meal``. Where the policy
                has no names, a table's columns are taken in their order.

        Returns:
            In a box: float32 ``[A]`` or ``[n, A]`` within its bounds. Discrete: an int, or int64 ``[n]``.

        Raises:
            OutsideRangeError: a value lies outside `answerable_range`, or not exactly one category of a column is 1.
            ObservationError: the width is wrong, a column is missing, or a value is missing, masked or not a finite
                real number. Text is never read as a number.
        """
        values, single = self._matrix(observation)
        for what, wrong in self._unanswerable(values).items():
            self._refuse(wrong, what, single)
        actions = self._actions(values.astype(np.float32))
        if not single:
            return actions
        return int(actions[0]) if self.discrete_actions else actions[0]

    def act_named(
        self, observation: Any
    ) -> "str | dict[str, float] | list[str] | list[dict[str, float]]":
        """Give the actions of `act` by their names.

        Returns:
            Discrete: the action's name, ``"high"``. In a box: its numbers by name, ``{"dose": 0.3}``. Of a batch: a
            list of these. Where actions have no names: the number as text, and ``action_0`` and so on.
        """
        actions, names = np.asarray(self.act(observation)), self.action_names
        if self.discrete_actions:
            single = actions.ndim == 0
            named: list[Any] = [
                names[number] if names else str(number) for number in np.atleast_1d(actions)
            ]
        else:
            single = actions.ndim == 1
            names = names or tuple(f"action_{number}" for number in range(self.action_size))
            named = [dict(zip(names, row, strict=True)) for row in np.atleast_2d(actions).tolist()]
        return named[0] if single else named

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
        values, single = self._matrix(observations)
        if single:
            size = self.observation_size
            raise ObservationError(f"observations: found shape {size}; allowed: [n, {size}]")
        abstained: npt.NDArray[np.bool_] = np.any(
            list(self._unanswerable(values).values()), axis=(0, 2)
        )
        answered = self._actions(values[~abstained].astype(np.float32))
        actions = np.full(
            (len(values), *answered.shape[1:]),
            -1 if self.discrete_actions else np.nan,
            answered.dtype,
        )
        actions[~abstained] = answered
        return actions, abstained

    @property
    def answerable_range(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The lowest and the highest value of each dimension that `act` answers, ``[S]``; infinite if none is stated.

        The public range, widened on both sides by one standard deviation of the public data. That of a simulator's
        policy is widened by its own width as well: the public episodes often know a small part of its states, and a
        wrong action there does no harm. A time that counts as `elapsed.most` where it is longer has no highest value.
        """
        if self.observation_range is None:
            return np.full(self.observation_size, -np.inf), np.full(self.observation_size, np.inf)
        low, high = (side.astype(np.float64) for side in self.observation_range)
        margin = self.observation_scale + (high - low if self.simulated else 0.0)
        longest = self.longest
        return low - margin, np.where(longest <= high + margin, np.inf, high + margin)

    @cached_property
    def longest(self) -> Floats:
        """The most that each dimension counts, ``[S]``: infinite, but for the time since the row before."""
        longest = np.full(self.observation_size, np.inf)
        if self.elapsed is not None:
            longest[self.observation_names.index(self.elapsed.name)] = self.elapsed.most
        return longest

    @cached_property
    def _one_hot(self) -> frozenset[str]:
        """Names of the dimensions of categories; empty if names are unknown."""
        names = self.observation_names
        return frozenset(names[column] for own in self.categories for column in own if names)

    def _matrix(self, observation: Any) -> tuple[Floats, bool]:
        return matrix(observation, self.observation_names, self.observation_size, self._one_hot)

    def reasons(self, observations: Any) -> list[str]:
        """Why `act_or_abstain` abstains on each row, in words that quote no value; empty where it does not."""
        values, _ = self._matrix(observations)
        said = np.full(len(values), "", dtype=object)
        for what, wrong in reversed(self._unanswerable(values).items()):
            rows = wrong.any(axis=1)
            texts = np.array(
                [f"{self._name(column)} {what}" for column in range(self.observation_size)],
                dtype=object,
            )
            said[rows] = texts[wrong[rows].argmax(axis=1)]
        return said.tolist()

    def _unanswerable(self, values: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.bool_]]:
        """Find the ``values [n, S]`` that the policy does not answer, by fault."""
        low, high = self.answerable_range
        with np.errstate(over="ignore"):
            unknown = ~np.isfinite(values.astype(np.float32))
        several = np.zeros_like(unknown)
        for own in self.categories:
            given = values[:, own]
            several[:, own.start] = ~np.isin(given, (0.0, 1.0)).all(axis=1) | (
                given.sum(axis=1) != 1
            )
        return {_SEVERAL: several, _UNKNOWN: unknown, _OUTSIDE: (values < low) | (values > high)}

    def _name(self, column: int) -> str:
        if not self.observation_names:
            return f"observation_{column}"
        name = self.observation_names[column]
        of_category = any(column in own for own in self.categories)
        return re.sub(r"[^ -~]", "?", name.partition("=")[0] if of_category else name)[:100]

    def _refuse(self, wrong: npt.NDArray[np.bool_], what: str, single: bool) -> None:
        """Name the first wrong value by its place; the value itself may be a patient's."""
        if not wrong.any():
            return
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        where = f"observation[{column}]" if single else f"observation[{row}, {column}]"
        if self.observation_names:
            where += f" ({self._name(column)})"
        hint = ""
        if what == _OUTSIDE and self.observation_range is not None:
            low, high = self.observation_range
            hint = f" [{low[column]:.6g}, {high[column]:.6g}]"
        kind = ObservationError if what == _UNKNOWN else OutsideRangeError
        raise kind(f"{where}: {what}{hint}; check units and the order of columns")

    def _actions(self, rows: Array) -> npt.NDArray[Any]:
        rows = np.minimum(rows, self.longest.astype(np.float32))
        hidden = (rows - self.observation_mean) / self.observation_scale
        *inner, weight, bias = (layer[0] for layer in self.layers)
        for inner_weight, inner_bias in zip(inner[::2], inner[1::2], strict=True):
            hidden = np.maximum(hidden @ inner_weight.T + inner_bias, 0)
        output = hidden @ weight.T + bias
        if self.discrete_actions:
            if (
                self.drawn
            ):  # the largest sum of an output and a Gumbel variate has that output's probability
                output = output - np.log(np.random.default_rng().exponential(size=output.shape))
            numbers: npt.NDArray[np.int64] = np.argmax(output, axis=1)
            return numbers
        unit = (np.tanh(output) + 1) * np.float32(0.5)
        action = self.action_low + unit * (self.action_high - self.action_low)
        held: Array = np.clip(
            action, self.action_low, self.action_high
        )  # rounding can step over a bound
        return held


def load_policy(folder: str | os.PathLike[str], *, against_advice: bool = False) -> Policy:
    """Read a trained policy: ``models/policy``, or ``policy`` in a released bundle.

    Nothing in the files runs.

    Args:
        folder: with ``policy.safetensors`` and ``config.json``.
        against_advice: read it also where its run or bundle advises against it, or a project did not evaluate it.

    Raises:
        PipelineError: a file is missing or broken, the files contradict each other, or the policy was advised against;
            one line.
    """
    if not against_advice:
        refuse_against_advice(Path(folder))
    return read_policy(Path(folder))


def read_policy(folder: Path, name: str = FINAL) -> Policy:
    """Read the final policy of a folder (P = 1), or with ``EPOCHS`` those at the end of every epoch (P = epochs).

    Raises:
        PipelineError: a file is missing or broken, or the files contradict each other.
    """
    path = folder / name
    config = PolicyConfig.read(folder)
    try:
        tensors = load_file(path)
        shapes = _shapes(config, 1 if name == FINAL else config.epochs)
        _check(tensors, shapes)
        if config.elapsed is not None and config.elapsed.name not in (
            config.observation_names or ()
        ):
            raise _MismatchError(f"elapsed in {CONFIG} is no dimension of the observation")
        return Policy(
            layers=tuple(tensors[layer] for layer in shapes if layer not in SCALES),
            **{scale: tensors[scale] for scale in SCALES},
            discrete_actions=config.discrete_actions,
            drawn=config.discrete_actions and config.drawn,
            observation_range=_range(config),
            simulated=config.environment is not None,
            observation_names=_names(config.observation_names, config.observation_size),
            action_names=_names(config.action_names, config.action_size),
            elapsed=config.elapsed,
            categories=_categories(config),
        )
    except FileNotFoundError:
        raise PipelineError(
            f"{path}: not there; run `dvc repro optimize_policy` to make it"
        ) from None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError) as broken:
        reason = broken if isinstance(broken, _MismatchError) else type(broken).__name__
        raise PipelineError(
            f"{path}: not a policy ({reason}); run `dvc repro optimize_policy` again"
        ) from None


def layer_names(layers: int) -> list[str]:
    """Names of the weights and biases of so many layers, as the files have them."""
    return [f"layers.{layer}.{part}" for layer in range(layers) for part in ("weight", "bias")]


def _shapes(config: PolicyConfig, P: int) -> dict[str, tuple[int, ...]]:
    """The shape that ``config.json`` gives to every tensor, layers first and in order."""
    S, A = config.observation_size, config.action_size
    sizes = (S, *config.hidden, A)
    layers = [
        shape
        for inputs, outputs in itertools.pairwise(sizes)
        for shape in ((P, outputs, inputs), (P, 1, outputs))
    ]
    shapes = dict(zip(layer_names(len(sizes) - 1), layers, strict=True))
    return shapes | {name: (S if name.startswith("observation") else A,) for name in SCALES}


def _check(tensors: Mapping[str, npt.NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        found = tensors[name]
        if found.shape != shape:
            raise _MismatchError(f"{name} has shape {found.shape}, {CONFIG} says {shape}")
        if found.dtype != np.float32 or not np.isfinite(found).all():
            raise _MismatchError(f"{name} is not made of finite float32 numbers")
    if len(tensors) != len(shapes):
        raise _MismatchError(f"{len(tensors)} tensors, {CONFIG} says {len(shapes)}")
    if (tensors["action_low"] >= tensors["action_high"]).any() or (
        tensors["observation_scale"] <= 0
    ).any():
        raise _MismatchError("a scale that is not positive")


def _range(config: PolicyConfig) -> tuple[Array, Array] | None:
    if config.observation_low is None or config.observation_high is None:
        return None
    low, high = (
        np.asarray(side, dtype=np.float32)
        for side in (config.observation_low, config.observation_high)
    )
    size = config.observation_size
    if low.shape != (size,) or high.shape != (size,) or not (low <= high).all():
        raise _MismatchError(
            f"observation_low and observation_high in {CONFIG} are not {size} ranges"
        )
    return low, high


def _categories(config: PolicyConfig) -> tuple[range, ...]:
    parts = tuple(range(first, first + size) for first, size in config.one_hot or ())
    if any(not 0 <= part.start < part.stop <= config.observation_size for part in parts):
        raise _MismatchError(
            f"one_hot in {CONFIG} names dimensions that the observation does not have"
        )
    return parts


def _names(names: tuple[str, ...] | None, size: int) -> tuple[str, ...]:
    if names and len(names) != size:
        raise _MismatchError(f"{CONFIG} has {len(names)} names for {size} dimensions")
    return names or ()


def matrix(
    observation: Any, names: Sequence[str], size: int, one_hot: Collection[str] = ()
) -> tuple[Floats, bool]:
    """``[n, S]`` with NaN for a missing value, and whether there was one observation and no batch.

    Args:
        observation: ``[S]`` or ``[n, S]``: an array, a list or a tensor; or a table with named columns.
        names: of the S dimensions; empty: a table's columns are taken in their order.
        size: S.
        one_hot: names of the form ``meal=snack``, which may be read from a column ``meal``.

    Raises:
        ObservationError: the width is wrong, a column is missing, or there is something else than real numbers.
    """
    if hasattr(observation, "detach"):  # a tensor, of any device
        observation = observation.detach().cpu()
    there = _columns(observation) if names else None
    if there is None:
        values = _real(observation, "observation")
    else:
        found = {name: _places(name, there, category=name in one_hot) for name in names}
        if missing := [name for name, places in found.items() if not places]:
            raise ObservationError(
                f"observation: found no column {', '.join(missing)}; needed are {', '.join(names)}; or give an array "
                "with its columns in this order"
            )
        if twice := next((places for places in found.values() if len(places) > 1), None):
            raise ObservationError(
                f"observation: found columns {' and '.join(map(repr, twice))}, which tell the same; give one of them"
            )
        try:
            columns, texts = [], dict[str, npt.NDArray[np.object_]]()
            for name, (place,) in found.items():
                what = f"observation: column {place!r}"
                if place == name:
                    columns.append(_real(observation[place], what))
                    continue
                if place not in texts:  # once for all categories of the column
                    texts[place] = _texts(observation[place], what)
                columns.append((texts[place] == name[len(place) + 1 :]).astype(np.float64))
        except KeyError:  # Arrow, of a name that is there twice
            columns = []
        if len({column.shape for column in columns}) != 1:
            raise ObservationError(
                "observation: found a column twice, or columns of different lengths; give each once, all of one length"
            )
        values = np.stack(columns, axis=-1)
    single = values.ndim == 1
    if values.ndim not in (1, 2) or values.shape[-1] != size:
        shape = "x".join(map(str, values.shape)) or "a single number"
        raise ObservationError(
            f"observation: found shape {shape}; allowed: [{size}] or [n, {size}]"
        )
    return values[None] if single else values, single


def _places(name: str, there: Collection[str], *, category: bool) -> list[str]:
    """Find the columns that tell a dimension: that of its name, and those that it may be a category of."""
    found = [name] if name in there else []
    if category:
        found += [
            name[:index]
            for index, letter in enumerate(name)
            if letter == "=" and name[:index] in there
        ]
    return found


def _texts(given: Any, what: str) -> npt.NDArray[np.object_]:
    """Text, whole numbers and truth values of a column as the text of a category; None where one is missing."""
    values = np.asarray(
        np.ma.filled(given.astype(object), None) if np.ma.isMaskedArray(given) else given,
        dtype=object,
    )
    found = np.full(values.shape, None, dtype=object)
    for place, value in np.ndenumerate(values):
        if isinstance(value, float | np.floating) and not np.isnan(value):
            raise ObservationError(
                f"{what}: found a decimal number; allowed: text, whole numbers or truth values"
            )
        if value is not None:
            found[place] = (
                str(value).lower() if isinstance(value, bool | np.bool_) else str(value)
            )  # as Arrow does
    return found


def _columns(observation: Any) -> list[Any] | None:
    """Names of the columns of a dict or of a table of pandas, Arrow or Polars; None: it has no names."""
    if callable(keys := getattr(observation, "keys", None)):
        return list(keys())
    for attribute in ("column_names", "columns"):  # Arrow's `columns` are no names
        if (found := getattr(observation, attribute, None)) is not None:
            return list(found)
    return None


def _real(given: Any, what: str) -> Floats:
    """Float64. Text is not read as numbers, no imaginary part is dropped, and masked values and None become NaN."""
    try:
        if hasattr(given, "detach"):
            given = given.detach().cpu()
        parts = isinstance(given, list | tuple) and any(
            isinstance(part, np.ma.MaskedArray) for part in given
        )
        found = np.ma.array(given) if parts else np.asanyarray(given)
        if found.dtype.kind == "O":
            known = all(value is None or _is_real(value) for value in np.ma.getdata(found).flat)
        else:
            known = found.dtype.kind in _KINDS_OF_NUMBERS
        if known:
            return np.asarray(np.ma.filled(found.astype(np.float64), np.nan))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise ObservationError(
        f"{what}: not numbers; give real numbers, all rows of one width, and NaN for a missing one"
    )


def _is_real(value: Any) -> bool:
    """Whether an object is a number, and not text or a complex number that could be made one."""
    if isinstance(value, np.generic):
        return value.dtype.kind in _KINDS_OF_NUMBERS
    return hasattr(value, "__float__")
