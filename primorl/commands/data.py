"""``primorl data``."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from primorl.base.paths import PARTITIONS
from primorl.commands.terminal import AsJson, add_group, format_table

if TYPE_CHECKING:
    from primorl.data.description import PublicSplit

_EXAMPLES = """Examples:
  primorl data describe                     facts, counts, fingerprint, public statistics
"""


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    add_group(app, "data", "Describe the dataset.", _EXAMPLES, _describe)


def _describe(
    as_json: AsJson = False,
) -> None:
    """Describe the dataset and its public split. Opens nothing private."""
    from primorl.data.description import describe

    _check_units()
    about, public = describe(PARTITIONS)
    columns, cut = _read_bounds(about, public)
    about["declared"] = columns
    print(json.dumps(about, indent=2, allow_nan=False) if as_json else _text(about, cut=cut))


def _check_units() -> None:
    """Refuse a public split with units that the ledger knows as private."""
    from primorl.base.files import home
    from primorl.base.paths import LEDGER_HEAD, MANIFEST, PARAMS
    from primorl.config.params import load
    from primorl.work.data import open_public

    if MANIFEST.exists() and (PARAMS.exists() or (home() / LEDGER_HEAD).exists()):
        open_public(load())


def _read_bounds(
    about: dict[str, Any], public: "PublicSplit | None"
) -> tuple[list[dict[str, Any]], bool]:
    """Read the bounds that the model keeps to, of each dimension of an observation and of the
    reward.

    Returns:
        The bounds with the share of public values outside, and whether last rows are dropped.
    """
    from primorl.base.files import finite
    from primorl.base.paths import MANIFEST, PARAMS
    from primorl.config.params import load
    from primorl.data.description import cuts_last_rows, list_bounds
    from primorl.data.storage.schema import Manifest

    params = load(PARAMS) if PARAMS.exists() else None
    dataset = params.chosen if params is not None and params.dataset == about["dataset"] else None
    columns = list_bounds(dataset, Manifest.load(MANIFEST).info.spaces)
    values = None if public is None else [*public.observation.T, public.reward]
    return [
        {
            "name": column.name,
            "low": finite(column.low),
            "high": finite(column.high),
            "from_public": column.of_public,
            "outside": None if values is None else column.outside(values[i]),
        }
        for i, column in enumerate(columns)
    ], cuts_last_rows(dataset)


def _text(about: dict[str, Any], *, cut: bool) -> str:
    """Write facts, then a table of dimensions, then the public split."""
    discrete, public = about["spaces"]["discrete_actions"], about["public"]
    actions = ", ".join(about["action_names"])
    facts = {
        "dataset": about["dataset"],
        "environment": about["environment"] or "none: no simulator",
        "unit": (
            f"{about['unit']}: {about['private_units']} private, {about['public_units']} public"
        ),
        "episodes": f"at most {about['horizon'] or '?'} steps; termination: {about['termination']}",
        "fingerprint": f"{about['dataset_fingerprint']} (keyed)",
        "observation": f"{about['observation_size']} numbers",
        "action": f"one of {about['action_size']}: {actions}" if discrete else actions,
        "columns": ", ".join(f"{name} {kind}" for name, kind in about["schema"].items()),
    }
    lines = [f"{name:<13}{value}" for name, value in facts.items()]
    measured = ("public min", "max", "mean", "std", "outside") if public is not None else ()
    headers = ("dimension", "declared", *measured)
    lines += ["", format_table(headers, _dimensions(about), right=measured)]
    if public is None:
        lines += ["", "public split: none, and nothing may be said of the private one"]
        return "\n".join(lines)
    lines += [
        "",
        f"public split: {public['trajectories']} trajectories, {public['transitions']} transitions",
    ]
    for what in ("return", "length"):
        quantiles = " / ".join(f"{public[what][q]:.4g}" for q in ("5%", "50%", "95%"))
        lines.append(f"  {what:<10} {quantiles} (5 / 50 / 95%)")
    lines.append(f"  terminated {public['terminated_share']:.1%} of trajectories")
    if cut and public["terminated_share"] < 1:
        lines.append("  last rows that do not terminate are not used, and their reward is lost")
    if about["termination"] == "learned" and public["terminated_share"] > 0:
        lines.append(
            "  a discharge, a cut or a time limit is no termination (docs/datasets/tabular.md)"
        )
    return "\n".join(lines)


def _dimensions(about: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield name, declared bounds and public statistics of each dimension of observation, action
    and reward.
    """
    size, spaces = about["observation_size"], about["spaces"]
    parts = {"observation": about["declared"][:size], "reward": about["declared"][size:]}
    if not spaces["discrete_actions"]:  # actions outside their bounds are refused at ingest
        columns = zip(
            about["action_names"], spaces["action_low"], spaces["action_high"], strict=True
        )
        parts["action"] = [{"name": name, "low": low, "high": high} for name, low, high in columns]
    for what, columns in parts.items():
        for i, column in enumerate(columns):
            low, high = column["low"], column["high"]
            bounds = (
                f"[{'-inf' if low is None else f'{low:.4g}'}, "
                f"{'inf' if high is None else f'{high:.4g}'}]"
            )
            if column.get("from_public"):
                bounds = "those of the public split"
            measured: tuple[str, ...] = ()
            if about["public"] is not None:
                found = about["public"][what]
                numbers = (f"{found[q][i]:.4g}" for q in ("min", "max", "mean", "std"))
                measured = (*numbers, f"{column.get('outside', 0.0):.1%}")
            yield column["name"], bounds, *measured
