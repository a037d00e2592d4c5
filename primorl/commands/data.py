"""``primorl data``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from primorl.commands.folders import given_path

_EXAMPLES = """\b
Examples:
  primorl data describe                     facts, counts, fingerprint, and the public split's statistics
  primorl data describe --figure data.png   also draw its returns, lengths and coverage
  primorl data push --remote vault          send what DVC keeps off remotes (raw rows, partitions) to the remote `vault`
"""
_PARTITIONS = Path("data/partitions")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    actions = typer.Typer(help=f"Describe the dataset, or send private data to a private remote.\n\n{_EXAMPLES}")
    actions.command(
        "describe", help=f"Describe the dataset and its public split. Opens nothing private.\n\n{_EXAMPLES}"
    )(_describe)
    actions.command("push", help=f"Send private outputs to the remote that you name.\n\n{_EXAMPLES}")(_push)
    app.add_typer(actions, name="data")


def _push(
    remote: Annotated[str, typer.Option(metavar="NAME", help="A DVC remote inside the trust boundary.")],
) -> None:
    from primorl.project.remotes import push_private

    for path in push_private(remote):
        print(f"{path}: on remote {remote}")


def _describe(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="PNG", parser=given_path, help="Draw returns, lengths and coverage into this file."),
    ] = None,
) -> None:
    import json

    from primorl.project.files import replaced_file
    from primorl.trajectories.description import describe, draw

    about, public = describe(_PARTITIONS)
    print(json.dumps(about, indent=2, allow_nan=False) if as_json else _text(about))
    if figure is not None:
        if public is None:
            print("no figure: there is no public split to draw")
        else:
            with replaced_file(figure) as fresh:
                draw(fresh, about, public)


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
