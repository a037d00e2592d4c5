"""The check of a bundle and its signature: it holds what `contents` declares and nothing else, and
its statements are what the accountant makes of their events.

Whoever changes a bundle can write its digests and its card anew, so that it agrees with itself.
``MANIFEST.sig`` tells who made it: an Ed25519 signature over the bytes of ``MANIFEST.json``, which
names every other file by its digest. It holds the 64 bytes and nothing else, so that OpenSSL can
verify it as well. Keys are PEM files: PKCS #8 without a password, and SubjectPublicKeyInfo.
"""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from primorl.base import PipelineError
from primorl.base.files import file_sha256, finite, read_text
from primorl.engine.heads import FIRST_STATES
from primorl.evaluate.private.results import PrivateEvaluation
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.starts import StartModel
from primorl.policy import exported
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting import DpEvent, dp
from primorl.privacy.accounting.epsilon import compose, event_from_json
from primorl.privacy.composition import (
    BEFOREHAND,
    FILTER_ROUNDING,
    check_held,
    check_parts,
    list_held_by_clone,
    refuse_less,
)
from primorl.privacy.composition import verify as verify_statement
from primorl.privacy.ledger.account import total_of
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.release import contents
from primorl.release.card import render

CHOSEN = (
    "which policy was released: the answers of the private units had a say in it, and this ε is "
    "of the weights alone; that of the card counts the answers too"
)
"""What the policy's statement takes for granted where a recommendation was made from answers of the
private units.
"""

_NO_TEXT = "a bundle holds text in UTF-8"
_SAME_DATA = ("unit", "units", "neighboring_relation", "dataset_fingerprint", "public_assumptions")
# Places that exist at home only: a path from the root of a disk, and the project's own private
# folders.
_PATH = re.compile(
    r"(?<![\w.:/<\\])(?:~?/[\w.+-]+(?:/[\w.+-]+)+|[A-Za-z]:\\|file:)"
    r"|(?<!\w)(?:data/(?:raw|trajectories|partitions|consent|withdrawals)|\.dvc\b|\.primorl|dvc\.lock|units\.bin|mlruns|mlflow\.db)"
)

# Not all digits of an MD5: the first two may stand apart, as in DVC's cache.
_DIGEST = re.compile(r"[0-9a-fA-F]{24,}")


def verify(folder: Path, *, key: Path | None = None) -> contents.Bundle:
    """Check a bundle, one's own or a stranger's; run nothing that is in it, and open no file
    outside of it.

    Args:
        folder: the bundle.
        key: file of the public key that must have signed it; None: no signature is needed, and none
            is verified.

    Raises:
        PipelineError: one line that names the file, the fault and the remedy.
    """
    contents.check_names_and_hashes(folder)
    if key is not None:
        verify_signature(folder, key)
    bundle = contents.Bundle.read(folder)
    for name, statement in {contents.POLICY[2]: bundle.of_policy, **bundle.charged}.items():
        if not statement.sound:
            reason = "; ".join(statement.void) or "nothing is guaranteed"
            raise PipelineError(f"{folder / name}: void: {reason}; do not rely on it")
    _check_tensors(bundle)
    _check_configs(bundle)
    _check_ledger(bundle)
    _check_charged(bundle)
    _check_policy_statement(bundle)
    _check_texts(bundle)
    if read_text(folder / contents.CARD, _NO_TEXT) != render(bundle):
        raise PipelineError(
            f"{folder / contents.CARD}: not made of the figures of this bundle; do not believe it"
        )
    return bundle


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the key to sign with."""
    try:
        key = load_pem_private_key(_read_key(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise PipelineError(
            f"{path}: not a private key to sign with; allowed is Ed25519 in PEM without password: "
            "`openssl genpkey -algorithm ed25519 -out FILE`"
        )
    return key


def sign(folder: Path, key: Ed25519PrivateKey) -> None:
    """Sign the bundle in ``folder``: write ``MANIFEST.sig``."""
    (folder / contents.SIGNATURE).write_bytes(key.sign((folder / contents.MANIFEST).read_bytes()))


def verify_signature(folder: Path, path: Path) -> None:
    """Verify the signature of the bundle in ``folder`` with the signer's public key in the file
    ``path``.
    """
    try:
        key = load_pem_public_key(_read_key(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise PipelineError(
            f"{path}: not a public key (Ed25519, PEM): `openssl pkey -in KEY -pubout -out FILE`"
        )
    signature, signed = folder / contents.SIGNATURE, folder / contents.MANIFEST
    if not signature.exists():
        raise PipelineError(
            f"{signature}: not there: it is not signed; ask its maker for a signed bundle"
        )
    try:
        key.verify(signature.read_bytes(), signed.read_bytes())
    except InvalidSignature:
        raise PipelineError(
            f"{signature}: not a signature of {contents.MANIFEST} by the key in {path}: changed, "
            "or signed by somebody else; do not rely on it"
        ) from None


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as wrong:
        raise PipelineError(f"{path}: the key cannot be read ({wrong.strerror})") from None


def add_choice(
    statement: Statement, result: contents.ReleasedResult, answers: PrivateEvaluation | None
) -> Statement:
    """Return the policy's statement for a bundle: with `CHOSEN` where answers of the private units
    decided.
    """
    if result.recommendation is None or answers is None:
        return statement
    return replace(statement, public_assumptions=(*statement.public_assumptions, CHOSEN))


def _refuse_other(path: Path, found: object, expected: Mapping[str, Any], of: str) -> None:
    """Refuse a record, read from ``path``, that has another value for a key than ``of`` says."""
    for key, value in expected.items():
        if getattr(found, key) != value:
            raise PipelineError(
                f"{path}: {key}: differs from {of}: damaged, edited or of another run"
            )


def _select(record: object, keys: Sequence[str]) -> dict[str, Any]:
    return {key: getattr(record, key) for key in keys}


def _check_tensors(bundle: contents.Bundle) -> None:
    """Check that a bundle's files of tensors can be read, and hold nothing else.

    Raises:
        PipelineError: one line; names the file.
    """
    folder, config, of_policy = bundle.folder, bundle.model, bundle.policy
    model = GaussianEnsemble.load(folder / "dynamics", torch.device("cpu"))
    _check_written_again(
        folder / contents.MODEL[0],
        lambda again: model.save(
            again, environment=config.environment, variant=config.variant, rounds=config.rounds
        ),
    )
    policy = DeterministicPolicy.load(folder / "policy")
    _check_written_again(
        folder / contents.POLICY[0],
        lambda again: exported.save(
            again, [policy], variant=of_policy.variant, environment=of_policy.environment
        ),
    )
    first_states = any(query.what == FIRST_STATES for query in bundle.of_model.queries)
    if first_states != (contents.STARTS in bundle.names):
        found = "missing" if first_states else "there"
        raise PipelineError(f"{folder / contents.STARTS}: {found}, which contradicts the queries")
    if first_states:
        starts = StartModel.load(folder / "dynamics", torch.device("cpu"))
        _check_written_again(folder / contents.STARTS, starts.save)


def _check_written_again(path: Path, write: Callable[[Path], object]) -> None:
    """Check that writing the loaded content gives the same file, so that nothing in it is
    unseen.
    """
    with tempfile.TemporaryDirectory(prefix="primorl-check-") as again:
        write(Path(again))
        if (Path(again) / path.name).read_bytes() != path.read_bytes():
            raise PipelineError(
                f"{path}: holds more than we read of it: a tensor, metadata or padding of its own"
            )


def _check_texts(bundle: contents.Bundle) -> None:
    """Refuse a place that exists at home only, and a digest of anything but the files here and the
    clone's weights: an unkeyed one of private data, such as DVC's, tells neighbouring datasets
    apart.
    """
    known: set[str | None] = {file_sha256(bundle.folder / name) for name in bundle.names}
    known.add(bundle.of_model.dataset_fingerprint)  # keyed
    if bundle.answers is not None:
        known.add(bundle.answers.clone_sha256)
    for path in (bundle.folder / name for name in sorted(bundle.names) if name.endswith(".json")):
        text = read_text(path, _NO_TEXT)
        if _PATH.search(text):
            raise PipelineError(f"{path}: holds a path of the machine or project it was made in")
        if not known.issuperset(_DIGEST.findall(text)):
            found = "an unkeyed digest of something that is not here, maybe private"
            raise PipelineError(f"{path}: holds {found}; find what wrote it there")


def _check_configs(bundle: contents.Bundle) -> None:
    """Check that the model may leave, and that all files speak of it and of the policy that is
    here.
    """
    folder, loss = bundle.folder, bundle.model.public_loss
    if (loss is None and bundle.of_model.public_units) or (loss is not None and loss.diverged):
        raise PipelineError(
            f"{folder / contents.MODEL[1]}: public_loss: no better than a constant, or missing"
        )
    own, its = (file_sha256(folder / name[0]) for name in (contents.MODEL, contents.POLICY))
    about = {"model_sha256": own, "policy_sha256": its}
    trained = {"policy": "models/policy", "drawn": False}
    _refuse_other(folder / contents.POLICY[1], bundle.policy, about | trained, "the files here")
    evaluated = about | {"env_id": bundle.policy.environment}
    _refuse_other(folder / contents.EVALUATION, bundle.evaluation, evaluated, "the files here")
    if bundle.answers is not None:
        _refuse_other(folder / contents.ANSWERS, bundle.answers, about, "the files here")


def _check_ledger(bundle: contents.Bundle) -> None:
    """Account every record of the ledger's statement again, and all of them together."""
    path, ledger = bundle.folder / contents.LEDGER, bundle.ledger
    same = ("dataset_fingerprint", "unit", "neighboring_relation")
    _refuse_other(path, ledger, _select(bundle.of_model, same), contents.MODEL[2])
    _refuse_other(path, ledger, {"charges": len(ledger.records)}, "the number of records")
    for place, record in enumerate(ledger.records):
        try:
            event = event_from_json(record.event)
        except (TypeError, ValueError, OverflowError):
            said = f"records.{place}.event (not an event that this project accounts)"
            raise PipelineError(f"{path}: not as declared: {said}") from None
        alone = finite(compose([event], record.delta).epsilon_pld)
        refuse_less(path, f"records.{place}.epsilon", record.epsilon, alone, ledger.accountant)
    _check_account(path, ledger, _events(ledger), ledger)


def _check_account(
    path: Path,
    stated: contents.LedgerStatement | SpentOnDataset,
    events: Sequence[DpEvent],
    by: Any,
) -> None:
    """Check the ε of an account, known up to the last step of the filter's bisection."""
    total = finite(total_of(events, stated.delta))
    refuse_less(path, "epsilon", stated.epsilon, total, by.accountant, FILTER_ROUNDING)


def _events(ledger: contents.LedgerStatement) -> list[DpEvent]:
    return [
        event_from_json(each.event) if each.same_unit else dp.NonPrivateDpEvent()
        for each in ledger.records
    ]


def _check_charged(bundle: contents.Bundle) -> None:
    """Account the statements of model, clone and answers again, and find the charge of each."""
    paid: set[str | None] = set()
    for name, statement in bundle.charged.items():
        path, expected = bundle.folder / name, _select(bundle.of_model, _SAME_DATA)
        held = list_held_by_clone(bundle.of_model) if name == contents.CLONE else {}
        expected["public_assumptions"] += (BEFOREHAND,) if held else ()
        check_held(path, statement, held)
        _refuse_other(path, statement, expected, contents.MODEL[2])
        verify_statement(path, statement)
        _check_payment(path, statement, bundle.ledger)
        if statement.charge in paid:  # one charge pays for one thing
            raise PipelineError(f"{path}: charge: found a charge that paid for something else")
        paid.add(statement.charge)


def _check_payment(path: Path, statement: Statement, ledger: contents.LedgerStatement) -> None:
    """Check that a committed charge paid for a mechanism, and account again everything spent on the
    dataset by then.

    Raises:
        PipelineError: there is no such charge on this version of the data, the account does not
            count it, or the account is not that of the ledger's oldest charges together.
    """
    account = statement.spent_on_dataset
    places = [place for place, each in enumerate(ledger.records) if each.id == statement.charge]
    own = ledger.records[places[0]] if len(places) == 1 else None
    part = statement.mechanisms[-1] if statement.mechanisms else statement  # what it paid for
    paid = (part.event, "committed", True)
    if own is None or (own.event, own.state, own.same_version) != paid:
        raise PipelineError(
            f"{path}: charge: found no committed charge with this id and event in {contents.LEDGER}"
        )
    # oldest first; its own among them
    if account is None or not places[0] < account.charges <= ledger.charges:
        raise PipelineError(
            f"{path}: spent_on_dataset: charges: not a number that {contents.LEDGER} has"
        )
    _refuse_other(path, account, {"delta": ledger.delta}, contents.LEDGER)
    _check_account(path, account, _events(ledger)[: account.charges], statement)


def _check_policy_statement(bundle: contents.Bundle) -> None:
    """Check that the policy's statement is the model's, or that of model and clone together."""
    path, released = bundle.folder / contents.POLICY[2], bundle.of_policy
    own = tuple(line for line in released.public_assumptions if line != CHOSEN)
    made = replace(released, public_assumptions=own)
    parts: dict[str, Statement | None] = {"models/dynamics": bundle.of_model}
    if bundle.clone is not None or bundle.policy.candidates:
        parts["models/behaviour"] = bundle.clone
    check_parts(path, made, parts)
    if made.mechanisms:
        verify_statement(path, made)
