"""What both policy stages share: SAC with the choices of params.yaml, its log, and the folder it writes."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from primorl.config.params import Params, plain
from primorl.dynamics.config import ModelConfig
from primorl.dynamics.pessimism import PessimisticModel
from primorl.policy import exported
from primorl.policy.sac import Sampler, train
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import replaced_directory
from primorl.project.progress import progress_bar
from primorl.setup.compute import chosen_device
from primorl.tracking import StageRun

MODEL = Path("models/dynamics")
_TAGS = ("private", "epsilon", "delta", "unit", "dataset_fingerprint")
_ONE_THREAD_UP_TO = 192  # units of a layer, of all seeds together


@dataclass(frozen=True)
class Released:
    """What ``train_model`` says of its model.

    Attributes:
        environment: its id; None: there is no simulator.
        statement: the privacy statement.
        names: of the dimensions of observations, and of the actions.
    """

    environment: str | None
    statement: Statement
    names: exported.Names | None

    @classmethod
    def read(cls, params: Params) -> "Released":
        """Read ``models/dynamics``.

        Raises:
            PipelineError: a file is missing or broken, or the model is another variant's, so that its statement
                would be no statement about what is made here.
        """
        config, statement = ModelConfig.read(MODEL), Statement.read(MODEL)
        asked = {"variant": params.dynamics.variant, "environment": params.chosen.environment}
        found = {key: getattr(config, key) for key in asked}
        if found != asked:  # an environment's id may name a module to import: params.yaml's only
            raise PipelineError(
                f"{MODEL / 'config.json'}: found variant {found['variant']!r} for environment "
                f"{found['environment']!r}, params.yaml asks for {asked['variant']!r} for {asked['environment']!r}; "
                "run `dvc repro train_model`"
            )
        observation, action = config.observation_names, config.action_names
        return cls(config.environment, statement, (observation, action) if observation and action else None)


def load_model(params: Params) -> tuple[PessimisticModel, torch.device]:
    """The pessimistic model of ``models/dynamics`` and its device; raises what `PessimisticModel.load` raises."""
    chosen, device = params.policy, _device(params)
    return PessimisticModel.load(MODEL, uncertainty=chosen.uncertainty, penalty=chosen.penalty, device=device), device


def write_trained(
    output: Path,
    params: Params,
    run: StageRun,
    *,
    released: Released,
    model: PessimisticModel,
    starts: Tensor,
    reset_fraction: float,
    sampler: Sampler,
) -> None:
    """Train a policy for every seed; write ``output`` with the privacy statement of the model they were trained in.

    The first seed's policy lies in ``output`` itself, the others' in folders of their own, each with the statement: it
    speaks of all of them, since what is made of a released model alone is post-processing, and more of it reveals no
    more.
    No policy is chosen by its return.

    Args:
        output: the folder that is replaced.
        params: every choice.
        run: gets parameters, the statement as tags, and the metrics of every epoch; of several seeds their mean,
            while each has a nested run of its own.
        released: of the model.
        model: where rollouts run.
        starts: their start states in the environment's units, ``[n, S]``.
        reset_fraction: share of rollouts that begin there.
        sampler: picks the batches.

    Raises:
        PipelineError: the start states are not the model's, or training diverged.
    """
    if starts.shape[1:] != (model.observation_size,):
        raise PipelineError(
            f"{MODEL}: found observations of size {model.observation_size}, the start states "
            f"(params.yaml: policy.starts) have shape {tuple(starts.shape[1:])}; run `dvc repro`"
        )
    seeds = params.policy_seeds
    policies = []
    with ExitStack() as open_runs, progress_bar(params.policy.epochs, output.name, "epoch") as bar:
        of_seeds = [open_runs.enter_context(run.nested(f"seed {seed}")) for seed in params.policy.seeds or ()]
        for log, seed in ((run, params.seed), *zip(of_seeds, seeds, strict=False)):
            log.params({"seed": seed, "policy": plain(params.policy)})
            for key in _TAGS:
                log.tag(key, str(getattr(released.statement, key)))
        for epoch in train(model, starts, params.policy, sampler, seeds=seeds, reset_fraction=reset_fraction):
            means = {name: fmean(own[name] for own in epoch.metrics) for name in epoch.metrics[0]}
            for log, metrics in ((run, means), *zip(of_seeds, epoch.metrics, strict=False)):
                for name, value in metrics.items():
                    log.metric(name, value, epoch.number)
            policies.append(epoch.policies)
            bar.set_postfix(model_reward=f"{means['model_reward']:.3f}", refresh=False)
            bar.update()

    with replaced_directory(output) as fresh:
        for number, folder in enumerate(exported.seed_folders(fresh, seeds)):
            folder.mkdir(parents=True, exist_ok=True)
            exported.save(
                folder,
                [epoch.one(number) for epoch in policies],
                variant=params.dynamics.variant,
                environment=released.environment,
                seeds=seeds if params.policy.seeds and folder == fresh else None,
                names=released.names,
                observation_range=_public_range(model),
            )
            released.statement.write(folder)
        for name in ("config.json", "privacy.json"):
            run.artifact(fresh / name)


def _public_range(model: PessimisticModel) -> tuple[Tensor, Tensor] | None:
    """The bounds of observations; None where the model has no finite ones."""
    low, high = model.observation_low, model.observation_high
    return (low, high) if bool(low.isfinite().all() and high.isfinite().all()) else None


def _device(params: Params) -> torch.device:
    """The device of `chosen_device`; small networks get one thread unless params.yaml says otherwise.

    Measured (docs/performance.md): up to 192 units over all seeds a second thread gains a sixth at best, and
    multiplies the time as soon as anything else wants the core that the first one then waits for; beyond, a third
    and more.
    """
    device = chosen_device(params.compute)
    if params.compute.threads is None and len(params.policy_seeds) * max(params.policy.hidden) <= _ONE_THREAD_UP_TO:
        torch.set_num_threads(1)
    return device
