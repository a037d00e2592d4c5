"""Numbers of a released model and policy that could not come from training: not finite, of the
wrong sign, swapped.

Interval arithmetic bounds every output over all inputs within the declared bounds: |ReLU(x)| and |x
sigmoid(x)| are at most |x|; inputs of polynomial features are held within bounds of their own. So a
network that passes gives finite outputs for all of them, not only for those that were tried.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from dp_accounting import dp_event
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import finite
from primorl.model.ensemble import GaussianEnsemble
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.events import event_from_json
from primorl.privacy.ledger.account import fixed_epsilon, seen, total_of
from primorl.privacy.statement import MechanismStatement, SpentOnDataset, Statement
from primorl.privacy.verification import (
    FILTER_ROUNDING,
    ROUNDING,
    given,
    refuse_other_accountant,
    refuse_unless_equal,
)
from primorl.release.contents import LEDGER, LedgerStatement

# float32 ends at 3.4e38; sums and squares of what a trained network holds stay far below
_LARGEST = 1e30


def check_model(path: Path, model: GaussianEnsemble) -> None:
    """Check the numbers of a dynamics model, read from ``path`` and from ``config.json`` beside it.

    Raises:
        PipelineError: one line; names the tensor or key, the value found and the values allowed.
    """
    shape, scales, bounds = model.architecture, model.normaliser, model.bounds
    for number, weight in enumerate(model.weights):
        _refuse_unless_finite(
            path, f"layers.{number // 2}.{('weight', 'bias')[number % 2]}", weight
        )
    for part in (scales, bounds):
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                _refuse_unless_finite(path, name, value)
    for name, scale in (("input_scale", scales.input_scale), ("target_scale", scales.target_scale)):
        _refuse_unless_positive(path, name, scale)
    config = path.with_name("config.json")
    sides = {
        "observation": (bounds.observation_low, bounds.observation_high),
        "action": (bounds.action_low, bounds.action_high),
        "reward": (torch.tensor(bounds.reward_low), torch.tensor(bounds.reward_high)),
        "log_variance": (
            torch.tensor(shape.log_variance_low),
            torch.tensor(shape.log_variance_high),
        ),
    }
    for name, (low, high) in sides.items():
        # A column may be constant, and so may the reward.
        swapped = low > high if name in ("observation", "reward") else low >= high
        if bool(swapped.any()):
            place = path if name in ("observation", "action") else config
            raise PipelineError(f"{place}: {name}_low: not below {name}_high: swapped?")
    _refuse_large(
        config, "reward_low, reward_high", max(abs(bounds.reward_low), abs(bounds.reward_high))
    )
    inputs = _farthest(
        torch.cat((bounds.observation_low, bounds.action_low)),
        torch.cat((bounds.observation_high, bounds.action_high)),
        scales.input_mean,
        scales.input_scale,
    )
    if shape.features is not None and scales.basis is not None:
        inputs = shape.features.largest(scales.basis)
    output = _largest_output(model.weights, inputs.expand(shape.members, 1, -1))
    _refuse_large(path, "the outputs", float(output.max()))
    spread = torch.exp(0.5 * torch.tensor(shape.log_variance_high, dtype=torch.float64))
    predicted = (
        output[..., : shape.targets] + spread
    ) * scales.target_scale.double() + scales.target_mean.double().abs()
    _refuse_large(path, "the predictions", float(predicted.max()))


def check_policy(
    path: Path, policy: DeterministicPolicy, model: GaussianEnsemble, *, own_scales: bool
) -> None:
    """Check the numbers of a policy, and that its actions and scales are those of the model it was
    trained in.

    Args:
        path: ``policy.safetensors``, for the message.
        policy: read from it.
        model: one that passed `check_model`.
        own_scales: the policy was trained on the data and not in the model, so its scales are its
            own.
    """
    S, scales, bounds = model.architecture.observation_size, model.normaliser, model.bounds
    mean, scale = scales.input_mean[:S], scales.input_scale[:S]
    if own_scales:
        mean, scale = policy.observation_mean, policy.observation_scale
        _refuse_unless_finite(path, "observation_mean", mean)
        _refuse_unless_finite(path, "observation_scale", scale)
        _refuse_unless_positive(path, "observation_scale", scale)
    for name, found, expected in (
        ("observation_mean", policy.observation_mean, mean),
        ("observation_scale", policy.observation_scale, scale),
        ("action_low", policy.action_low, bounds.action_low),
        ("action_high", policy.action_high, bounds.action_high),
    ):
        if not torch.equal(found, expected):
            raise PipelineError(
                f"{path}: {name}: found other numbers than the model has: it is of another model"
            )
    inputs = _farthest(bounds.observation_low, bounds.observation_high, mean, scale)
    layers = [
        layer if number % 2 else layer.mT for number, layer in enumerate(policy.layers)
    ]  # held as [out, in]
    _refuse_large(
        path, "the outputs", float(_largest_output(layers, inputs.expand(1, 1, -1)).max())
    )


def _farthest(low: Tensor, high: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Largest standardised input ``[in]``, one width of the bounds and one scale beyond them
    included, in float64.
    """
    margin = high.double() - low.double() + scale.double()
    far = torch.maximum((low.double() - margin - mean).abs(), (high.double() + margin - mean).abs())
    return far / scale.double()


def _largest_output(layers: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """A bound on every output of N networks, ``[N, 1, out]``.

    Args:
        layers: weights ``[N, in, out]`` and biases ``[N, 1, out]`` in turn.
        inputs: the largest magnitude of every input, ``[N, 1, in]``.
    """
    largest = inputs
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        largest = largest @ weight.double().abs() + bias.double().abs()
    return largest


def _refuse_unless_finite(path: Path, name: str, value: Tensor) -> None:
    if not bool(value.isfinite().all()):
        raise PipelineError(
            f"{path}: {name}: found NaN or infinity, allowed are finite numbers; `dvc checkout` it"
        )


def _refuse_unless_positive(path: Path, name: str, scale: Tensor) -> None:
    if bool((scale <= 0).any()):
        raise PipelineError(
            f"{path}: {name}: found a scale that is not positive, allowed are numbers above 0"
        )


def _refuse_large(path: Path, what: str, largest: float) -> None:
    if not largest <= _LARGEST:
        raise PipelineError(
            f"{path}: {what}: may reach {largest:.3g} within the declared bounds, allowed is up "
            f"to {_LARGEST:g}: they would not stay finite"
        )


def check_ledger(path: Path, ledger: LedgerStatement, of: Path, model: Statement) -> None:
    """Account every record of a ledger's statement again, and all of them together.

    Args:
        path: of the ledger's statement, for messages.
        ledger: read from it; of the same data as the model.
        of: file of the model's statement, for messages.
        model: read from that.
    """
    refuse_other_accountant(path, ledger.accountant)
    for key in ("dataset_fingerprint", "unit", "neighboring_relation"):
        if getattr(ledger, key) != getattr(model, key):
            raise PipelineError(
                f"{path}: {key}: differs from {of.name}: the ledger speaks of other data"
            )
    if ledger.charges != len(ledger.records):
        raise PipelineError(f"{path}: charges: not the number of records")
    for place, record in enumerate(ledger.records):
        alone = finite(fixed_epsilon([event_from_json(record.event)], record.delta))
        refuse_unless_equal(path, f"records.{place}.epsilon", record.epsilon, alone, ledger)
    _check_account(path, "", ledger, _events(ledger), ledger)


def check_payment(
    of: Path, statement: Statement, ledger: LedgerStatement, paid: Statement | MechanismStatement
) -> None:
    """Check that a committed charge paid for a mechanism, and account again everything spent on the
    dataset by then.

    Args:
        of: file of the statement, for messages.
        statement: has the account.
        ledger: every record of which was checked.
        paid: the statement itself, or that of a mechanism in it.

    Raises:
        PipelineError: there is no such charge on this version of the data, the account does not
            count it, or the account is not that of the ledger's oldest charges together.
    """
    account = spent(of, statement)
    places = [place for place, record in enumerate(ledger.records) if record.id == paid.charge]
    own = ledger.records[places[0]] if len(places) == 1 else None
    if own is None or own.event != paid.event or own.state != "committed" or not own.same_version:
        raise PipelineError(
            f"{of}: charge: found no committed charge with the id and event in {LEDGER}"
        )
    if not places[0] < account.charges <= ledger.charges:  # oldest first; its own among them
        raise PipelineError(
            f"{of}: spent_on_dataset: charges: not a number of charges that {LEDGER} has"
        )
    if account.delta != ledger.delta:
        raise PipelineError(
            f"{of}: spent_on_dataset: delta: differs from {LEDGER}; run `dvc repro`"
        )
    _check_account(of, "spent_on_dataset: ", account, _events(ledger)[: account.charges], statement)


def _check_account(
    path: Path,
    prefix: str,
    stated: LedgerStatement | SpentOnDataset,
    events: Sequence[dp_event.DpEvent],
    by: Any,
) -> None:
    """Check the totals of an account; that of the privacy filter is known up to the last step of
    its bisection.
    """
    for key, number in account_figures(events, stated.delta).items():
        rounding = FILTER_ROUNDING if key == "epsilon" else ROUNDING
        refuse_unless_equal(path, f"{prefix}{key}", getattr(stated, key), number, by, rounding)


def account_figures(events: Sequence[dp_event.DpEvent], delta: float) -> dict[str, float | None]:
    """Compute the totals of ``events`` at ``delta``, by key of an account; None: no guarantee."""
    total = total_of(events, delta)
    return {key: finite(getattr(total, key)) for key in ("epsilon", "epsilon_fixed", "epsilon_rdp")}


def _events(ledger: LedgerStatement) -> list[dp_event.DpEvent]:
    return [seen(event_from_json(record.event), record.units_each) for record in ledger.records]


def spent(path: Path, statement: Statement) -> SpentOnDataset:
    """The account of the dataset in a statement, which must have one."""
    return given(path, "spent_on_dataset", statement.spent_on_dataset)
