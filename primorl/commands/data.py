"""``primorl data``."""

import argparse
import json
from pathlib import Path
from typing import Any

HELP = "what may be known of the dataset, and private data to a private remote"
EXAMPLES = """examples:
  primorl data describe                     facts, counts, fingerprint, and the public split's statistics
  primorl data describe --figure data.png   and its returns, lengths and coverage, drawn
  primorl data push --remote vault          what DVC keeps off remotes (raw rows, partitions) to the DVC remote `vault`
"""
_PARTITIONS = Path("data/partitions")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    also = argparse.ArgumentParser(add_help=False)
    also.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    shown = actions.add_parser("describe", help="facts and the public split; opens nothing private", parents=[also])
    shown.add_argument("--json", action="store_true", help="as JSON")
    shown.add_argument("--figure", metavar="PNG", type=Path, help="draw returns, lengths and coverage into this file")
    push = actions.add_parser("push", help="send private outputs to a remote that is named here", parents=[also])
    push.add_argument("--remote", metavar="NAME", required=True, help="a DVC remote inside the trust boundary")


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit status."""
    return _push(arguments.remote) if arguments.action == "push" else _describe(arguments)


def _push(remote: str) -> int:
    from primorl.project.remotes import push_private

    for path in push_private(remote):
        print(f"{path}: on remote {remote}")
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    from primorl.project.files import replaced_file
    from primorl.trajectories.description import describe, draw

    about, public = describe(_PARTITIONS)
    print(json.dumps(about, indent=2, allow_nan=False) if arguments.json else _text(about))
    if arguments.figure is not None:
        if public is None:
            print("no figure: there is no public split to draw")
        else:
            with replaced_file(arguments.figure) as fresh:
                draw(fresh, about, public)
    return 0


def _text(about: dict[str, Any]) -> str:
    spaces = about["spaces"]
    actions = f"{about['action_size']} discrete" if spaces["discrete_actions"] else f"{about['action_size']} numbers"
    lines = [
        f"dataset      {about['dataset']}",
        f"environment  {about['environment'] or 'none: no simulator'}",
        f"unit         {about['unit']}: {about['private_units']} private, {about['public_units']} public",
        f"episodes     at most {about['horizon'] or '?'} steps; termination: {about['termination']}",
        f"fingerprint  {about['dataset_fingerprint']} (keyed)",
        f"observation  {about['observation_size']} numbers",
        *_bounds(spaces["observation_low"], spaces["observation_high"], about["public"], "observation"),
        f"action       {actions}",
        *(
            []
            if spaces["discrete_actions"]
            else _bounds(spaces["action_low"], spaces["action_high"], about["public"], "action")
        ),
        "columns      " + ", ".join(f"{name} {kind}" for name, kind in about["schema"].items()),
    ]
    public = about["public"]
    if public is None:
        return "\n".join([*lines, "", "public split: none, and nothing may be said of the private one"])
    quantiles = {
        what: " / ".join(f"{public[what][q]:.4g}" for q in ("5%", "50%", "95%")) for what in ("return", "length")
    }
    return "\n".join(
        [
            *lines,
            "",
            f"public split: {public['trajectories']} trajectories, {public['transitions']} transitions",
            f"  return     {quantiles['return']} (5 / 50 / 95%), mean {public['return']['mean']:.4g}",
            f"  length     {quantiles['length']}",
            f"  terminated {public['terminated_share']:.1%} of trajectories",
        ]
    )


def _bounds(low: list[float | None], high: list[float | None], public: dict[str, Any] | None, what: str) -> list[str]:
    """One line a dimension: declared bounds, and the public split's range."""
    lines = []
    for i, (a, b) in enumerate(zip(low, high, strict=True)):
        declared = f"[{'-inf' if a is None else f'{a:.4g}'}, {'inf' if b is None else f'{b:.4g}'}]"
        seen = ""
        if public is not None:
            own = {name: public[what][name][i] for name in ("min", "max", "mean", "std")}
            seen = f"public split {own['min']:.4g} … {own['max']:.4g}, mean {own['mean']:.4g}, std {own['std']:.4g}"
        lines.append(f"  {i:>3}        {declared:<20} {seen}".rstrip())
        if i == 11 and len(low) > 12:
            return [*lines, f"  … and {len(low) - 12} more (--json has all)"]
    return lines
