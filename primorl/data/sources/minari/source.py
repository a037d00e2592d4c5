"""``source: minari``: datasets in Minari's formats, one or several as a mixture."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from primorl.base.errors import PipelineError
from primorl.base.files import home
from primorl.config.datasets import MinariDataset
from primorl.data.sources import Reader
from primorl.data.sources.minari.reading import Metadata, MixtureReader, Part
from primorl.data.sources.spaces import declared, unflattened
from primorl.simulators.environments import make

_OWNER = "farama-minari"  # on the Hugging Face hub
_SECONDS = 10.0


@dataclass(frozen=True)
class Minari:
    """See `primorl.data.sources.Source`."""

    name: str
    dataset: MinariDataset

    def collect(self, target: Path) -> None:
        """Copy every part from this machine; fetch missing ones first, where the entry allows it."""
        options = self.dataset.options
        root = Path(os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets"))
        if options.root is not None:
            root = home() / Path(options.root).expanduser()
        for part in options.parts:
            if not (root / part.id / "data" / "metadata.json").is_file():
                if not options.remote:
                    found = root.glob("[!.]*/**/data/metadata.json")
                    there = sorted(str(path.parent.parent.relative_to(root)) for path in found)
                    raise PipelineError(
                        f"options.parts: no Minari dataset {part.id!r} in {root}; there: {', '.join(there) or 'none'}; "
                        f"set options.remote to true to fetch it, run `minari download {part.id}`, or set options.root"
                    )
                fetch(part.id, root)
            shutil.copytree(root / part.id / "data", target / part.id / "data")

    def open(self, raw: Path) -> Reader:
        """Read the parts as one.

        Without an environment the spaces are those that the datasets themselves declare.
        """
        parts = []
        for part in self.dataset.options.parts:
            path = raw / part.id / "data" / "metadata.json"
            if not path.is_file():
                raise PipelineError(
                    f"{path.parent}: no Minari dataset here; run `dvc repro collect`"
                )
            parts.append(Part(Metadata.read(path), f"{part.id}/", part.filter))
        path = raw if len(parts) > 1 else parts[0].metadata.data
        if self.dataset.environment is not None:
            with make(self.dataset.environment) as env:
                entries = unflattened(env)
            return MixtureReader(
                path, parts, *declared(self.dataset.environment), self.dataset.unit, entries
            )
        spaces = parts[0].metadata.spaces()
        for other in parts[1:]:
            if other.metadata.spaces() != spaces:
                raise PipelineError(
                    f"{other.metadata.path}: its spaces are not those of {parts[0].metadata.path}; allowed are parts "
                    "of equal spaces, or an `environment` that declares them for all"
                )
        return MixtureReader(path, parts, spaces, None, self.dataset.unit)


def fetch(dataset_id: str, root: Path) -> None:
    """Fetch ``dataset_id`` into ``root``, where Minari itself would put it.

    It is fetched into a folder beside its place and moved when it is complete. So an interrupted fetch is resumed by
    the next one and never looks like a dataset. Minari's own download asks for a list of all datasets first and tries
    an unreachable host for 24 s.

    Raises:
        PipelineError: if there is no such dataset, the hub cannot be reached, or ``huggingface_hub`` is missing.
    """
    try:
        from huggingface_hub import HfApi, errors
    except ImportError:
        raise PipelineError(
            f"options.parts: {dataset_id!r} is not in {root}, and fetching it needs huggingface_hub; "
            "`pip install 'primorl[minari-remote]'`, or copy the dataset there"
        ) from None
    repository, _, inside = dataset_id.partition("/")
    data = f"{inside}/data" if inside else "data"
    staged = root / ".fetching" / repository
    api = HfApi()
    try:
        place = f"{_OWNER}/{repository}"
        there = api.dataset_info(
            place, timeout=_SECONDS
        )  # fails at once where a download would try again for long
        if not any(file.rfilename == f"{data}/metadata.json" for file in there.siblings or []):
            raise errors.EntryNotFoundError(data)
        api.snapshot_download(
            place, repo_type="dataset", allow_patterns=f"{data}/*", local_dir=staged
        )
    except errors.OfflineModeIsEnabled:
        raise PipelineError(
            f"options.parts: {dataset_id!r} is not in {root}, and HF_HUB_OFFLINE forbids to fetch it; "
            "unset it, or copy the dataset there"
        ) from None
    except (
        Exception
    ) as refused:  # the hub's client lets many kinds of its HTTP library's errors through
        unknown = isinstance(refused, errors.RepositoryNotFoundError | errors.EntryNotFoundError)
        if unknown and not isinstance(refused, errors.LocalEntryNotFoundError):
            raise PipelineError(
                f"options.parts: no Minari dataset {dataset_id!r}, neither in {root} nor among Minari's remote ones; "
                "`minari list remote` shows them"
            ) from None
        raise PipelineError(
            f"options.parts: {dataset_id!r} is not in {root} and could not be fetched ({type(refused).__name__}); "
            "check the network and run again, or copy the dataset there"
        ) from None
    (root / dataset_id).mkdir(parents=True, exist_ok=True)
    (staged / data).replace(root / dataset_id / "data")
    shutil.rmtree(staged, ignore_errors=True)
