"""``primorl plan``."""

import math
from contextlib import nullcontext
from typing import Annotated, Literal

from primorl.commands.terminal import MOST_ROUNDS, AsJson, number, option

_MULTIPLIERS = "a number from 1e-06 to 1e+06"


def _is_multiplier(z: float) -> bool:
    return 1e-6 <= z <= 1e6  # the range that dp-accounting can account for


_probability = number(float, lambda q: 0 < q <= 1, "a number above 0, at most 1")
_multiplier = number(float, _is_multiplier, _MULTIPLIERS)
_rounds = number(int, lambda t: 1 <= t <= MOST_ROUNDS, f"a whole number from 1 to {MOST_ROUNDS}")
_delta = number(float, lambda d: 0 < d < 1, "a number above 0 and below 1")
_epsilon = number(float, lambda e: 0 < e < math.inf, "a number above 0")


def plan(
    sampling_probability: Annotated[
        float | None,
        option("Q", "Probability with which each unit joins a round.", parser=_probability),
    ] = None,
    noise_multiplier: Annotated[
        float | None, option("Z", "Noise over clipping norm.", parser=_multiplier)
    ] = None,
    rounds: Annotated[int | None, option("T", "Number of rounds.", parser=_rounds)] = None,
    delta: Annotated[float | None, option("D", "δ.", parser=_delta)] = None,
    target_epsilon: Annotated[
        float | None,
        option(
            "E", "Solve for the noise or the rounds that spend this ε, by PLD.", parser=_epsilon
        ),
    ] = None,
    solve: Annotated[
        Literal["noise-multiplier", "rounds"] | None,
        option("WHAT", "What to solve for: noise-multiplier (default) or rounds."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the ε of a mechanism, or solve for a target ε.

    Examples:
      primorl plan                                     cost, verdict and numbers of the next run
      primorl plan --target-epsilon 1                  the noise for ε 1, all else as in this run
      primorl plan --target-epsilon 1 --solve rounds   the rounds that ε 1 pays for
      primorl plan --sampling-probability 0.01 --noise-multiplier 2 --rounds 400 --delta 1e-5

    Options that are not given are those of the run that params.yaml describes, and so are the
    queries beside its rounds: ε covers all of them together. Nothing is spent and no private row
    is read.
    """
    from primorl.base.dvc import Status

    given = (sampling_probability, noise_multiplier, rounds, delta, target_epsilon, solve)
    own = not as_json and all(number is None for number in given)
    # DVC takes as long to start as the accountant to load
    with Status() if own else nullcontext() as status:
        from primorl.commands import plan_answer

        plan_answer.show(plan_answer.Options(*given), as_json=as_json, status=status)
