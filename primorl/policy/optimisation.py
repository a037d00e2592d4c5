"""Train the policies of all seeds in a released model, and write them with the model's privacy
statement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from primorl.base import PipelineError
from primorl.base.files import file_sha256, replaced_directory
from primorl.base.reporting import StageLog, progress_bar
from primorl.model.architecture import ModelConfig, Variant
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.pessimism import (
    NOT_FINITE,
    PessimisticModel,
    Policies,
    returns_by_member,
    uncertainty_of,
)
from primorl.policy import exported
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import CandidateRecord, PolicyConfig, SacConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.replay import ReplayBuffer
from primorl.policy.sac import train
from primorl.privacy.composition import compose_statement
from primorl.privacy.statement import Statement

DIVERGENCES = (0.3, 1.0, 3.0)
"""Targets κ of the candidates: from nearly the clone to where the clone hardly holds."""
DIVERGENCES_OF_HEADS = (0.1, 0.3, 1.0)
"""Targets in a model of linear heads, smaller: away from the data, polynomials extrapolate
badly.
"""
_ROLLOUTS = 512
_DOUBT_SHARE, _SHARE_OF_ERROR, _SAMPLING_ERRORS = 3.0, 0.5, 2.0


def read_released(
    folder: Path, *, variant: Variant, environment: str | None
) -> tuple[dict[str, Any], Statement]:
    """Read what the policies of a released model state of it, as fields of `PolicyConfig`, and its
    statement.

    Args:
        folder: of the model.
        variant: that params.yaml asks for.
        environment: that the dataset names. An id may name a module to import, so it is never
            taken from a file.

    Raises:
        PipelineError: if a file is missing or broken, or the model is of another variant or
            environment, so that its statement would not be about these policies.
    """
    config, statement = ModelConfig.read(folder), Statement.read(folder)
    if (config.variant, config.environment) != (variant, environment):
        raise PipelineError(
            f"{folder}/config.json: found variant {config.variant!r} for environment "
            f"{config.environment!r}, params.yaml asks for {variant!r} for {environment!r}; "
            "run `dvc repro train_model`"
        )
    if not (file := folder / "model.safetensors").is_file():
        raise PipelineError(f"{file}: not there; `dvc checkout` brings it back")
    facts = {
        "variant": variant,
        "environment": environment,
        "observation_names": config.observation_names,
        "action_names": config.action_names,
        "model_sha256": file_sha256(file),
    }
    return facts, statement


def count_clone(model: Statement, folder: Path, variant: Variant) -> Statement:
    """Make the statement of policies that are made from a model and the clone in ``folder``.

    Raises:
        PipelineError: a file is missing or broken, or the clone is of another variant or about
            other data.
    """
    found = PolicyConfig.read(folder).variant
    if found != variant:
        raise PipelineError(f"{folder}/config.json: found variant {found!r}; run `dvc repro`")
    both = {"models/dynamics": model, "models/behaviour": Statement.read(folder)}
    return compose_statement(both)


@dataclass(frozen=True)
class CandidateComparison:
    """Compare candidate policies with the clone in every member of the released model.

    A candidate's gain is reduced by `_DOUBT_SHARE` times its doubt: the uncertainty along its
    rollouts less the clone's. Members that were trained on the same noised rounds are wrong alike,
    which their spread does not show. So a gain counts only if it is larger than half of the model's
    error on the clone itself, whose return public episodes tell within their own sampling error.
    All is released or made from released files, so the choice costs no privacy.

    Attributes:
        prior: the clone that policies are regularised towards, on the device of their training.
        ensemble: the released one, on the CPU.
        clone: the clone as it is released, on the CPU.
        starts: first states in the environment's units, ``[n, S]``.
        weights: w_t of every step, float64 ``[T]``: the share of episodes that are longer than t.
        seed: of the draws, which all policies share.
        observed: mean return of public episodes and its standard error; None: fewer than two are
            public.
        divergences: κ of every candidate, ascending.
    """

    prior: BehaviourPolicy
    ensemble: GaussianEnsemble
    clone: Policies
    starts: Tensor
    weights: Tensor
    seed: int
    observed: tuple[float, float] | None
    divergences: Sequence[float] = DIVERGENCES

    def compare(self, candidates: DeterministicPolicy) -> "CandidateChoice":
        """Roll the clone and all candidates out in every member: ``G = seeds · candidates``
        policies side by side.

        Raises:
            PipelineError: the model predicts something that is not a finite number.
        """
        clone_returns = self._measure(returns_by_member, self.clone)
        gains = (self._measure(returns_by_member, candidates) - clone_returns).mean(-1)
        error = 0.0
        if self.observed is not None:
            mean, standard_error = self.observed
            gap = abs(float(clone_returns.mean()) - mean)
            error = max(0.0, gap - _SAMPLING_ERRORS * standard_error)
        uncertainty = self._measure(uncertainty_of, candidates).mean(-1)
        doubts = uncertainty - self._measure(uncertainty_of, self.clone).mean(-1)
        if not bool(gains.isfinite().all() and doubts.isfinite().all()):
            raise PipelineError(f"models/dynamics: {NOT_FINITE}; train another one")
        count = len(self.divergences)
        gains, doubts = gains.view(-1, count, gains.shape[1]), doubts.view(-1, count)
        records = [
            tuple(
                CandidateRecord(
                    divergence=divergence,
                    gains=tuple(gains[seed, place].tolist()),
                    doubt=float(doubts[seed, place]),
                    chosen=place == chosen,
                )
                for place, divergence in enumerate(self.divergences)
            )
            for seed, chosen in enumerate(choose(gains, doubts, error))
        ]
        return CandidateChoice(tuple(records), error)

    def _measure(self, measure: Callable[..., Tensor], policy: Policies) -> Tensor:
        model, weights = self.ensemble, self.weights
        return measure(
            model, policy, self.starts, rollouts=_ROLLOUTS, weights=weights, seed=self.seed
        )


@dataclass(frozen=True)
class CandidateChoice:
    """The candidates of every seed, one of which is chosen.

    Attributes:
        candidates: of each seed, κ ascending.
        error: the difference between the model's value of the clone and the return of public
            episodes, less their sampling error.
    """

    candidates: tuple[tuple[CandidateRecord, ...], ...]
    error: float

    def policy(self, seed: int) -> int:
        """Return the index, among all policies, of the candidate chosen for seed number
        ``seed``.
        """
        own = self.candidates[seed]
        return seed * len(own) + [each.chosen for each in own].index(True)


def choose(gains: Tensor, doubts: Tensor, error: float) -> list[int]:
    """Choose for each seed the candidate with the largest smallest gain, less its doubt.

    If that is not larger than half of ``error``, choose the candidate with the smallest κ.

    Args:
        gains: mean return less the clone's, in each member: ``[seeds, candidates, N]``.
        doubts: uncertainty less the clone's, in units of the return: ``[seeds, candidates]``.
        error: see `CandidateChoice`.
    """
    doubted = gains.amin(-1) - _DOUBT_SHARE * doubts.clamp(min=0)
    largest, best = doubted.max(-1)
    return [int(place) for place in torch.where(largest > _SHARE_OF_ERROR * error, best, 0)]


@dataclass(frozen=True)
class OptimisedPolicies:
    """The policies of all seeds and candidates, side by side, at the end of every epoch; and the
    choice among each seed's candidates, None without a clone.
    """

    seeds: tuple[int, ...]
    epochs: tuple[DeterministicPolicy, ...]
    choice: CandidateChoice | None

    def of_seed(self, number: int) -> list[DeterministicPolicy]:
        """Return the chosen policy of seed ``number`` at the end of every epoch."""
        place = number if self.choice is None else self.choice.policy(number)
        return [epoch.one(place) for epoch in self.epochs]


def optimise(
    model: PessimisticModel,
    starts: Tensor,
    config: SacConfig,
    seeds: Sequence[int],
    reset_fraction: float,
    comparison: CandidateComparison | None,
    log: StageLog,
) -> OptimisedPolicies:
    """Train a policy for every seed, or with a clone several candidates, of which the released
    model chooses one.

    No policy is selected by its return on data.

    Args:
        model: where rollouts run.
        starts: start states of rollouts in the environment's units, ``[n, S]``.
        config: of SAC.
        seeds: one policy each.
        reset_fraction: share of rollouts that begin at a start state.
        comparison: with a clone of the behaviour that policies are regularised towards; None: there
            is none.
        log: gets every epoch's metrics, the mean over all policies, and the choice.

    Raises:
        PipelineError: training diverged.
    """
    divergences = comparison.divergences if comparison else ()
    epochs = []
    with progress_bar(config.epochs, "policy", "epoch") as bar:
        for epoch in train(
            model,
            starts,
            config,
            ReplayBuffer.batches,
            seeds=seeds,
            reset_fraction=reset_fraction,
            prior=comparison.prior if comparison else None,
            divergences=divergences,
        ):
            for name in epoch.metrics[0]:
                log.metric(name, fmean(each[name] for each in epoch.metrics), epoch.number)
            epochs.append(epoch.policies)
            bar.update()
    choice = comparison.compare(epochs[-1]) if comparison else None
    if choice is not None:
        log.metric("clone_error", choice.error)
    return OptimisedPolicies(tuple(seeds), tuple(epochs), choice)


def write(
    output: Path,
    policies: OptimisedPolicies,
    statement: Statement,
    model: PessimisticModel,
    **facts: Any,
) -> None:
    """Replace the folder ``output`` by the policies of all seeds and their privacy statement.

    The first seed's policy lies in ``output`` itself, the others' in folders below. Each has the
    statement, which covers all of them: policies made from a released model alone are
    post-processing, and more of them reveal no more.

    Args:
        output: the folder.
        policies: to be written.
        statement: of what they were made from.
        model: that they were trained in.
        facts: other fields of `PolicyConfig`.
    """
    choice, seeds = policies.choice, policies.seeds
    ends = model.bounds.observation_low, model.bounds.observation_high
    with replaced_directory(output) as fresh:
        for number, folder in enumerate(exported.seed_folders(fresh, seeds)):
            folder.mkdir(parents=True, exist_ok=True)
            exported.save(
                folder,
                policies.of_seed(number),
                seeds=seeds if len(seeds) > 1 and folder == fresh else None,
                observation_range=ends,
                uncertainty=model.uncertainty,
                penalty=model.penalty,
                candidates=() if choice is None else choice.candidates[number],
                clone_error=None if choice is None else choice.error,
                **facts,
            )
            statement.write(folder)
