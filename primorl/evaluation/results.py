"""The value of every seed's policies, in the environment or in the released model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.evaluation.returns import episode_returns
from primorl.evaluation.statistics import NOTE, Estimate, MeanInterval, ModelValue
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.member_values import returns_by_member, step_weights
from primorl.project.errors import PipelineError


@dataclass(frozen=True)
class Result:
    """The value of one final policy, and of the policies after each epoch.

    Attributes:
        final: of the final policy.
        curve: of each epoch's policy, first epoch first; the last one's is ``final``, of the same policy.
    """

    final: Estimate
    curve: tuple[Estimate, ...]


@dataclass(frozen=True)
class Evaluation:
    """Every seed's result, and how it was found.

    Attributes:
        by_seed: results in the order of the seeds.
        method: keys of the summary that say how: episodes, or the model's members, rollouts and horizon.
    """

    by_seed: tuple[Result, ...]
    method: dict[str, Any]

    @property
    def overall(self) -> Result:
        """Average over seeds, with the spread; of a single seed, that seed's result."""
        over: Any = type(self.by_seed[0].final).over
        curve = zip(*(result.curve for result in self.by_seed), strict=True)
        return Result(over([result.final for result in self.by_seed]), tuple(over(same) for same in curve))


def in_environment(
    environment: str, folders: Sequence[Path], *, episodes: int, epoch_episodes: int, seed: int, horizon: int | None
) -> Evaluation:
    """Measure the policies' returns in the true environment, side by side.

    Args:
        environment: a registered Gymnasium id.
        folders: of the policies, one a seed.
        episodes: of each final policy.
        epoch_episodes: of each epoch's policy.
        seed: of the environments' resets.
        horizon: steps after which an episode ends; None: the environment's own limit.

    Raises:
        PipelineError: see `episode_returns` and `DeterministicPolicy.load`.
    """
    final, epochs = _policies(folders)
    returns = episode_returns(environment, final, episodes, seed, horizon)
    by_epoch = episode_returns(environment, epochs, epoch_episodes, seed, horizon)
    results = _results([MeanInterval.of(own) for own in returns], [MeanInterval.of(own) for own in by_epoch])
    return Evaluation(results, {"episodes": episodes})


def in_model(
    ensemble: GaussianEnsemble,
    folders: Sequence[Path],
    starts: Tensor,
    *,
    rollouts: int,
    epoch_rollouts: int,
    seed: int,
    horizon: int,
    survival: Tensor | None,
) -> Evaluation:
    """Compute the policies' values in the released model, where no environment can measure them.

    Args:
        ensemble: the released model, on the CPU.
        folders: of the policies, one a seed.
        starts: first states in the environment's units, ``[n, S]``.
        rollouts: of each final policy in each member.
        epoch_rollouts: of each epoch's policy in each member.
        seed: of the draws.
        horizon: steps of a rollout that does not terminate.
        survival: how much each step counts, see `PublicTrajectories`; None: every step counts.

    Raises:
        PipelineError: if the start states are not the model's, or a file is missing or broken.
    """
    if starts.shape[1:] != (ensemble.architecture.observation_size,):
        raise PipelineError(
            f"models/dynamics: found observations of size {ensemble.architecture.observation_size}, the first states "
            f"of data/partitions have shape {tuple(starts.shape[1:])}; run `dvc repro`"
        )
    weights = step_weights(horizon, survival=survival)

    def values(policy: DeterministicPolicy, count: int) -> list[ModelValue]:
        found = returns_by_member(ensemble, policy, starts, rollouts=count, weights=weights, seed=seed)
        return [ModelValue.of(by_member) for by_member in found.mean(-1)]

    final, epochs = _policies(folders)
    method = {
        "episodes": None,
        "model_value_members": ensemble.architecture.members,
        "model_value_rollouts": rollouts,
        "model_value_horizon": horizon,
        "model_value_note": NOTE,
    }
    return Evaluation(_results(values(final, rollouts), values(epochs, epoch_rollouts)), method)


def _results(final: Sequence[Estimate], epochs: Sequence[Estimate]) -> tuple[Result, ...]:
    """Each seed's result; the epochs are one seed's after the other's."""
    each = len(epochs) // len(final)
    parts = (epochs[number * each : (number + 1) * each - 1] for number in range(len(final)))
    return tuple(Result(own, (*curve, own)) for own, curve in zip(final, parts, strict=True))


def _policies(folders: Sequence[Path]) -> tuple[DeterministicPolicy, DeterministicPolicy]:
    """The final policies of all seeds side by side, and those of all epochs, one seed after the other."""
    final, epochs = (
        DeterministicPolicy.stacked([load(folder) for folder in folders])
        for load in (DeterministicPolicy.load, DeterministicPolicy.load_epochs)
    )
    return final, epochs
