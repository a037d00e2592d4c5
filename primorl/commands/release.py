"""``primorl release``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from primorl.commands.arguments import given_path
from primorl.project.errors import PipelineError
from primorl.project.paths import PARAMS

_HELP = """Make the bundle that may leave, or check one that came.

\b
Examples:
  primorl release out/v1            model, policy, statement, card and what the ledger says, checked, in out/v1
  primorl release out/v1 --policy models/policy
                                    this policy, also where another one or none is recommended
  primorl release out/v2 --policy models/online
                                    the policy that learned from users, without the model
  primorl release --check out/v1    check a bundle from anybody: complete, consistent, and nothing in it runs
  primorl release out/v1 --sign release.key
  primorl release --check out/v1 --key release.pub
                                    sign it, and verify that the key's owner signed exactly these files
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("release", help=_HELP)(_run)


def _run(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", parser=given_path, help="The bundle's folder: new, empty or a bundle.")
    ],
    check: Annotated[bool, typer.Option("--check", help="Make nothing; check the bundle in DIR.")] = False,
    void_ok: Annotated[
        bool, typer.Option("--void-ok", help="Go on although the statement says not to rely on it.")
    ] = False,
    policy: Annotated[
        Literal["models/policy", "models/behaviour", "models/online"] | None,
        typer.Option(metavar="FOLDER", help="The policy to release.  [default: the recommended one]"),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=given_path, help="Sign with this private Ed25519 key (PEM)."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=given_path, help="With --check: the signer's public key (PEM)."),
    ] = None,
) -> None:
    from primorl.config import params
    from primorl.evaluation.wording import guarantee
    from primorl.release import bundle
    from primorl.release.build import release
    from primorl.release.card import promised
    from primorl.release.contents import SIGNATURE
    from primorl.release.online_bundle import check_online, is_online, release_online

    if policy is not None and check:
        raise PipelineError("--policy: found with --check, allowed without it")
    if sign is not None and check:
        raise PipelineError("--sign: found with --check, allowed without it; --key FILE verifies a signature")
    if key is not None and not check:
        raise PipelineError("--key: found without --check, allowed with it; --sign FILE signs a bundle")
    if check and is_online(directory):
        promise = guarantee(check_online(directory, void_ok=void_ok, key=key).to_json())
    elif check:
        bundle.check(directory, void_ok=void_ok, key=key)
        promise = promised(directory)
    elif policy == "models/online":
        promise = guarantee(
            release_online(directory, params.load_reading(PARAMS), void_ok=void_ok, sign=sign).to_json()
        )
    else:
        release(directory, params.load_reading(PARAMS), void_ok=void_ok, sign=sign, policy=policy)
        promise = promised(directory)
    done = "sound" if check else "made and checked" if sign is None else "made, signed and checked"
    print(f"{directory}: {done}; {promise}")
    if check and is_online(directory):
        print("not checked: whether a ledger has its charge, and whether it began with an offline policy that it hides")
    if check and key is not None:
        print(f"signed by the owner of {key}; not checked: the returns that the cards quote, and texts of people")
    elif check:
        signed = " (it is signed: --key FILE verifies that)" if (directory / SIGNATURE).exists() else ""
        print(f"not checked: the returns that the cards quote, texts of people, and who made the bundle{signed}")
