"""What the engine asks of the networks that it trains: sizes and initial weights."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from primorl.dynamics.ensemble import Weights


class Network(Protocol):
    """N equal MLPs side by side: the dynamics ensemble (`Architecture`) or a cloned policy (`PolicyNetwork`)."""

    @property
    def members(self) -> int:
        """N."""

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of every hidden layer."""

    @property
    def inputs(self) -> int:
        """Columns of an input row."""

    @property
    def targets(self) -> int:
        """Columns of a target row that are standardised."""

    @property
    def columns(self) -> int:
        """Columns of a target row: those, and a flag where the network has a head for it."""

    @property
    def target_names(self) -> tuple[str, ...]:
        """What each column of a target row is."""

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of every layer."""

    @property
    def parameters(self) -> int:
        """Weights of all members: the dimension of one noise draw."""

    def initial_weights(self, seed: int) -> "Weights":
        """Weights from a public seed."""
