"""Train the policies of all seeds in a released model, and write them with the model's privacy
statement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256, replaced_directory
from primorl.base.reporting import StageLog, progress_bar
from primorl.model.architecture import ModelConfig, Variant
from primorl.model.features import OneHot
from primorl.model.pessimism import PessimisticModel
from primorl.model.termination import Ends
from primorl.policy import exported
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import PolicyConfig, SacConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.policy.member_values import CandidateChoice, CandidateComparison
from primorl.policy.replay import ReplayBuffer
from primorl.policy.sac import train
from primorl.privacy.composition import compose_statement
from primorl.privacy.statement import Statement


@dataclass(frozen=True)
class ReleasedModel:
    """Facts that ``train_model`` states of its model.

    ``environment`` is None if there is no simulator, ``names`` if the data do not name dimensions
    and actions. ``ends`` says how rollouts end; None: as the model says.
    """

    variant: Variant
    environment: str | None
    statement: Statement
    names: exported.Names | None = None
    model_sha256: str | None = None
    ends: Ends = None
    one_hot: OneHot = ()

    def with_clone(self, folder: Path) -> "ReleasedModel":
        """Return the same with the statement of both, model and clone, for policies that are made
        from both.

        Args:
            folder: of the clone.

        Raises:
            PipelineError: a file is missing or broken, or the clone is of another variant or about
                other data.
        """
        config, statement = PolicyConfig.read(folder), Statement.read(folder)
        if config.variant != self.variant:
            raise PipelineError(
                f"{folder / 'config.json'}: found variant {config.variant!r}, params.yaml asks "
                f"for {self.variant!r}; run `dvc repro clone_behaviour`"
            )
        both = {"models/dynamics": self.statement, "models/behaviour": statement}
        return replace(self, statement=compose_statement(both))

    @classmethod
    def read(cls, folder: Path, *, variant: Variant, environment: str | None) -> "ReleasedModel":
        """Read the folder of a released model.

        Args:
            folder: of the model.
            variant: that params.yaml asks for.
            environment: that the dataset names. An id may name a module to import, so it is never
                taken from a file.

        Raises:
            PipelineError: if a file is missing or broken, or the model is of another variant or
                environment, so that its statement would not be about this policy.
        """
        config, statement = ModelConfig.read(folder), Statement.read(folder)
        if (config.variant, config.environment) != (variant, environment):
            raise PipelineError(
                f"{folder / 'config.json'}: found variant {config.variant!r} for environment "
                f"{config.environment!r}, params.yaml asks for {variant!r} for {environment!r}; "
                "run `dvc repro train_model`"
            )
        if not (file := folder / "model.safetensors").is_file():
            raise PipelineError(f"{file}: not there; `dvc checkout` brings it back")
        observation, action = config.observation_names, config.action_names
        names = (observation, action) if observation and action else None
        return cls(variant, environment, statement, names, file_sha256(file))


class CloneReference(NamedTuple):
    """A clone that policies are regularised towards, on the device of the start states, and the
    comparison that chooses among the candidates.
    """

    prior: BehaviourPolicy
    comparison: CandidateComparison


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
    reference: CloneReference | None,
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
        reference: a clone of the behaviour that policies are regularised towards; None: there is
            none.
        log: gets every epoch's metrics, the mean over all policies, and the choice.

    Raises:
        PipelineError: if the start states do not fit the model, or training diverged.
    """
    if starts.shape[1:] != (model.observation_size,):
        raise PipelineError(
            f"models/dynamics: found observations of size {model.observation_size}, the start "
            f"states (params.yaml: policy.starts) have shape {tuple(starts.shape[1:])}; run `dvc "
            "repro`"
        )
    prior, comparison = reference or (None, None)
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
            prior=prior,
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
    released: ReleasedModel,
    model: PessimisticModel,
) -> None:
    """Replace the folder ``output`` by the policies of all seeds and their privacy statement.

    The first seed's policy lies in ``output`` itself, the others' in folders below. Each has the
    statement, which covers all of them: policies made from a released model alone are
    post-processing, and more of them reveal no more.

    Args:
        output: the folder.
        policies: to be written.
        released: read of the model.
        model: that they were trained in.
    """
    choice, seeds = policies.choice, policies.seeds
    with replaced_directory(output) as fresh:
        for number, folder in enumerate(exported.seed_folders(fresh, seeds)):
            folder.mkdir(parents=True, exist_ok=True)
            exported.save(
                folder,
                policies.of_seed(number),
                variant=released.variant,
                environment=released.environment,
                seeds=seeds if len(seeds) > 1 and folder == fresh else None,
                names=released.names,
                one_hot=released.one_hot or None,
                observation_range=_public_range(model),
                model_sha256=released.model_sha256,
                ends=released.ends,
                uncertainty=model.uncertainty,
                penalty=model.penalty,
                candidates=() if choice is None else choice.candidates[number],
                clone_error=None if choice is None else choice.error,
            )
            released.statement.write(folder)


def _public_range(model: PessimisticModel) -> tuple[Tensor, Tensor] | None:
    """Return the bounds of observations; None if the model has no finite ones."""
    low, high = model.observation_low, model.observation_high
    return (low, high) if bool(low.isfinite().all() and high.isfinite().all()) else None
