"""What settings, declared facts and the public split have against a run, before it is paid for."""

from collections.abc import Iterator

import numpy as np

from primorl.base import PipelineError
from primorl.config.datasets import DeclaredBounds, TabularDataset
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine.settings import LEAST_UNITS
from primorl.model.termination import LEARNED, NONE, RULES
from primorl.work.data import Floats, observation_bounds

_STOP, _WARNING = 0.2, 0.01
"""Shares of public values outside a column's bounds from which a training is refused, and from
which it is warned.
"""


def check_choices(params: Params, manifest: Manifest, public: UnitStore) -> None:
    """Refuse choices that fit neither each other nor the data.

    Raises:
        PipelineError: names the first such choice.
    """
    if (line := next(_find_misfits(params, manifest, public), None)) is not None:
        raise PipelineError(line)
    if manifest.info.environment is None:
        manifest.declared_horizon()
    observation_bounds(params.chosen.bounds, manifest, public)


def _find_misfits(params: Params, manifest: Manifest, public: UnitStore) -> Iterator[str]:
    """Yield settings that the data do not allow, and facts that the dataset's file lacks."""
    info, units, bounds = manifest.info, manifest.private_units, params.chosen.bounds
    dataset, normaliser = f"datasets/{params.dataset}.yaml", params.normaliser
    if public.info != info:
        yield "data/partitions: its parts are of different datasets; run `dvc repro plan`"
    patience = params.dynamics.early_stopping.patience
    asking = {
        "params.yaml: partition.public_fraction": (normaliser, "0"),
        "params.yaml: dynamics.early_stopping.patience": (patience and "public", "null"),
        f"{dataset}: bounds.observation": (bounds.observation, "space, {low, high}"),
        f"{dataset}: bounds.reward": (bounds.reward, "[low, high]"),
    }
    for key, (asked, allowed) in asking.items():
        if asked == "public" and not manifest.public_units:
            yield (
                f"{key}: needs public units, and data/partitions has none (where partition in "
                f"params.yaml was changed since, run `dvc repro plan`); allowed: {allowed}"
            )
    q = params.privacy.sampling_probability
    if q is not None and q * units < 1:
        yield (
            f"params.yaml: privacy.sampling_probability: found {q:g}, at which less than one of "
            f"{units} units joins a round; allowed is at least 1/{units}"
        )
    drawn = normaliser == "public" and public.units >= LEAST_UNITS
    if params.dynamics.start == "public" and not drawn:
        yield (
            f"params.yaml: dynamics.start: found public, with {public.units} public units; needed "
            f"are {LEAST_UNITS} that a hash drew; allowed: random"
        )
    if params.asks_today and info.horizon is None and params.evaluation.private.discount == 1.0:
        yield (
            f"{dataset}: horizon: not declared, while evaluation.private.discount is 1, so nothing "
            "bounds a return; declare a horizon, or set a discount below 1"
        )
    size = public.observation_size
    allowed_ends = [NONE, LEARNED]
    allowed_ends += [name for name, rule in sorted(RULES.items()) if rule.observation_size == size]
    if info.termination not in allowed_ends:
        yield (
            f"{dataset}: termination: found {info.termination!r}; allowed for observations of size "
            f"{size} are {', '.join(allowed_ends)}"
        )


def find_objections(
    params: Params, manifest: Manifest, public: UnitStore
) -> tuple[list[str], list[str]]:
    """Find objections to a run that the public split shows or, where it is empty, the entry.

    Returns:
        Why the run is not to be paid for, and what is to be looked at; lines with the finding and
        the remedy.
    """
    file = f"datasets/{params.dataset}.yaml"
    stops, warnings = list[str](), list[str]()
    if public.units == 0:
        dataset = params.chosen
        flagged = isinstance(dataset, TabularDataset) and dataset.options.columns.terminated
        if dataset.cuts_last_rows and not flagged:
            warnings.append(
                f"{file}: options.end: {_CUT}, and nobody is public to tell whether any is left; "
                f"{_OUTCOME}"
            )
        if manifest.info.termination == LEARNED and dataset.bounds.before_end is None:
            warnings.append(
                f"{file}: bounds.before_end: not declared, so nothing tells an outcome, which is "
                "earned once, from rewards of every row, and nobody is public to tell whether the "
                "model's ends are right; declare what a row that does not end its trajectory can "
                "earn"
            )
        return stops, warnings
    inputs, targets = public.arrays()
    size = public.observation_size
    values = np.concatenate((inputs[:, :size], targets[:, size : size + 1]), axis=1)
    if (line := _find_no_reward(params, manifest, public, values[:, -1])) is not None:
        stops.append(line)
    for (key, name, low, high), seen in zip(_list_bounds(params, manifest), values.T, strict=True):
        share = float(((seen < low) | (seen > high)).mean())
        if share >= _WARNING:
            (stops if share > _STOP else warnings).append(
                f"{file}: {key}: {100 * share:.3g}% of the public values of {name!r} lie outside "
                f"its bounds [{low:g}, {high:g}] (public minimum {seen.min():.4g}, maximum "
                f"{seen.max():.4g}); correct them to what is possible, or set {key} to public"
            )
    return stops, warnings


def _list_bounds(
    params: Params, manifest: Manifest
) -> Iterator[tuple[str, str, np.float32, np.float32]]:
    """Yield key, name and bounds of every dimension of an observation, then of the reward;
    rounded as values are, infinite where none are declared.
    """
    dataset, spaces = params.chosen, manifest.info.spaces
    observation, reward = dataset.bounds.observation, dataset.bounds.reward
    low, high = spaces.observation_low, spaces.observation_high
    if isinstance(observation, DeclaredBounds):
        low, high = observation.low, observation.high
    elif observation == "public":
        low, high = (-np.inf,) * len(low), (np.inf,) * len(high)
    for name, least, most in zip(spaces.observation_names, low, high, strict=True):
        yield "bounds.observation", name, np.float32(least), np.float32(most)
    name = dataset.options.columns.reward if isinstance(dataset, TabularDataset) else "reward"
    least, most = (-np.inf, np.inf) if isinstance(reward, str) else reward
    yield "bounds.reward", name, np.float32(least), np.float32(most)


_CUT = "the last row of a trajectory that does not terminate is dropped, and its reward with it"
_OUTCOME = (
    "if an outcome score is there, set options.end: outcome and termination: learned; if not, "
    "leave these rewards empty and set options.end: observed; or name next_observation columns"
)


def _find_no_reward(
    params: Params, manifest: Manifest, public: UnitStore, reward: Floats
) -> str | None:
    """Say that every step earns the same, and no episode can end sooner or later; else None."""
    dataset, ends = params.chosen, manifest.info.termination
    may_end = public.terminates if ends == LEARNED else ends != NONE
    if reward.min() < reward.max() or (reward[0] != 0 and may_end):
        return None
    cut = dataset.cuts_last_rows and not public.terminates
    key = "options.end" if cut else "reward"
    why = f"{_CUT}; {_OUTCOME}" if cut else "correct options.columns.reward, or the log"
    return (
        f"datasets/{params.dataset}.yaml: {key}: every public reward is {reward[0]:g}, so nothing "
        f"can be learned: {why}"
    )
