"""What the paper reports: mean and half of its 95% interval, and ε (RDP, at the average round of
stopping).
"""

from typing import NamedTuple


class Published(NamedTuple):
    """A row of the paper's tables 1 and 6."""

    mean: float
    half: float
    epsilon: float | None = None


PUBLISHED: dict[str, dict[str, Published]] = {
    "pendulum": {
        "MOPO": Published(795.9, 6.5),
        "No Privacy": Published(810.4, 27.5),
        "Low": Published(817.4, 21.7, 22.3),
        "High": Published(778.9, 53.5, 5.1),
    },
    "balance": {
        "MOPO": Published(976.3, 26.8),
        "No Privacy": Published(947.5, 68.3),
        "Low": Published(815.8, 97.2, 85.0),
        "High": Published(758.2, 187.2, 8.2),
    },
    "swingup": {
        "MOPO": Published(804.9, 89.6),
        "No Privacy": Published(774.1, 81.7),
        "Low": Published(772.4, 73.9, 94.2),
        "High": Published(698.3, 57.5, 17.0),
    },
    "halfcheetah": {
        "MOPO": Published(10931, 1326),
        "No Clip": Published(7062, 2230),
        "No Noise": Published(8792, 2053),
        "z 1e-4": Published(9729, 2018),
        "z 1e-3": Published(3697, 1465),
    },
}
"""By task and case; all on the paper's own data, so they are a reference and no race."""
