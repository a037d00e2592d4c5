"""A policy as one ONNX file, which any ONNX runtime can run without Python.

The graph computes the same as `Policy.act_or_abstain`: the network on standardised observations,
the environment's bounds, and no action outside the answerable range.
"""

import json
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from primorl.base.errors import PipelineError
from primorl.base.files import replaced_file
from primorl.policy.loaded import Array, Policy
from primorl.privacy.statement import Statement

OPSET = 17
"""ONNX 1.12 and ONNX Runtime 1.12 read it, and all later ones."""
OBSERVATION, ACTION = "observation", "action"
_CHECKED_ROWS = 4096
_LARGEST_DIFFERENCE = 1e-4
"""Of a float32 action from NumPy's, as a share of the width of its bounds."""
_MOST_TIES = 0.001
"""Share of observations whose two best discrete actions may be as good as each other, but for
rounding.
"""


class Graph(nn.Module):
    """``observation`` float32 ``[n, S]`` to ``action``, float32 ``[n, A]`` or int64 ``[n]``; NaN or
    -1 for none.
    """

    low: Tensor
    high: Tensor
    longest: Tensor
    mean: Tensor
    scale: Tensor
    action_low: Tensor
    action_high: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.discrete, self.categories = policy.discrete_actions, policy.categories
        # beyond the largest number is infinity, which gets no action
        largest = np.finfo(np.float32).max
        low, high = (np.clip(side, -largest, largest) for side in policy.answerable_range)
        constants: dict[str, npt.NDArray[Any]] = {
            "low": low,
            "high": high,
            "longest": policy.longest,
        }
        constants |= {"mean": policy.observation_mean, "scale": policy.observation_scale}
        constants |= {"action_low": policy.action_low, "action_high": policy.action_high}
        for name, value in constants.items():
            self.register_buffer(name, torch.from_numpy(value.astype(np.float32)))
        layers: list[nn.Module] = []
        for weight, bias in zip(policy.layers[::2], policy.layers[1::2], strict=True):
            linear = nn.Linear(weight.shape[2], weight.shape[1])
            linear.weight = nn.Parameter(torch.from_numpy(weight[0].copy()))
            linear.bias = nn.Parameter(torch.from_numpy(bias[0, 0].copy()))
            layers += [linear, nn.ReLU()]
        self.network = nn.Sequential(*layers[:-1])

    def forward(self, observation: Tensor) -> Tensor:
        """Return the action of every row."""
        answered = ((observation >= self.low) & (observation <= self.high)).all(1)
        for own in self.categories:  # each is 0 or 1, and those of a column sum to 1
            given = observation[:, own.start : own.stop]
            answered = answered & (given * given == given).all(1) & (given.sum(1) == 1)
        rows = (torch.minimum(observation, self.longest) - self.mean) / self.scale
        output: Tensor = self.network(rows)
        if self.discrete:
            best = output.argmax(1)
            return torch.where(answered, best, torch.full_like(best, -1))
        width = self.action_high - self.action_low
        action = self.action_low + (output.tanh() + 1) * 0.5 * width
        held = torch.minimum(torch.maximum(action, self.action_low), self.action_high)
        return torch.where(answered[:, None], held, torch.full_like(held, float("nan")))


def export(
    policy: Policy, statement: Statement, out: Path, recommendation: str | None = None
) -> tuple[int, float]:
    """Write ``policy`` to ``out``, after ONNX Runtime has run the file and its actions were
    compared.

    Args:
        policy: of a released bundle, so not a stochastic one.
        statement: of the policy; the file's metadata have it.
        out: replaced when the check has passed, and untouched otherwise.
        recommendation: whether to use the policy, in words, for the metadata; None: an environment
            measured it.

    Returns:
        The number of observations compared, and the largest difference of an action as a share of
        the width of its bounds; of discrete actions, the share of observations with another one.

    Raises:
        PipelineError: the extra is not installed, or the actions differ. One line.
    """
    try:
        import onnx
        import onnxruntime
    except ModuleNotFoundError as missing:
        raise PipelineError(
            f"export: needs {missing.name}, which is not installed; run `pip install "
            "'primorl[onnx]'`"
        ) from None
    model = onnx.load_from_string(_export_graph(Graph(policy), policy.observation_size))
    said = {} if recommendation is None else {"recommendation": recommendation}
    onnx.helper.set_model_props(model, _metadata(policy, statement) | said)
    onnx.checker.check_model(model, full_check=True)
    with replaced_file(out) as fresh:
        fresh.write_bytes(model.SerializeToString())
        session = onnxruntime.InferenceSession(str(fresh), providers=["CPUExecutionProvider"])
        rows = _probes(policy)
        difference = _difference(policy, rows, session.run(None, {OBSERVATION: rows})[0])
        if not difference <= (_MOST_TIES if policy.discrete_actions else _LARGEST_DIFFERENCE):
            raise PipelineError(
                f"{out}: not written: its actions differ from the policy's by {difference:.3g} "
                "(share of their range, or of observations where actions are discrete); report "
                "this, with the versions of onnx and onnxruntime"
            )
    return len(rows), difference


def _export_graph(graph: Graph, size: int) -> bytes:
    made: Any = BytesIO()
    with warnings.catch_warnings():
        # the exporter that needs no further package is the older one
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            (torch.zeros(2, size),),
            made,
            dynamo=False,
            opset_version=OPSET,
            input_names=[OBSERVATION],
            output_names=[ACTION],
            dynamic_axes={OBSERVATION: {0: "n"}, ACTION: {0: "n"}},
        )
    content: bytes = made.getvalue()
    return content


def _metadata(policy: Policy, statement: Statement) -> dict[str, str]:
    stated = {key: getattr(statement, key) for key in ("private", "epsilon", "delta", "void")}
    named = {key: list(getattr(policy, key)) for key in ("observation_names", "action_names")}
    content = stated | named | {"privacy_statement": statement.to_json()}
    return {
        **{key: json.dumps(value, allow_nan=False) for key, value in content.items()},
        "unit": statement.unit,
        "dataset_fingerprint": statement.dataset_fingerprint,
    }


def _probes(policy: Policy) -> Array:
    """Draw observations to compare at: in the answerable range, at the scales of training and far
    beyond, and unanswerable ones.
    """
    generator, n = np.random.default_rng(0), _CHECKED_ROWS // 2
    mean, far = policy.observation_mean, 100 * policy.observation_scale
    low, high = policy.answerable_range
    low, high = np.maximum(low, mean - far), np.minimum(high, mean + far)
    inside = generator.uniform(low, high, (n, len(mean)))
    width = generator.choice((0.01, 1.0), (n, 1))
    rows = np.concatenate((inside, mean + width * far * generator.standard_normal(inside.shape)))
    rows[0, -1], rows[1, 0] = np.nan, np.inf
    for own in policy.categories:  # one of each column, but for one row with two or none
        rows[:, own] = np.eye(len(own))[generator.integers(len(own), size=len(rows))]
        rows[2, own] = len(own) > 1
    return rows.astype(np.float32)


def _difference(policy: Policy, rows: Array, found: Any) -> float:
    """Compute the largest difference from the policy's own answers; infinite where one abstains and
    the other does not.
    """
    expected, abstained = policy.act_or_abstain(rows)
    nothing = found < 0 if policy.discrete_actions else np.isnan(found).any(axis=-1)
    if found.shape != expected.shape or (nothing != abstained).any():
        return float("inf")
    if policy.discrete_actions:
        return float(np.mean(found != expected))
    width = policy.action_high - policy.action_low
    return float(np.max(np.abs(found - expected)[~abstained] / width, initial=0.0))
