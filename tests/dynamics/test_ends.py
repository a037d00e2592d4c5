"""A learned end is believed where public rows support it, and a model without its head is the same but for ends."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ends import Evidence, evidence, with_ends, without_head
from primorl.dynamics.ensemble import Bounds, GaussianEnsemble
from primorl.dynamics.normaliser import Normaliser
from primorl.dynamics.pessimism import PessimisticModel
from primorl.dynamics.seed_generators import SeedGenerators

CPU = torch.device("cpu")


def ensemble(sharpness: float) -> GaussianEnsemble:
    """Ends where the state is positive, as surely as ``sharpness`` says."""
    shape = Architecture(1, 1, 2, (2,), -10.0, 0.5, True)
    weights = [weight.clone() for weight in shape.initial_weights(0)]
    weights[0][:] = torch.tensor([[40.0, -40.0], [0.0, 0.0]])
    weights[1][:] = 0.0
    weights[2][..., -1] = torch.tensor([1.0, -1.0]) * sharpness / 400
    weights[3][..., -1] = 0.0
    box = torch.full((1,), 9.0)
    normaliser = Normaliser(torch.zeros(2), torch.ones(2), torch.zeros(2), torch.ones(2), flag=True)
    return GaussianEnsemble(shape, tuple(weights), normaliser, Bounds(-box, box, -box, box, -9.0, 9.0), "learned")


def rows(count: int = 400) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, 0] > 0


@pytest.mark.parametrize(("sharpness", "believed"), [(3.0, True), (0.05, False), (-3.0, False)])
def test_a_head_is_believed_where_it_beats_the_rate_of_ends(sharpness: float, believed: bool) -> None:
    found = evidence(ensemble(sharpness), *rows())
    _, ended = rows()
    share = ended.float().mean()
    entropy = -(share * share.log() + (1 - share) * (1 - share).log())
    assert found.constant == pytest.approx(float(entropy), rel=1e-4)
    assert found.terminations == int(ended.sum())
    assert found.supports is believed


def test_few_ends_support_nothing() -> None:
    inputs, ended = rows()
    few = ended & (ended.cumsum(0) <= 19)
    assert not evidence(ensemble(3.0), inputs[few | ~ended], few[few | ~ended]).supports
    assert not Evidence(0, float("nan"), float("nan")).supports


def test_without_its_head_a_model_moves_and_pays_as_before_and_never_ends() -> None:
    model = ensemble(3.0)
    bare = without_head(model)
    inputs, _ = rows(64)
    with_head, alone = (one.predict(inputs[:, :1], inputs[:, 1:]) for one in (model, bare))
    torch.testing.assert_close(with_head[0], alone[0])
    torch.testing.assert_close(with_head[1], alone[1])
    assert alone[2] is None
    steps = PessimisticModel(bare, uncertainty="max_aleatoric", penalty=0.0)
    assert steps.step(inputs[:, :1], inputs[:, 1:], SeedGenerators.of([0], CPU)).terminated is None
    assert without_head(bare) is bare
    assert with_ends(model, None) is model
    assert with_ends(model, "none").termination == "none", "as the policy's rollouts used it"


def test_the_penalty_without_a_unit_follows_the_rewards_scale() -> None:
    """u does not change when all targets are measured in other units, and λu does with the reward's."""
    model = without_head(ensemble(3.0))
    larger = replace(model, normaliser=replace(model.normaliser, target_scale=torch.tensor([7.0, 100.0])))
    inputs, _ = rows(64)
    found = []
    for one in (model, larger):
        free, paid = (
            PessimisticModel(
                replace(one, bounds=replace(one.bounds, reward_low=-1e6, reward_high=1e6)),
                uncertainty="standardised_difference",
                penalty=penalty,
            ).step(inputs[:, :1], inputs[:, 1:], SeedGenerators.of([0], CPU))
            for penalty in (0.0, 2.0)
        )
        mean = one.predict(inputs[:, :1], inputs[:, 1:])[0] / one.normaliser.target_scale
        true = (mean - mean.mean(0)).square().sum(-1).sqrt().amax(0)
        torch.testing.assert_close(paid.uncertainty, true)
        found.append(((free.reward - paid.reward), paid.uncertainty))
    torch.testing.assert_close(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][0], 2 * found[0][1])
    torch.testing.assert_close(found[1][0], 200 * found[0][1], rtol=1e-3, atol=1e-3)
