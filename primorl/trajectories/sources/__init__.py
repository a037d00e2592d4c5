"""Where trajectories come from: one module a kind of source, found by ``source:`` in params.yaml."""

from importlib import import_module

from primorl.config.datasets import AnyDataset
from primorl.trajectories.sources.source import Source

_MODULES = {
    "replay": "replay",
    "minari": "minari.source",
    "d4rl": "d4rl",
    "tabular": "tabular.source",
    "icu-sepsis": "icu_sepsis",
    "propofol": "propofol",
}


def source_of(name: str, dataset: AnyDataset) -> Source:
    """Make the source of the entry ``name`` of ``datasets``; import only its own module."""
    module = import_module(f"{__name__}.{_MODULES[dataset.source]}")
    source: Source = module.source(name, dataset)
    return source
