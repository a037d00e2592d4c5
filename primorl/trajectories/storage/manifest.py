"""Manifest of a partitioned dataset: all that is declared public about it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from primorl.project.errors import PipelineError
from primorl.project.files import read_json
from primorl.trajectories.storage.schema import DatasetInfo

PublicBy = Literal["hash", "column", "file"]
PUBLIC_BY: dict[str, str] = {
    "hash": "drawn by a hash of the id, nobody was asked",
    "column": "by consent, as a column of the data says",
    "file": "by consent, as a list of ids says",
}
"""Ways to choose public units, in words for a statement or a card."""


@dataclass(frozen=True)
class Manifest:
    """Public declarations about a partitioned dataset: its facts and the numbers of its units.

    Attributes:
        info: the dataset's facts.
        private_units: how many units are protected.
        public_units: how many are not.
        public_by: how those were chosen: ``hash`` of the id, or consent by a ``column`` or a ``file``.
        secret_check: of the secret that keys the digests (`fingerprint.secret_check`); None in files of older versions.
    """

    info: DatasetInfo
    private_units: int
    public_units: int
    public_by: str = "hash"
    secret_check: str | None = None

    def declared_horizon(self) -> int:
        """Give the most steps of an episode.

        Data without an environment must declare it: no policy could be judged otherwise. Declared later, it would make
        another dataset, and the model would be charged again.

        Raises:
            PipelineError: nobody declared it.
        """
        if self.info.horizon is None:
            raise PipelineError(
                f"datasets/{self.info.dataset}.yaml: horizon: found null, and there is no environment that knows it; "
                "allowed is the most steps an episode can have, known beforehand, not counted in the data"
            )
        return self.info.horizon

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, flat: the dataset's facts, its sizes and the counts."""
        content = self.info.to_json() | {
            "observation_size": self.info.spaces.observation_size,
            "action_size": self.info.spaces.action_size,
            "private_units": self.private_units,
            "public_units": self.public_units,
            "public_by": self.public_by,
        }
        return content if self.secret_check is None else content | {"secret_check": self.secret_check}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read ``manifest.json``.

        Raises:
            PipelineError: if it is missing, not JSON, or without the keys of a manifest.
        """
        content = read_json(path)
        try:
            counts = content["private_units"], content["public_units"]
            chosen = content.get("public_by", "hash"), content.get("secret_check")
            return cls(DatasetInfo.from_json(content), *counts, *chosen)
        except (KeyError, TypeError, AttributeError):
            raise PipelineError(f"{path}: not a manifest; run `dvc repro partition` to make it again") from None
