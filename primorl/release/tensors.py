"""Numbers of a released model and policy that could not come from training: not finite, of the
wrong sign, swapped, of another model; and content that nobody sees.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.engine.heads import FIRST_STATES
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.starts import StartModel
from primorl.policy import exported
from primorl.policy.exported import DeterministicPolicy
from primorl.release.contents import MODEL, POLICY, STARTS, Bundle


def check_tensors(bundle: Bundle) -> None:
    """Check every tensor of a bundle, and that its files hold nothing else.

    Raises:
        PipelineError: one line; names the tensor or key.
    """
    folder, config, of_policy = bundle.folder, bundle.model, bundle.policy
    model = GaussianEnsemble.load(folder / "dynamics", torch.device("cpu"))
    _check_model(folder / MODEL[0], model)
    _check_written_again(
        folder / MODEL[0],
        lambda again: model.save(
            again, environment=config.environment, variant=config.variant, rounds=config.rounds
        ),
    )
    policy = DeterministicPolicy.load(folder / "policy")
    _check_written_again(
        folder / POLICY[0],
        lambda again: exported.save(
            again, [policy], variant=of_policy.variant, environment=of_policy.environment
        ),
    )
    low, high = model.bounds.observation_low.tolist(), model.bounds.observation_high.tolist()
    stated = (of_policy.observation_low, of_policy.observation_high)
    if stated != (tuple(low), tuple(high)):
        raise PipelineError(
            f"{folder / POLICY[1]}: observation_low, observation_high: not those of {MODEL[0]}"
        )
    _check_policy(folder / POLICY[0], policy, model)
    first_states = any(query.what == FIRST_STATES for query in bundle.of_model.queries)
    if first_states != (STARTS in bundle.names):
        raise PipelineError(
            f"{folder / STARTS}: {'missing' if first_states else 'there'}, which contradicts the "
            "queries"
        )
    if first_states:
        starts = StartModel.load(folder / "dynamics", torch.device("cpu"))
        _check_written_again(folder / STARTS, starts.save)
        bounds = {"low": model.bounds.observation_low, "high": model.bounds.observation_high}
        _refuse_other(folder / STARTS, starts, bounds)


def _check_written_again(path: Path, write: Callable[[Path], object]) -> None:
    """Check that writing the loaded content gives the same file, so that nothing in it is
    unseen.
    """
    with tempfile.TemporaryDirectory(prefix="primorl-check-") as again:
        write(Path(again))
        if (Path(again) / path.name).read_bytes() != path.read_bytes():
            raise PipelineError(
                f"{path}: holds more than we read of it: a tensor, metadata or padding of its own"
            )


def _check_model(path: Path, model: GaussianEnsemble) -> None:
    """Check the numbers of a dynamics model, read from ``path`` and ``config.json`` beside it."""
    shape, scales, bounds = model.architecture, model.normaliser, model.bounds
    _refuse_unless_finite(path, {"layers": model.weights, **vars(scales), **vars(bounds)})
    _refuse_unless_positive(path, vars(scales), "input_scale", "target_scale")
    config = path.with_name("config.json")
    observations, actions = bounds.observation_low, bounds.action_low
    # A column may be constant, and so may the reward.
    for place, name, swapped in (
        (path, "observation", bool((observations > bounds.observation_high).any())),
        (path, "action", bool((actions >= bounds.action_high).any())),
        (config, "reward", bounds.reward_low > bounds.reward_high),
        (config, "log_variance", shape.log_variance_low >= shape.log_variance_high),
    ):
        if swapped:
            raise PipelineError(f"{place}: {name}_low: not below {name}_high: swapped?")


def _check_policy(path: Path, policy: DeterministicPolicy, model: GaussianEnsemble) -> None:
    """Check the numbers of a policy, read from ``path``, and that its actions and scales are those
    of the model it was trained in, which passed `_check_model`.
    """
    S, scales, bounds = model.architecture.observation_size, model.normaliser, model.bounds
    _refuse_unless_finite(path, vars(policy))
    _refuse_unless_positive(path, vars(policy), "observation_scale")
    expected = {
        "action_low": bounds.action_low,
        "action_high": bounds.action_high,
        "observation_mean": scales.input_mean[:S],
        "observation_scale": scales.input_scale[:S],
    }
    _refuse_other(path, policy, expected)


def _refuse_other(path: Path, found: object, expected: Mapping[str, Tensor]) -> None:
    for name, tensor in expected.items():
        if not torch.equal(getattr(found, name), tensor):
            raise PipelineError(
                f"{path}: {name}: found other numbers than the model has: it is of another model"
            )


def _refuse_unless_finite(path: Path, tensors: Mapping[str, object]) -> None:
    for name, value in tensors.items():
        for tensor in value if isinstance(value, tuple) else (value,):
            if isinstance(tensor, Tensor) and not bool(tensor.isfinite().all()):
                raise PipelineError(f"{path}: {name}: found NaN or infinity")


def _refuse_unless_positive(path: Path, tensors: Mapping[str, Tensor], *names: str) -> None:
    for name in names:
        if bool((tensors[name] <= 0).any()):
            raise PipelineError(f"{path}: {name}: found a scale that is not positive")
