"""Who is in a dataset version, as keyed digests, and whether anyone is in another one too."""

import numpy as np

DIGEST_BYTES = 16


class Members:
    """The digests of a version, laid out for comparison.

    Sorted by their first eight bytes, which hardly ever agree by chance: another version's are looked up among them
    all at once, and only where they agree are the other eight compared. So the answer is exact, and 30,000 units
    against 30,000 take milliseconds.

    Args:
        content: whole digests of `DIGEST_BYTES`, in any order.
    """

    def __init__(self, content: bytes):
        halves = np.frombuffer(content, dtype="<u8").reshape(-1, 2)
        halves = halves[np.argsort(halves[:, 0])]
        self._first, self._second = np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])

    def share(self, other: "Members") -> bool:
        """Whether the two have a digest in common."""
        start = np.searchsorted(other._first, self._first, side="left")
        inside = start < other._first.size
        agree = np.flatnonzero(inside & (other._first[np.where(inside, start, 0)] == self._first))
        stop = np.searchsorted(other._first, self._first[agree], side="right")
        return any(
            bool((other._second[start[mine] : end] == self._second[mine]).any())
            for mine, end in zip(agree, stop, strict=True)
        )
