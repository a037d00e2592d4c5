"""``primorl plan``."""

from contextlib import nullcontext
from typing import Annotated, Literal

from primorl.commands.terminal import MOST_ROUNDS, AsJson, option


def plan(
    sampling_probability: Annotated[
        float | None,
        option(
            "Q",
            "Probability with which each unit joins a round.",
            min=1e-12,
            max=1,
        ),
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        option("Z", "Noise over clipping norm.", min=1e-6, max=1e6),
    ] = None,
    rounds: Annotated[int | None, option("T", "Number of rounds.", min=1, max=MOST_ROUNDS)] = None,
    delta: Annotated[float | None, option("D", "δ.", min=1e-300, max=0.999999)] = None,
    target_epsilon: Annotated[
        float | None,
        option(
            "E",
            "Solve for the noise or the rounds that spend this ε, by PLD.",
            min=1e-12,
            max=1e12,
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

    numbers = {
        "sampling_probability": sampling_probability,
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "delta": delta,
        "target_epsilon": target_epsilon,
    }
    given = {name: number for name, number in numbers.items() if number is not None}
    wanted = None if solve is None else solve.replace("-", "_")
    own = not (as_json or given or solve)
    # DVC takes as long to start as the accountant to load
    with Status() if own else nullcontext() as status:
        from primorl.commands import plan_answer

        plan_answer.show(given, wanted, as_json=as_json, status=status)
