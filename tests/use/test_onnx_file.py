"""The ONNX file is written only after it was seen to compute what the policy computes.

`tests/examples/test_same_action.py` has what it computes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from primorl.base.errors import PipelineError
from primorl.policy.loaded import Policy
from primorl.use import onnx_file
from primorl.use.onnx_file import export
from tests.policy.test_loaded import NAMES, RANGE, loaded
from tests.statements import OF_TRAINING

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


@pytest.fixture(params=["box", "discrete"])
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> Policy:
    return loaded(tmp_path / "policy", discrete=request.param == "discrete", **RANGE, **NAMES)


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
    rows, difference = export(policy, OF_TRAINING, file)
    assert rows > 1000
    assert difference <= (0.001 if policy.discrete_actions else 1e-5)
