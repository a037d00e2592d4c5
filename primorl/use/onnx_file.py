"""A policy as one ONNX file, which any ONNX runtime can run without Python.

The graph computes the same as `Policy.act_or_abstain`: the network on standardised observations, the environment's
bounds, and no action outside the answerable range.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from primorl.base.errors import PipelineError
from primorl.base.files import replaced_file
from primorl.policy.loaded import Array, Policy
from primorl.privacy.statement import Statement

if TYPE_CHECKING:
    import onnx

OPSET, _IR_VERSION = 17, 8
"""ONNX 1.12 and ONNX Runtime 1.12 read them, and all later ones."""
OBSERVATION, ACTION = "observation", "action"
_CHECKED_ROWS = 4096
_LARGEST_DIFFERENCE = 1e-4
"""Of a float32 action from NumPy's, as a share of the width of its bounds."""
_MOST_TIES = 0.001
"""Share of observations whose two best discrete actions may be as good as each other, but for rounding."""


def export(
    policy: Policy, statement: Statement, out: Path, recommendation: str | None = None
) -> tuple[int, float]:
    """Write ``policy`` to ``out``, after ONNX Runtime has run the file and its actions were compared.

    Args:
        policy: its actions must not be drawn.
        statement: of the policy; the file's metadata have it.
        out: replaced when the check has passed, and untouched otherwise.
        recommendation: whether to use the policy, in words, for the metadata; None: an environment measured it.

    Returns:
        The number of observations compared, and the largest difference of an action as a share of the width of its
        bounds; of discrete actions, the share of observations with another one.

    Raises:
        PipelineError: the policy draws its actions, the extra is not installed, or the actions differ. One line.
    """
    if policy.drawn:
        raise PipelineError(
            "export: found a policy that draws its actions (a clone of behaviour), allowed is one that computes them; "
            "use it in Python: primorl.load_policy"
        )
    try:
        import onnx
        import onnxruntime
    except ModuleNotFoundError as missing:
        raise PipelineError(
            f"export: needs {missing.name}, which is not installed; run `pip install 'primorl[onnx]'`"
        ) from None
    model = graph(policy)
    said = {} if recommendation is None else {"recommendation": recommendation}
    onnx.helper.set_model_props(model, _metadata(policy, statement) | said)
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    with replaced_file(out) as fresh:
        fresh.write_bytes(content)
        session = onnxruntime.InferenceSession(str(fresh), providers=["CPUExecutionProvider"])
        rows = _probes(policy)
        difference = _difference(policy, rows, session.run(None, {OBSERVATION: rows})[0])
        if not difference <= (_MOST_TIES if policy.discrete_actions else _LARGEST_DIFFERENCE):
            raise PipelineError(
                f"{out}: not written: its actions differ from the policy's by {difference:.3g} (share of their range, "
                "or of observations where actions are discrete); report this, with the versions of onnx and onnxruntime"
            )
    return len(rows), difference


def graph(policy: Policy) -> "onnx.ModelProto":
    """The network: ``observation`` float32 ``[n, S]`` to ``action``, float32 ``[n, A]`` or int64 ``[n]``.

    Where the policy abstains, the action is NaN, or -1 if actions are discrete.
    """
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants = [], []

    def constant(name: str, value: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    low, high = _float32_bounds(policy)
    above = node("GreaterOrEqual", [OBSERVATION, constant("lowest", low)], "above")
    below = node("LessOrEqual", [OBSERVATION, constant("highest", high)], "below")
    parts = [
        node("Cast", [node("And", [above, below], "inside")], "inside_number", to=TensorProto.FLOAT)
    ]
    if policy.categories:  # each is 0 or 1, and those of a column sum to 1
        member = np.zeros((policy.observation_size, len(policy.categories)), np.float32)
        for column, own in enumerate(policy.categories):
            member[own, column] = 1
        given = node(
            "Gather",
            [OBSERVATION, constant("of_categories", np.flatnonzero(member.any(1)))],
            "given",
            axis=1,
        )
        binary = node("Equal", [given, node("Mul", [given, given], "squared")], "binary")
        chosen = node("MatMul", [OBSERVATION, constant("member", member)], "chosen")
        one = node("Equal", [chosen, constant("one_category", np.float32(1))], "single")
        parts += [
            node("Cast", [each], f"{each}_number", to=TensorProto.FLOAT) for each in (binary, one)
        ]
    keep = not policy.discrete_actions
    fine = parts[0] if len(parts) == 1 else node("Concat", parts, "fine", axis=1)
    least = node("ReduceMin", [fine], "all_fine", axes=[1], keepdims=int(keep))
    answered = node("Cast", [least], "answered", to=TensorProto.BOOL)

    given, longest = OBSERVATION, policy.longest
    if np.isfinite(longest).any():  # a longer time counts as this
        given = node(
            "Min", [OBSERVATION, constant("longest", longest.astype(np.float32))], "counted"
        )
    centred = node("Sub", [given, constant("mean", policy.observation_mean)], "centred")
    hidden = node("Div", [centred, constant("scale", policy.observation_scale)], "standardised")
    layers = [layer[0] for layer in policy.layers]
    for number, (weight, bias) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
        terms = [hidden, constant(f"weight_{number}", weight), constant(f"bias_{number}", bias[0])]
        hidden = node("Gemm", terms, f"layer_{number}", transB=1)
        if number < len(layers) // 2 - 1:
            hidden = node("Relu", [hidden], f"relu_{number}")
    if policy.discrete_actions:
        best = node("ArgMax", [hidden], "best", axis=1, keepdims=0)
        node("Where", [answered, best, constant("none", np.int64(-1))], ACTION)
        output = helper.make_tensor_value_info(ACTION, TensorProto.INT64, ["n"])
    else:
        one = node(
            "Add", [node("Tanh", [hidden], "tanh"), constant("one", np.float32(1))], "shifted"
        )
        unit = node("Mul", [one, constant("half", np.float32(0.5))], "unit")
        lowest, highest = (
            constant("action_low", policy.action_low),
            constant("action_high", policy.action_high),
        )
        scaled = node(
            "Mul", [unit, constant("width", policy.action_high - policy.action_low)], "scaled"
        )
        raised = node("Max", [node("Add", [scaled, lowest], "moved"), lowest], "at_least")
        held = node("Min", [raised, highest], "held")
        node("Where", [answered, held, constant("none", np.float32(np.nan))], ACTION)
        output = helper.make_tensor_value_info(ACTION, TensorProto.FLOAT, ["n", policy.action_size])
    given = helper.make_tensor_value_info(
        OBSERVATION, TensorProto.FLOAT, ["n", policy.observation_size]
    )
    whole = helper.make_graph(nodes, "policy", [given], [output], constants)
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_model(
        whole, opset_imports=opset, ir_version=_IR_VERSION, producer_name="primorl"
    )


def _float32_bounds(policy: Policy) -> tuple[Array, Array]:
    """The answerable range, rounded inwards: a float32 is within it if and only if it is within the range itself."""
    largest = np.finfo(np.float32).max
    low, high = (np.clip(side, -largest, largest) for side in policy.answerable_range)
    nearest_low, nearest_high = low.astype(np.float32), high.astype(np.float32)
    with np.errstate(over="ignore"):  # beyond the largest number, which is not taken
        up, down = (
            np.nextafter(nearest_low, np.float32(np.inf)),
            np.nextafter(nearest_high, np.float32(-np.inf)),
        )
    return np.where(nearest_low < low, up, nearest_low), np.where(
        nearest_high > high, down, nearest_high
    )


def _metadata(policy: Policy, statement: Statement) -> dict[str, str]:
    stated = {
        key: json.dumps(getattr(statement, key)) for key in ("private", "epsilon", "delta", "void")
    }
    texts = {"unit": statement.unit, "dataset_fingerprint": statement.dataset_fingerprint}
    names = {
        key: json.dumps(list(getattr(policy, key))) for key in ("observation_names", "action_names")
    }
    return (
        stated
        | texts
        | names
        | {"privacy_statement": json.dumps(statement.to_json(), allow_nan=False)}
    )


def _probes(policy: Policy) -> Array:
    """Draw observations to compare at: in the answerable range, at the scales of training, and unanswerable ones."""
    generator, S = np.random.default_rng(0), policy.observation_size
    low, high = _float32_bounds(policy)
    mean, scale = policy.observation_mean, policy.observation_scale
    rows = (mean + 2 * scale * generator.standard_normal((_CHECKED_ROWS, S))).astype(np.float32)
    if policy.observation_range is not None:
        rows[::2] = generator.uniform(
            low, np.minimum(high, 2 * policy.longest), (len(rows[::2]), S)
        )
        rows = np.clip(rows, low, high)
        rows[0], rows[1] = low, high
        with np.errstate(over="ignore"):  # beyond the largest number
            rows[2, 0] = np.nextafter(low[0], np.float32(-np.inf))
            rows[3, -1] = np.nextafter(high[-1], np.float32(np.inf))
    rows[4, -1], rows[5, 0] = np.nan, np.inf
    for own in policy.categories:  # one of each column, but for one row with two or none
        rows[:, own] = np.eye(len(own))[generator.integers(len(own), size=len(rows))]
        rows[6, own] = len(own) > 1
    return rows


def _difference(policy: Policy, rows: Array, found: Any) -> float:
    """The largest difference from the policy's own answers; infinite where one abstains and the other does not."""
    expected, abstained = policy.act_or_abstain(rows)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    answered = found >= 0 if policy.discrete_actions else ~np.isnan(found).any(axis=1)
    if (answered == abstained).any():
        return float("inf")
    if policy.discrete_actions:
        return float(np.mean(found != expected))
    width = policy.action_high - policy.action_low
    return float(np.max(np.abs(found - expected)[answered] / width, initial=0.0))
