"""The ONNX file computes what the policy computes, abstains where it does, and is written only
after that was seen.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from primorl.base.errors import PipelineError
from primorl.policy.loaded import Policy
from primorl.use import onnx_file
from primorl.use.onnx_file import export
from tests.policy.test_loaded import NAMES, RANGE, ROWS, loaded
from tests.statements import OF_TRAINING

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def run(file: Path, rows: Any) -> Any:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"observation": np.asarray(rows, np.float32)})
    return output


@pytest.fixture(params=["box", "discrete"])
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> Policy:
    return loaded(tmp_path / "policy", discrete=request.param == "discrete", **RANGE, **NAMES)


def test_it_acts_and_abstains_as_the_policy(policy: Policy, tmp_path: Path) -> None:
    file = tmp_path / "policy.onnx"
    rows, difference = export(policy, OF_TRAINING, file)
    assert rows > 1000
    assert difference <= (0.001 if policy.discrete_actions else 1e-5)
    generator = np.random.default_rng(5)
    observed = np.column_stack(
        [generator.uniform(-30, 30, (500, 2)), generator.uniform(4.6, 5.4, 500)]
    )
    found, expected = run(file, observed), policy.act_or_abstain(observed.astype(np.float32))[0]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert run(file, ROWS[:1]).shape == ((1,) if policy.discrete_actions else (1, 2))
    high = np.float32(policy.answerable_range[1][0])
    edges = [high, np.nextafter(high, np.float32(np.inf)), np.nan, np.inf, -np.inf]
    outside = np.array([[value, 0.0, 5.0] for value in edges], np.float32)
    found, (_, abstained) = run(file, outside), policy.act_or_abstain(outside)
    assert abstained.tolist() == [False, True, True, True, True]
    none = found == -1 if policy.discrete_actions else np.isnan(found).all(axis=1)
    assert none.tolist() == abstained.tolist()


def test_another_graph_is_not_written(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, right = tmp_path / "policy.onnx", onnx_file.Graph
    file.write_bytes(b"before")

    def changed(change: Any) -> Any:
        def graph(policy: Policy) -> Any:
            with torch.no_grad():
                change(made := right(policy))
            return made

        return graph

    wrong: tuple[Any, ...] = (
        lambda made: made.network[0].weight.neg_(),
        lambda made: made.mean.add_(1),
        lambda made: made.low.sub_(100),
    )
    for change in wrong:
        monkeypatch.setattr(onnx_file, "Graph", changed(change))
        with pytest.raises(PipelineError, match="not written: its actions differ"):
            export(policy, OF_TRAINING, file)
        assert file.read_bytes() == b"before"
    monkeypatch.setattr(onnx_file, "Graph", changed(lambda made: None))
    export(policy, OF_TRAINING, file)


def test_a_stochastic_policy_is_refused(tmp_path: Path) -> None:
    clone = loaded(tmp_path / "clone", discrete=True, drawn=True)
    with pytest.raises(PipelineError, match="found a clone whose actions have probabilities"):
        export(clone, OF_TRAINING, tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()
