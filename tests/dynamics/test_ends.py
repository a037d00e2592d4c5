"""A learned end is believed where public rows support it, and a model without its head is the same but for ends."""

import pytest
import torch
from torch import Tensor

from primorl.dynamics.ensemble import Evidence, evidence
from primorl.dynamics.pessimism import PessimisticModel
from primorl.dynamics.seed_generators import SeedGenerators
from tests.dynamics.models import CPU, ends_where_positive


def rows(count: int = 400) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, 0] > 0


def test_a_head_is_believed_where_it_beats_the_rate_of_ends() -> None:
    inputs, ended = rows()
    share = ended.float().mean()
    entropy = -(share * share.log() + (1 - share) * (1 - share).log())
    for sharpness, believed in ((3.0, True), (0.05, False), (-3.0, False)):
        found = evidence(ends_where_positive(sharpness), inputs, ended)
        assert found.constant == pytest.approx(float(entropy), rel=1e-4)
        assert found.terminations == int(ended.sum())
        assert found.supports is believed
    few = ended & (ended.cumsum(0) <= 19)
    assert not evidence(ends_where_positive(3.0), inputs[few | ~ended], few[few | ~ended]).supports
    assert not Evidence(0, float("nan"), float("nan")).supports


def test_without_its_head_a_model_moves_and_pays_as_before_and_never_ends() -> None:
    model = ends_where_positive(3.0)
    bare = model.without_head()
    inputs, _ = rows(64)
    with_head, alone = (one.predict(inputs[:, :1], inputs[:, 1:]) for one in (model, bare))
    torch.testing.assert_close(with_head[:2], alone[:2])
    assert alone[2] is None
    steps = PessimisticModel(bare, uncertainty="max_aleatoric", penalty=0.0)
    assert steps.step(inputs[:, :1], inputs[:, 1:], SeedGenerators.of([0], CPU)).terminated is None
    assert bare.without_head() is bare
    assert model.with_ends(None) is model
    assert model.with_ends("none").termination == "none", "as the policy's rollouts used it"
