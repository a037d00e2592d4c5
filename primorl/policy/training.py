"""Train the policies of all seeds in a released model, and write them with the model's privacy
statement.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256, replaced_directory
from primorl.base.records import ElapsedTime
from primorl.base.reporting import StageLog, progress_bar
from primorl.model.architecture import ModelConfig, Variant
from primorl.model.features import OneHot
from primorl.model.pessimism import PessimisticModel
from primorl.policy import exported
from primorl.policy.behaviour import BehaviourPolicy
from primorl.policy.config import PolicyConfig, SacConfig
from primorl.policy.member_values import CandidateComparison
from primorl.policy.replay import Sampler
from primorl.policy.sac import train
from primorl.privacy.composition import composed_statement
from primorl.privacy.statement import Statement

_TAGS = ("private", "epsilon", "delta", "unit", "dataset_fingerprint")


@dataclass(frozen=True)
class Released:
    """Facts that ``train_model`` states of its model.

    Attributes:
        folder: where the model lies.
        variant: of the model.
        environment: Gymnasium id; None if there is no simulator.
        statement: the privacy statement.
        names: of the dimensions of observations, and of the actions; None if the data do not name
            them.
        elapsed: the dimension that is the time since the row before; None: there is none.
        model_sha256: SHA-256 of ``model.safetensors``.
        ends: how rollouts end; None: as the model says.
    """

    folder: Path
    variant: Variant
    environment: str | None
    statement: Statement
    names: exported.Names | None = None
    elapsed: ElapsedTime | None = None
    model_sha256: str | None = None
    ends: str | None = None
    one_hot: OneHot = ()

    def with_clone(self, folder: Path) -> "Released":
        """The same with the statement of both, model and clone, for policies that are made from
        both.

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
        return replace(self, statement=composed_statement(both))

    @classmethod
    def read(cls, folder: Path, *, variant: Variant, environment: str | None) -> "Released":
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
        return cls(
            folder, variant, environment, statement, names, config.elapsed, file_sha256(file)
        )


CloneReference = tuple[BehaviourPolicy, CandidateComparison]
"""A clone that policies are regularised towards, on the device of the start states, and the
comparison that chooses.
"""


def write_trained(
    output: Path,
    released: Released,
    model: PessimisticModel,
    config: SacConfig,
    *,
    starts: Tensor,
    reset_fraction: float,
    sampler: Sampler,
    seed: int,
    seeds: Sequence[int] | None,
    settings: Mapping[str, Any],
    run: StageLog,
    reference: CloneReference | None = None,
) -> None:
    """Train a policy for every seed, and write them to ``output`` with their privacy statement.

    The first seed's policy lies in ``output`` itself, the others' in folders below. Each has the
    statement, which covers all of them: policies made from a released model alone are
    post-processing, and more of them reveal no more. No policy is selected by its return on data.
    With a clone, each seed has several candidates, of which the released model chooses one.

    Args:
        output: the folder that is replaced.
        released: read of the model.
        model: where rollouts run.
        config: of SAC.
        starts: start states of rollouts in the environment's units, ``[n, S]``.
        reset_fraction: share of rollouts that begin there.
        sampler: picks the batches.
        seed: of params.yaml.
        seeds: one policy each; None: one policy, of ``seed``.
        settings: all settings, for the log.
        run: gets settings, the statement as tags and every epoch's metrics: the mean over seeds.
            Each of several seeds has a run of its own inside it.
        reference: a clone of the behaviour that policies are regularised towards; None: there is
            none.

    Raises:
        PipelineError: if the start states do not fit the model, or training diverged.
    """
    if starts.shape[1:] != (model.observation_size,):
        raise PipelineError(
            f"{released.folder}: found observations of size {model.observation_size}, the start "
            f"states (params.yaml: policy.starts) have shape {tuple(starts.shape[1:])}; run `dvc "
            "repro`"
        )
    prior, comparison = reference or (None, None)
    trained = tuple(seeds or (seed,))
    divergences = tuple(comparison.divergences) if comparison else ()
    each = max(1, len(divergences))
    policies = []
    with ExitStack() as open_runs, progress_bar(config.epochs, output.name, "epoch") as bar:
        of_seeds = [open_runs.enter_context(run.nested(f"seed {own}")) for own in seeds or ()]
        for log, own in ((run, seed), *zip(of_seeds, trained, strict=False)):
            log.params({"seed": own, "policy": settings})
            for key in _TAGS:
                log.tag(key, str(getattr(released.statement, key)))
        options: Any = {
            "reset_fraction": reset_fraction,
            "prior": prior,
            "divergences": divergences,
        }
        for epoch in train(model, starts, config, sampler, seeds=trained, **options):
            by_seed = [
                _means(epoch.metrics[own * each : (own + 1) * each]) for own in range(len(trained))
            ]
            means = _means(by_seed)
            for log, metrics in ((run, means), *zip(of_seeds, by_seed, strict=False)):
                for name, value in metrics.items():
                    log.metric(name, value, epoch.number)
            policies.append(epoch.policies)
            bar.set_postfix(model_reward=f"{means['model_reward']:.3f}", refresh=False)
            bar.update()
        choice = comparison.compare(policies[-1]) if comparison else None
        if choice is not None:
            run.metric("clone_error", choice.error)
            for own, log in enumerate(of_seeds or [run]):
                for record in choice.records(own):
                    log.metric(f"smallest_gain_{record.divergence:g}", min(record.gains))
                    if record.chosen:
                        log.metric("chosen_divergence", record.divergence)

    with replaced_directory(output) as fresh:
        for number, folder in enumerate(exported.seed_folders(fresh, trained)):
            folder.mkdir(parents=True, exist_ok=True)
            exported.save(
                folder,
                [
                    epoch.one(number if choice is None else choice.policy(number))
                    for epoch in policies
                ],
                variant=released.variant,
                environment=released.environment,
                seeds=trained if seeds and folder == fresh else None,
                names=released.names,
                elapsed=released.elapsed,
                one_hot=released.one_hot or None,
                observation_range=_public_range(model),
                model_sha256=released.model_sha256,
                ends=released.ends,
                uncertainty=model.uncertainty,
                penalty=model.penalty,
                candidates=() if choice is None else choice.records(number),
                clone_error=None if choice is None else choice.error,
            )
            released.statement.write(folder)
        for name in ("config.json", "privacy.json"):
            run.artifact(fresh / name)


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(one[name] for one in metrics) for name in metrics[0]}


def _public_range(model: PessimisticModel) -> tuple[Tensor, Tensor] | None:
    """The bounds of observations; None if the model has no finite ones."""
    low, high = model.observation_low, model.observation_high
    return (low, high) if bool(low.isfinite().all() and high.isfinite().all()) else None
