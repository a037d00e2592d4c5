"""How much noise a job needs: the multiplier at which its mechanism costs a given ε."""

import math

from primorl.base.errors import PipelineError
from primorl.privacy.accounting.solving import solve_noise_multiplier


def solve_noise(
    epsilon: float,
    delta: float,
    q: float,
    rounds: int,
    queries: tuple[float, ...] = (),
    key: str = "params.yaml: privacy.target_epsilon",
) -> float:
    """Solve for the noise multiplier at which a mechanism costs this ε, a part of that of a key.

    Raises:
        PipelineError: none is enough.
    """
    try:
        return solve_noise_multiplier(epsilon, delta, q, rounds, queries)
    except ValueError as impossible:
        raise PipelineError(
            f"{key}: a job's part of it is {epsilon:.6g}: {impossible}; raise it"
        ) from None


def noise_of_share(epsilon: float, delta: float, share: float) -> float:
    """Compute the noise multiplier of a query of all units that takes a share of this ε.

    The share is of 1/z² of one Gaussian release at the whole ε, which adds up over queries and
    rounds of all units.

    Raises:
        PipelineError: no noise is enough.
    """
    return float(f"{solve_noise(epsilon, delta, 1.0, 1) / math.sqrt(share):.4g}")
