"""Ask the private units: noisy releases of bounded numbers of every unit, of which each sees those
before.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from primorl.evaluate.private.behaviour import Behaviour
from primorl.evaluate.private.problem import EpisodeSource, Problem, portions
from primorl.privacy.ledger.checkpoint import DataclassState
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import Mechanism


@dataclass(frozen=True)
class Asked(DataclassState):
    """State of a question, as a checkpoint holds it.

    Attributes:
        released: the releases, one behind the other; empty before the first is made.
        about: what the question is about, so that it is not answered about something else after a
            kill.
        started: releases whose noise may have been drawn. They are then spent.
        made: releases in ``released``.
        finished: whether all are there.
    """

    released: Tensor
    about: str = ""
    started: int = 0
    made: int = 0
    finished: bool = False


def noise_of(mechanism: Mechanism) -> float:
    """Compute the standard deviation of the noise on every number of a release: public."""
    return mechanism.noise_multiplier * mechanism.clip.sensitivity / mechanism.expected_cohort


def ask(
    question: Behaviour,
    problem: Problem,
    mechanism: Mechanism,
    source: EpisodeSource,
    begin: Asked,
    *,
    save_checkpoint: Callable[[Asked], None] = lambda state: None,
) -> Asked:
    """Ask a question, or what is left of it.

    A kill while rows are read costs nothing, as there is nothing to draw again but the noise.

    Args:
        question: to be asked.
        problem: its subject.
        mechanism: of the question; draws the noise.
        source: the private units.
        begin: the state before the next release.
        save_checkpoint: must have stored the state durably when it returns. Each release is
            announced to it when the sum is known, before the noise is drawn.

    Returns:
        The finished state.

    Raises:
        ValueError: the source does not hold the number of units that the mechanism declares.
    """
    if source.units != mechanism.units:
        raise ValueError("the number of private units differs from the one the mechanism declares")
    clip = mechanism.clip
    assert isinstance(clip, L2Clip)
    everybody = torch.arange(source.units)
    width = problem.observation_size + problem.action_size + 2
    state = begin
    for number in range(begin.made, mechanism.rounds):
        total: Tensor | None = None
        for episodes in portions(source, everybody, width):
            found = question.contributions(problem, episodes, noise_of(mechanism), state.released)
            part = clip.finish(found).sum(0)
            total = part if total is None else total + part
        assert total is not None, "there is at least one unit"
        save_checkpoint(replace(state, started=number + 1))
        released = mechanism.release(total)
        state = Asked(
            torch.cat((state.released, released.double())),
            begin.about,
            started=number + 1,
            made=number + 1,
            finished=number + 1 == mechanism.rounds,
        )
        save_checkpoint(state)
    return state
