"""``primorl predict`` and ``release``: uses of a policy."""

from pathlib import Path
from typing import Annotated

import typer

from primorl.base import PipelineError, say
from primorl.base.files import MODELS, POLICY
from primorl.commands.terminal import flag, given_path, option, path_option

_Policy = Annotated[
    Path | None, path_option("DIR", "Folder of the policy.  [default: the recommended one]")
]


def predict(
    observations: Annotated[Path, path_option("FILE", "Parquet or CSV, one observation a row.")],
    out: Annotated[Path, path_option("FILE", "Parquet or CSV to write.")],
    policy: _Policy = None,
    against_advice: Annotated[
        bool, flag("--against-advice", "Use what --policy names though its run advises against it.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        option("COLUMN", "A column of the observations to carry over; may be repeated."),
    ] = None,
) -> None:
    """Write a policy's actions for a table of observations, a row each, in the same order.

    Examples:
      primorl predict --observations today.csv --out actions.csv
          actions of the recommended policy; columns are found by their names
      primorl predict --policy out/v1/policy --observations log.csv --out new.csv --keep patient
          those of a released bundle, beside a column of the log

    A row with a missing value, no number, an undeclared category or a value outside the range
    gets no action: its column `abstained` is true. A clone of today's practice chooses none
    of several discrete actions: their probabilities are written.
    """
    from primorl.policy.loaded import load_policy
    from primorl.use import predict

    if against_advice and policy is None:
        found = "found without --policy, allowed with the policy's folder: name it"
        raise PipelineError(f"--against-advice: {found}")
    folder = policy or POLICY
    loaded = load_policy(folder, against_advice=against_advice)
    if folder.resolve().parent == MODELS.resolve():
        from primorl.base.dvc import Status
        from primorl.commands.runs import warn_of_newer_data

        warn_of_newer_data(Status(), folder)
    rows, abstained = predict(loaded, observations, out, keep=keep or ())
    print(f"{out}: {rows} rows, actions of {folder}")
    say(f"abstained: {abstained} of {rows} rows{', which have no action' * bool(abstained)}")


def release(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", parser=given_path, help="New or empty, or to check."),
    ],
    check: Annotated[bool, flag("--check", "Make nothing; check the bundle in DIR.")] = False,
    against_advice: Annotated[
        bool, flag("--against-advice", "Release models/policy though it is not recommended.")
    ] = False,
    sign: Annotated[
        Path | None, path_option("FILE", "Sign with this private Ed25519 key (PEM).")
    ] = None,
    key: Annotated[
        Path | None, path_option("FILE", "With --check: the signer's public key (PEM).")
    ] = None,
) -> None:
    """Make the bundle that may leave, or check one that came.

    Examples:
      primorl release out/v1
          model, policy, statement, card and what the ledger says, checked, in out/v1
      primorl release out/v1 --against-advice
          although its policy is not recommended
      primorl release --check out/v1
          check a bundle from anybody: complete, consistent, and nothing in it runs
      primorl release out/v1 --sign release.key
      primorl release --check out/v1 --key release.pub
          sign it, and verify that the key's owner signed exactly these files
    """
    from primorl.config import params
    from primorl.release import build
    from primorl.release.card import describe_guarantee
    from primorl.release.contents import Bundle

    if check and (against_advice or sign is not None):
        raise PipelineError("--against-advice, --sign: found with --check")
    if key is not None and not check:
        raise PipelineError("--key: found without --check")
    if check:
        _check(directory, key)
        return
    build.release(directory, params.load(), sign=sign, against_advice=against_advice)
    done = "made and checked" if sign is None else "made, checked and signed"
    print(f"{directory}: {done}; {describe_guarantee(Bundle.read(directory))}")


def _check(directory: Path, key: Path | None) -> None:
    """Check a bundle, and say what nobody can check."""
    from primorl.release import bundle
    from primorl.release.card import describe_guarantee
    from primorl.release.contents import SIGNATURE

    found = bundle.verify(directory, key=key)
    print(f"{directory}: sound; {describe_guarantee(found)}")
    unknown = ["the returns that the card quotes", "texts of people"]
    if key is not None:
        print(f"signed by the owner of {key}")
    elif (directory / SIGNATURE).exists():
        unknown += [f"who made the bundle ({SIGNATURE} was not verified: --key FILE does that)"]
    else:
        unknown += ["who made the bundle"]
    print(f"not checked: {', '.join(unknown)}")
