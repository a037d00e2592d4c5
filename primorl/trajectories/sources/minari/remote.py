"""Minari datasets that are not on this machine, fetched from Minari's own place on the Hugging Face hub."""

import shutil
from pathlib import Path

from primorl.project.errors import PipelineError

_OWNER = "farama-minari"
_SECONDS = 10.0


def fetch(dataset_id: str, root: Path) -> None:
    """Fetch ``dataset_id`` into ``root``, where Minari itself would put it.

    It is fetched into a folder beside its place and moved when it is complete. So an interrupted fetch is resumed by
    the next one and never looks like a dataset. Minari's own download asks for a list of all datasets first and tries
    an unreachable host for 24 s.

    Raises:
        PipelineError: if there is no such dataset, the hub cannot be reached, or ``huggingface_hub`` is missing.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import (
            EntryNotFoundError,
            LocalEntryNotFoundError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
        )
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
        there = api.dataset_info(place, timeout=_SECONDS)  # fails at once where a download would try again for long
        if not any(file.rfilename == f"{data}/metadata.json" for file in there.siblings or []):
            raise EntryNotFoundError(data)
        api.snapshot_download(place, repo_type="dataset", allow_patterns=f"{data}/*", local_dir=staged)
    except OfflineModeIsEnabled:
        raise PipelineError(
            f"options.parts: {dataset_id!r} is not in {root}, and HF_HUB_OFFLINE forbids to fetch it; "
            "unset it, or copy the dataset there"
        ) from None
    except LocalEntryNotFoundError as unreachable:
        raise _unreachable(dataset_id, root, unreachable) from None
    except (RepositoryNotFoundError, EntryNotFoundError):
        raise PipelineError(
            f"options.parts: no Minari dataset {dataset_id!r}, neither in {root} nor among Minari's remote ones; "
            "`minari list remote` shows them"
        ) from None
    except Exception as unreachable:  # the hub's client lets many kinds of its HTTP library's errors through
        raise _unreachable(dataset_id, root, unreachable) from None
    (root / dataset_id).mkdir(parents=True, exist_ok=True)
    (staged / data).replace(root / dataset_id / "data")
    shutil.rmtree(staged, ignore_errors=True)


def _unreachable(dataset_id: str, root: Path, why: Exception) -> PipelineError:
    return PipelineError(
        f"options.parts: {dataset_id!r} is not in {root} and could not be fetched ({type(why).__name__}); "
        "check the network and run again, or copy the dataset there"
    )
