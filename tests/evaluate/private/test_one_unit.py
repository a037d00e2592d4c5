"""Whatever a unit holds, its part in a release is bounded, and nobody else's changes."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.evaluate.private.behaviour import Behaviour
from primorl.evaluate.private.model_check import ModelCheck
from primorl.evaluate.private.problem import Episodes, Problem
from primorl.evaluate.private.question import Asked, Question, ask
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import Mechanism
from tests.evaluate.private import tiny_mdp
from tests.evaluate.private.conftest import Log, payers, problem
from tests.mechanisms import SeededEntropy

UNITS, SPOILT = 12, 4
HOSTILE = (math.nan, math.inf, -1e300, 3e38, 1e8)
TINY, CHAIN = tiny_mdp.problem(UNITS), problem(UNITS)
BEHAVIOUR = Behaviour(levels=4)
NOTHING = torch.empty(0, dtype=torch.float64)
QUESTIONS: dict[str, tuple[Question, Problem, Tensor]] = {
    "behaviour": (BEHAVIOUR, CHAIN, NOTHING),
    "behaviour, in its range": (BEHAVIOUR, CHAIN, torch.linspace(0.4, -0.4, 15).double()),
    "model_check": (ModelCheck(horizons=(1, 3, 4), starts=3, cap=1.5), TINY, NOTHING),
}
BEGIN = Asked(NOTHING)


def logged(asked: Problem) -> tuple[Log, list[Log]]:
    """A log, and what it may be where one unit is hostile."""
    source = tiny_mdp.log(UNITS) if asked is TINY else payers(UNITS, 1.0)
    mixed = source.spoilt(SPOILT, 1e300)
    mixed.inputs[SPOILT, 0], mixed.targets[SPOILT, 1:] = math.nan, -math.inf
    return source, [*(source.spoilt(SPOILT, number) for number in HOSTILE), mixed]


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_unit_moves_a_release_by_at_most_its_sensitivity_and_nobody_else(name: str) -> None:
    question, asked, released = QUESTIONS[name]
    source, hostile = logged(asked)
    mechanism, others = question.build_mechanism(asked, 1.0, 1), torch.arange(UNITS) != SPOILT
    before = question.contributions(asked, source.episodes(), 0.1, released)
    norms = before.norm(dim=1)
    assert 0.7 < norms.max() <= 1 + 1e-12 < mechanism.clip.sensitivity, "the clip changes nothing"
    for each in hostile:
        after = question.contributions(asked, each.episodes(), 0.1, released)
        torch.testing.assert_close(after[others], before[others], rtol=1e-9, atol=1e-12)
        for clip in (mechanism.clip, L2Clip(1e-3)):
            assert isinstance(clip, L2Clip)
            moved = clip.finish(after.clone()).sum(0) - clip.finish(after[others].clone()).sum(0)
            assert float(moved.norm()) <= clip.sensitivity * (1 + 1e-9)
    alone = [source.episodes(unit) for unit in range(UNITS)]
    apart = torch.cat([question.contributions(asked, own, 0.1, released) for own in alone])
    torch.testing.assert_close(apart, before, rtol=1e-9, atol=1e-12)


class Careless(Behaviour):
    """Forgets to hold a unit to its blocks."""

    def contributions(
        self, problem: Problem, episodes: Episodes, noise: float, released: Tensor
    ) -> Tensor:
        return 2 * super().contributions(problem, episodes, noise, released)


def test_what_forgets_its_bound_is_clipped() -> None:
    source, careless = payers(UNITS, 1.0), Careless(levels=4)
    contributed = careless.contributions(CHAIN, source.episodes(), 1e-9, NOTHING)
    mechanism = replace(
        careless.build_mechanism(CHAIN, 1.0, 1), noise_multiplier=1e-9, entropy=SeededEntropy(0)
    )
    assert (contributed.norm(dim=1) > mechanism.clip.sensitivity).any()
    total = ask(careless, CHAIN, mechanism, source, BEGIN).released[:15] * UNITS
    assert not torch.allclose(total, contributed.sum(0), atol=1e-3)
    assert float(total.norm()) <= UNITS * mechanism.clip.sensitivity


def test_a_release_is_announced_before_its_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    source, mechanism, release = (
        payers(UNITS, 1.0),
        BEHAVIOUR.build_mechanism(CHAIN, 1.0, 2),
        Mechanism.release,
    )
    seen: list[tuple[int, int]] = []

    def drawn(own: Mechanism, total: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        assert seen in ([(1, 0)], [(1, 0), (1, 1), (2, 1)])
        return release(own, total)

    monkeypatch.setattr(Mechanism, "release", drawn)
    state = ask(
        BEHAVIOUR,
        CHAIN,
        mechanism,
        source,
        BEGIN,
        save_checkpoint=lambda state: seen.append((state.started, state.made)),
    )
    assert seen == [(1, 0), (1, 1), (2, 1), (2, 2)]
    assert state.finished
    restored = Asked.restore(state.tensors(), state.facts())
    assert torch.equal(restored.released, state.released)
    with pytest.raises(ValueError, match="the number of private units differs"):
        ask(BEHAVIOUR, CHAIN, mechanism, payers(5, 1.0), BEGIN)
