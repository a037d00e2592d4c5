"""A trained policy on NumPy: its files, its actions, and when it has none.

Needs numpy, safetensors and pydantic, and no torch. Runs nothing from the files, and guesses
nothing.
"""

import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from primorl.base import PipelineError
from primorl.base.files import (
    BEHAVIOUR,
    PIPELINE,
    PRIVATE_EVALUATION,
    SUMMARY,
    file_sha256,
    read_json,
)
from primorl.base.records import printable
from primorl.policy.config import FILE as CONFIG
from primorl.policy.config import GET_POLICY, PolicyConfig

FINAL, EPOCHS = "policy.safetensors", "epochs.safetensors"
SCALES = ("observation_mean", "observation_scale", "action_low", "action_high")
_UNKNOWN, _OUTSIDE = "is not a finite number", "lies outside the range"
_SEVERAL = "is not exactly one of its categories"

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


class ObservationError(PipelineError, ValueError):
    """An observation that a policy cannot be asked about; the message is one line and quotes no
    value.
    """


class OutsideRangeError(ObservationError):
    """An observation outside the range, or of no single category, so that an action
    would be a guess.
    """


class _MismatchError(ValueError):
    """Two files of one policy that contradict each other."""


@dataclass(frozen=True)
class Policy:
    """A ReLU network on standardised observations; of P networks of one shape, the first one acts.

    With actions in a box: low + (high - low)·(tanh network + 1)/2. With discrete actions: the
    number of the largest output. Discrete actions of a clone of today's practice have the
    probabilities softmax(output), and none is chosen.

    Attributes:
        layers: weights ``[P, out, in]`` and biases ``[P, 1, out]`` in turn.
        observation_mean: ``[S]``, of the public normaliser.
        observation_scale: ``[S]``, of the public normaliser; positive.
        action_low: ``[A]``.
        action_high: ``[A]``; above ``action_low``.
        discrete_actions: whether actions are numbers 0 … A - 1.
        drawn: whether discrete actions have probabilities.
        observation_range: the lowest and the highest public value of each dimension, ``[S]`` each;
            None: unknown.
        simulated: whether the policy is for a simulator, and not for the people of a log.
        observation_names: names of the S dimensions, in the order that `act` takes them; empty if
            unknown.
        action_names: names of the A dimensions or discrete actions; empty if unknown.
        categories: dimensions of which exactly one is 1 and all others 0, such as ``meal=none`` and
            ``meal=snack``.
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
        """Return the environment's action for one observation or for each of a batch.

        Args:
            observation: ``[S]`` or ``[n, S]``, in the environment's units, its dimensions in the
                order of `observation_names`: an array, or lists of numbers; or what has these
                names, in any order: a table of pandas or Arrow, a named tuple, a database's row, a
                dict, or a list of such rows.

        Returns:
            In a box: float32 ``[A]`` or ``[n, A]`` within its bounds. Discrete: an int, or int64
                ``[n]``.

        Raises:
            OutsideRangeError: a value lies outside `answerable_range`, or not exactly one category
                of a column is 1.
            ObservationError: the width is wrong, or a value is missing, masked or not a finite real
                number. Text is never read as a number.
            PipelineError: the actions have probabilities.
        """
        values, single = self._answerable(observation)
        actions = self._actions(values)
        if not single:
            return actions
        return int(actions[0]) if self.discrete_actions else actions[0]

    def probabilities(self, observations: Any) -> Floats:
        """Return the probability of every discrete action of a clone: ``[n, S]`` to ``[n, A]``.

        Raises:
            ObservationError: as `act` does.
            ValueError: the actions have none.
        """
        if not self.drawn:
            raise ValueError("probabilities: the policy computes its action and does not draw it")
        values, _ = self._answerable(observations)
        output = self._output(values).astype(np.float64)
        shares = np.exp(output - output.max(axis=1, keepdims=True))
        normalised: Floats = shares / shares.sum(axis=1, keepdims=True)
        return normalised

    @property
    def answerable_range(self) -> tuple[Floats, Floats]:
        """The lowest and the highest value of each dimension that `act` answers, ``[S]``; infinite
        if none is stated.

        The declared or public range. That of a simulator's policy is widened on both sides by its
        own width and a standard deviation: the public episodes often know a small part of its
        states, and a wrong action there does no harm.
        """
        if self.observation_range is None:
            return np.full(self.observation_size, -np.inf), np.full(self.observation_size, np.inf)
        low, high = (side.astype(np.float64) for side in self.observation_range)
        margin = self.observation_scale + (high - low) if self.simulated else 0.0
        return low - margin, high + margin

    def reasons(self, observations: Any) -> list[str]:
        """Say why each row ``[n, S]`` gets no action, in words that quote no value; empty where it
        gets one.
        """
        values, _ = self._matrix(observations)
        low, high = self.answerable_range
        with np.errstate(over="ignore"):
            rounded = values.astype(np.float32)  # as the ends of the range are
        unknown = ~np.isfinite(rounded)
        several = np.zeros_like(unknown)
        for own in self.categories:
            given = values[:, own]
            several[:, own.start] = ~np.isin(given, (0, 1)).all(axis=1) | (given.sum(axis=1) != 1)
        outside = (rounded < low) | (rounded > high)
        found = [""] * len(values)
        for what, wrong in ((_SEVERAL, several), (_UNKNOWN, unknown), (_OUTSIDE, outside)):
            for row in np.flatnonzero(wrong.any(axis=1)):
                found[row] = found[row] or f"{self._name(int(wrong[row].argmax()))} {what}"
        return found

    def _name(self, column: int) -> str:
        if not self.observation_names:
            return f"observation_{column}"
        name = self.observation_names[column]
        if any(column in own for own in self.categories):
            name = name.partition("=")[0]
        return printable(name)

    def _in_order(self, observation: Any) -> Any:
        """Take the columns of a table, or the values of a row or of several, by their names."""
        names = _names_in(observation)
        if not names:
            if isinstance(observation, list | tuple):
                return [self._in_order(row) if _names_in(row) else row for row in observation]
            return observation
        wanted = self.observation_names or names
        counts = {printable(each): names.count(each) for each in wanted}
        if wrong := [f"{name} {count} times" for name, count in counts.items() if count != 1]:
            found = f"among the columns found {', '.join(wrong)}"
            raise ObservationError(f"observation: {found}; allowed is each once")
        if isinstance(observation, Sequence):  # a named tuple, and no table
            observation = dict(zip(names, observation, strict=True))
        return np.ma.stack([observation[name] for name in wanted], axis=-1)

    def _matrix(self, observation: Any) -> tuple[Floats, bool]:
        """Return ``[n, S]`` in float64, and whether one observation was given and no batch.

        Text is not read as numbers, no imaginary part is dropped, and masked values become NaN.
        """
        try:
            found = np.asanyarray(self._in_order(observation))
        except ObservationError:
            raise
        except (TypeError, ValueError, RuntimeError):  # rows of several widths, a GPU's tensor
            found = np.asanyarray("")
        if found.dtype.kind not in "biuf":
            raise ObservationError(
                "observation: not numbers; give real ones (of pandas' own types by "
                "`.astype(float)`), rows of one width, NaN for a missing one"
            )
        values: Floats = np.asarray(np.ma.filled(found.astype(np.float64), np.nan))
        size = self.observation_size
        if values.ndim not in (1, 2) or values.shape[-1] != size:
            shape = "x".join(map(str, values.shape)) or "a single number"
            raise ObservationError(
                f"observation: found shape {shape}; allowed: [{size}] or [n, {size}]"
            )
        return np.atleast_2d(values), values.ndim == 1

    def _answerable(self, observation: Any) -> tuple[Floats, bool]:
        """Return the rows as `_matrix` does; refuse the first wrong one by its place, which a
        person may be.
        """
        values, single = self._matrix(observation)
        for row, reason in enumerate(self.reasons(values)):
            if reason:
                kind = ObservationError if reason.endswith(_UNKNOWN) else OutsideRangeError
                place = "observation" if single else f"observation[{row}]"
                raise kind(f"{place}: {reason}; check units and the order of columns")
        return values, single

    def _output(self, values: Floats) -> Array:
        """Compute the network's output ``[n, A]``."""
        rows = values.astype(np.float32)
        hidden = (rows - self.observation_mean) / self.observation_scale
        *inner, weight, bias = (layer[0] for layer in self.layers)
        for inner_weight, inner_bias in zip(inner[::2], inner[1::2], strict=True):
            hidden = np.maximum(hidden @ inner_weight.T + inner_bias, 0)
        output: Array = hidden @ weight.T + bias
        return output

    def _actions(self, values: Floats) -> npt.NDArray[Any]:
        """Compute actions for rows that can be answered."""
        if self.drawn:
            raise PipelineError(
                "policy: found a clone's probabilities of actions; use policy.probabilities"
            )
        output = self._output(values)
        if self.discrete_actions:
            numbers: npt.NDArray[np.int64] = output.argmax(axis=1)
            return numbers
        unit = (np.tanh(output) + 1) * np.float32(0.5)
        action = self.action_low + unit * (self.action_high - self.action_low)
        held: Array = np.clip(action, self.action_low, self.action_high)  # after rounding
        return held


def _names_in(given: Any) -> list[Any]:
    """List the names of a table's columns, or of the values of a row; empty: they have none."""
    for each in ("column_names", "_fields", "__fields__", "keys", "columns"):
        if (names := getattr(given, each, None)) is not None:
            found = list(names() if callable(names) else names)
            return found if any(isinstance(name, str | tuple) for name in found) else []
    return []


def load_policy(folder: str | os.PathLike[str], *, against_advice: bool = False) -> Policy:
    """Read a trained policy: ``models/policy``, or ``policy`` in a released bundle.

    Nothing in the files runs.

    Args:
        folder: with ``policy.safetensors`` and ``config.json``.
        against_advice: read it also where its run or bundle advises against it, or a project did
            not evaluate it.

    Raises:
        PipelineError: a file is missing or broken, the files contradict each other, or the policy
            was advised against; one line.
    """
    place = Path(folder).expanduser()
    if not against_advice:
        refuse_against_advice(place)
    return read_policy(place)


def read_policy(folder: Path, name: str = FINAL) -> Policy:
    """Read the final policy of a folder (P = 1), or with ``EPOCHS`` those at the end of every epoch
    (P = epochs).

    Raises:
        PipelineError: a file is missing or broken, or the files contradict each other.
    """
    path = folder / name
    config = PolicyConfig.read(folder)
    try:
        tensors = load_file(path)
        shapes = _shapes(config, 1 if name == FINAL else config.epochs)
        check_shapes(tensors, shapes)
        return Policy(
            layers=tuple(tensors[layer] for layer in shapes if layer not in SCALES),
            **{scale: tensors[scale] for scale in SCALES},
            discrete_actions=config.discrete_actions,
            drawn=config.discrete_actions and config.drawn,
            observation_range=_range_of(config),
            simulated=config.environment is not None,
            observation_names=config.observation_names or (),
            action_names=config.action_names or (),
            categories=tuple(range(first, first + size) for first, size in config.one_hot or ()),
        )
    except FileNotFoundError:
        raise PipelineError(f"{path}: not there; {GET_POLICY}") from None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError) as broken:
        reason = broken if isinstance(broken, _MismatchError) else type(broken).__name__
        raise PipelineError(
            f"{path}: not a policy ({reason}): damaged, or fetched without Git LFS; fetch it "
            "again, or run `primorl run`, which says first what it charges"
        ) from None


def layer_names(layers: int) -> list[str]:
    """Names of the weights and biases of so many layers, as the files have them."""
    return [f"layers.{layer}.{part}" for layer in range(layers) for part in ("weight", "bias")]


def _shapes(config: PolicyConfig, P: int) -> dict[str, tuple[int, ...]]:
    """Return the shape that ``config.json`` gives to every tensor, layers first and in order."""
    S, A = config.observation_size, config.action_size
    sizes = (S, *config.hidden, A)
    layers = [shape for i, o in itertools.pairwise(sizes) for shape in ((P, o, i), (P, 1, o))]
    shapes = dict(zip(layer_names(len(sizes) - 1), layers, strict=True))
    return shapes | {name: (S if name.startswith("observation") else A,) for name in SCALES}


def check_shapes(
    tensors: Mapping[str, npt.NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse (ValueError) tensors of other shapes than these, or that are no finite float32."""
    for name, shape in shapes.items():
        found = tensors[name]
        if found.shape != shape:
            raise _MismatchError(f"{name} has shape {found.shape}, {CONFIG} says {shape}")
        if found.dtype != np.float32 or not np.isfinite(found).all():
            raise _MismatchError(f"{name} is not made of finite float32 numbers")
    swapped = tensors.get("action_low", 0) >= tensors.get("action_high", np.inf)
    if np.any(swapped) or np.any(tensors.get("observation_scale", 1) <= 0):
        raise _MismatchError("a scale that is not positive")


def _range_of(config: PolicyConfig) -> tuple[Array, Array] | None:
    """Return the declared or public range; refuse names or a range of another size."""
    S, A = config.observation_size, config.action_size
    low, high = config.observation_low, config.observation_high
    sizes = ((config.observation_names, S), (config.action_names, A), (low, S), (high, S))
    if any(entries and len(entries) != size for entries, size in sizes):
        raise _MismatchError(f"names or ranges in {CONFIG} are not one for each dimension")
    if not all(0 <= first < first + size <= S for first, size in config.one_hot or ()):
        raise _MismatchError(f"one_hot in {CONFIG} names dimensions that are not there")
    if low is None or high is None:
        return None
    lowest, highest = np.array(low, dtype=np.float32), np.array(high, dtype=np.float32)
    if not (lowest <= highest).all():
        raise _MismatchError(f"observation_low in {CONFIG} is above observation_high")
    return lowest, highest


# Which policy may be used: the one that was recommended, or another one only against advice and by
# name. A recommendation is made where no simulator measured the policy
# (`primorl.evaluate.recommendation`).

AGAINST = "--against-advice"


def refuse_against_advice(folder: Path) -> None:
    """Refuse a policy that was advised against, or that its project did not evaluate.

    Of a folder that lies in no bundle and no project nothing is known, and a warning says so.

    Raises:
        PipelineError: says what is recommended instead.
    """
    config = PolicyConfig.read(folder)
    found = None if config.environment is not None else _find_advice(folder, config)
    if found is None:
        return
    file, said = found
    advice = said.get("recommendation")
    judged = said.get("policy_sha256") == file_sha256(folder / FINAL)
    if not judged or not isinstance(advice, dict):
        raise PipelineError(
            f"{folder}: nobody recommended this policy, which {file} does not judge; run `dvc "
            f"repro`, or use it all the same: {AGAINST} (in Python: against_advice=True)"
        )
    answer = advice["answer"]
    # the clone is a record of practice, which goes on
    if answer == "trial" or (answer == "keep" and config.policy == str(BEHAVIOUR)):
        return
    instead = "keep today's practice" if answer == "keep" else "more data needed"
    raise PipelineError(
        f"{folder}: advised against in {file}: {instead}. {advice['reason']} To use it all the "
        f"same: {AGAINST} (to predict with --policy {folder}; in Python: against_advice=True)"
    )


def _find_advice(folder: Path, config: PolicyConfig) -> tuple[Path, dict[str, Any]] | None:
    """Find what judges a policy: ``evaluation.json`` of its bundle, or the summary of its project;
    without content if the people's answers are newer.
    """
    place = folder.resolve()
    file = place.parent / "evaluation.json"
    if file.exists() and (place.parent / "MANIFEST.json").exists():
        return file, read_json(file)
    known = (up for up in place.parents if any((up / f).exists() for f in (PIPELINE, SUMMARY)))
    project = next(known, None)
    if project is None:
        warnings.warn(
            f"{folder}: in no bundle or project, so nothing recommends it; keep bundles whole",
            stacklevel=4,
        )
        return None
    file, answers = project / SUMMARY, project / PRIVATE_EVALUATION
    said: dict[str, Any] = read_json(file) if file.exists() else {}
    newest = file_sha256(answers) if answers.exists() else None
    if newest is None or said.get("private_evaluation_sha256") != newest:
        return file, {}
    if config.policy == str(BEHAVIOUR):
        said["policy_sha256"] = read_json(answers).get("clone_sha256")
    return file, said
