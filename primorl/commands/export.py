"""``primorl export``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primorl.commands.arguments import given_path
from primorl.project.errors import PipelineError
from primorl.project.paths import BEHAVIOUR, MODEL, POLICY

if TYPE_CHECKING:
    from primorl.privacy.statement import Statement

_HELP = """Write a policy as an ONNX file, checked against the policy itself.

\b
Examples:
  primorl export --out policy.onnx             models/policy, with its privacy statement in the metadata
  primorl export --policy out/v1/policy --out policy.onnx
                                               the policy of a released bundle

Needs `pip install 'primorl[onnx]'`. Input `observation`, float32 [n, S]; output `action`, float32 [n, A], or int64 [n]
if actions are discrete; all in the environment's units. Where the policy abstains, the action is NaN, or -1.
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("export", help=_HELP)(_run)


def _run(
    out: Annotated[Path, typer.Option(metavar="FILE", parser=given_path, help="The .onnx file to write.")],
    policy: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=given_path, help="Folder of the policy.  [default: models/policy]"),
    ] = None,
    void_ok: Annotated[
        bool, typer.Option("--void-ok", help="Go on although the statement says not to rely on it.")
    ] = False,
) -> None:
    from primorl.evaluation.wording import guarantee
    from primorl.policy.config import PolicyConfig
    from primorl.policy.loaded import load_policy
    from primorl.privacy import statement
    from primorl.release.bundle import refuse_void
    from primorl.setup import onnx_file

    if out.suffix != ".onnx":
        raise PipelineError(f"--out: found {str(out)!r}; allowed is a name that ends in .onnx")
    folder = policy or POLICY
    loaded, stated = load_policy(folder), statement.Statement.read(folder)
    config = PolicyConfig.read(folder)
    if config.variant == "mopo":
        raise PipelineError(f"{folder}: variant mopo was trained on raw private transitions and is never released")
    if not void_ok:
        refuse_void(folder / statement.FILE, stated)
    if stated.private:
        _check_figures(folder, stated, near_clone=config.clone_error is not None)
    rows, difference = onnx_file.export(loaded, stated, out)
    of = "of the actions differ" if loaded.discrete_actions else "of an action's range is the largest difference"
    print(f"{out}: opset {onnx_file.OPSET}; checked on {rows} observations: {difference:.2g} {of}")
    print(guarantee(stated.to_json()))


def _check_figures(folder: Path, stated: "Statement", *, near_clone: bool) -> None:
    """Refuse figures that are not those of the event, as `evaluate` and `primorl report` do.

    The project's own policy is compared with the statements of model and clone as well. A policy elsewhere, such as
    that of a bundle, is checked by itself; `primorl release --check` checks all of a bundle.
    """
    from primorl.privacy.statement import FILE, Statement
    from primorl.release.stated_figures import check_alone, check_with_parts

    parts = {str(part): Statement.read(part) for part in (MODEL, BEHAVIOUR) if (part / FILE).exists()}
    if folder.resolve() == POLICY.resolve() and str(MODEL) in parts:
        check_with_parts(folder, stated, parts, near_clone=near_clone)
    else:
        check_alone(folder / FILE, stated, near_clone=near_clone)
