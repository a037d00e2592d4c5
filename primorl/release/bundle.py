"""The check of a bundle and its signature: it holds what `contents` declares and nothing else, and
its parts agree.

A chain binds the statements to the bytes that they speak of. The ledger's record of a charge names
the digest of every file that the charge made, the whole statement among them. The policy names the
model's digest and its own, the evaluation and the private answers name both. The charge of an
answer names the digest of the answer and its statement.

``MANIFEST.sig`` is an Ed25519 signature over the bytes of ``MANIFEST.json``, which names every
other file by its digest. It holds the 64 bytes and nothing else, so that OpenSSL can verify it as
well. Keys are PEM files: PKCS #8 without a password, and SubjectPublicKeyInfo.
"""

import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from safetensors.numpy import load_file, save_file

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256
from primorl.engine.heads import FIRST_STATES
from primorl.evaluate.private.results import PrivateEvaluation
from primorl.evaluate.recommendation import of_answers
from primorl.evaluate.summary import OnlineSummary
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.starts import StartModel
from primorl.policy import exported
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.composition import BEFOREHAND, SHARED, mechanism
from primorl.privacy.mechanism.queries import query_types
from primorl.privacy.statement import OnlineProtocol, Statement
from primorl.privacy.verification import given
from primorl.privacy.verification import verify as verify_statement
from primorl.release.card import render
from primorl.release.contents import (
    ANSWERS,
    CLONE,
    EVALUATION,
    LEDGER,
    MANIFEST,
    MODEL,
    ONLINE,
    POLICY,
    SIGNATURE,
    SPREAD,
    STARTS,
    Bundle,
    Evaluation,
    check_names_and_hashes,
    read,
    read_bundle,
)
from primorl.release.recheck import check_ledger, check_model, check_payment, check_policy
from primorl.work.online import RELEASES, user_epsilon

PARTS = ("models/dynamics", "models/behaviour")
"""Mechanisms of a policy's statement that counts model and clone."""
CHOSEN = (
    "which policy was released: the answers of the private units had a say in it, and this ε is "
    "of the weights alone; that of the card counts the answers too"
)
"""What the policy's statement takes for granted where a recommendation was made from answers of the
private units.
"""

_SAME_DATA = ("unit", "units", "neighboring_relation", "dataset_fingerprint", "public_assumptions")
_ESTIMATOR = re.compile("[a-z][a-z0-9_]{0,39}")
_ROUNDING = 1e-6  # of the sum of a histogram's shares
_AGAIN = "damaged, edited or of another run; `dvc checkout` brings back what the stages wrote"
# Places that exist at home only: a path from the root of a disk, and the project's own private
# folders.
_PATH = re.compile(
    r"(?<![\w.:/<\\])(?:~?/[\w.+-]+(?:/[\w.+-]+)+|[A-Za-z]:\\|file:)"
    r"|(?<!\w)(?:data/(?:raw|trajectories|partitions|consent|withdrawals)|\.dvc\b|\.primorl|dvc\.lock|units\.bin|mlruns|mlflow\.db)"
)


def verify(folder: Path, *, void_ok: bool, key: Path | None = None) -> Statement:
    """Check a bundle, one's own or a stranger's; runs nothing that is in it, and opens no file
    outside of it.

    Args:
        folder: the bundle.
        void_ok: accept a statement that says of itself that it must not be relied on.
        key: file of the public key that must have signed it; None: no signature is needed, and none
            is verified.

    Returns:
        The statement of the policy.

    Raises:
        PipelineError: one line that names the file, the fault and the remedy.
    """
    names = check_names_and_hashes(folder)
    if key is not None:
        verify_signature(folder, key)
    for name in sorted(names, key=lambda name: (name == POLICY[2], name)):
        if name.endswith(".json") and _PATH.search(_text(folder / name)):
            raise PipelineError(
                f"{folder / name}: holds a path of the machine or project it was made in; remove it"
            )
    if ONLINE in names:
        statement = _verify_online(folder, void_ok=void_ok)
    else:
        statement = _verify_with_model(read_bundle(folder, names), void_ok=void_ok)
    for card, text in render(folder).items():
        if _text(folder / card) != text:
            raise PipelineError(
                f"{folder / card}: not the card that the figures of this bundle make; do not open "
                "or believe it"
            )
    return statement


def _verify_with_model(bundle: Bundle, *, void_ok: bool) -> Statement:
    folder = bundle.folder
    _check_tensors(bundle)
    _check_configs(bundle)
    for name, statement in bundle.statements():
        if not void_ok:
            refuse_void(folder / name, statement)
        _check_queries(folder / name, statement)
    verify_statement(folder / MODEL[2], bundle.of_model)
    _check_starts(bundle)
    check_ledger(folder / LEDGER, bundle.ledger, folder / MODEL[2], bundle.of_model)
    check_payment(folder / MODEL[2], bundle.of_model, bundle.ledger, bundle.of_model)
    _check_charges_differ(bundle)
    _check_clone(bundle)
    _check_policy_statement(bundle)
    _check_recommendation(bundle)
    if bundle.answers is not None:
        _check_answers(bundle, bundle.answers)
    _check_chain(bundle)
    return bundle.of_policy


def _verify_online(folder: Path, *, void_ok: bool) -> Statement:
    """Check the policy that learned from users, its statement and its results."""
    config, statement = read(folder, POLICY[1], PolicyConfig), read(folder, POLICY[2], Statement)
    summary, path = read(folder, ONLINE, OnlineSummary), folder / POLICY[2]
    policy = checked_policy(folder, config)
    if not all(bool(layer.isfinite().all()) for layer in policy.layers):
        raise PipelineError(f"{folder / POLICY[0]}: found NaN or infinity")
    if config.policy != "models/online":
        raise PipelineError(f"{folder / POLICY[1]}: policy: allowed is 'models/online'")
    if not void_ok:
        refuse_void(path, statement)
    given(path, "charge", statement.charge)
    protocol = given(path, "online", statement.online)
    _check_protocol(path, statement, protocol)
    verify_statement(path, statement)
    expected = {
        "met": True,
        "env_id": config.environment,
        "algorithm": protocol.algorithm,
        "users": protocol.users,
        "cohort": protocol.cohort,
        "cohorts": protocol.cohorts,
        "private": statement.sound,
        "epsilon": user_epsilon(statement),
        "epsilon_in_all": statement.epsilon if statement.sound else None,
        "delta": statement.delta,
        "unit": statement.unit,
        "void": statement.void,
        "policy_sha256": file_sha256(folder / POLICY[0]),
        "seconds": None,
    }
    for key, value in expected.items():
        if getattr(summary, key) != value:
            raise PipelineError(f"{folder / ONLINE}: {key}: contradicts {POLICY[1]} or {POLICY[2]}")
    return statement


def _check_protocol(path: Path, statement: Statement, protocol: OnlineProtocol) -> None:
    """Check that the mechanism of the users is the one that `online_plan` makes of the protocol."""
    what = "models/online"
    if not statement.mechanisms:
        raise PipelineError(f"{path}: mechanisms: not those of an offline policy and of {what}")
    own = statement.mechanisms[-1]
    met, most = protocol.cohorts * protocol.cohort, protocol.users * protocol.appearances
    rounds = protocol.releases * protocol.appearances
    releases = RELEASES.get(protocol.algorithm)
    contradictions = {
        "mechanisms: the last one is not that of models/online": own.what != what,
        "sampling_probability: not 1, and cohorts are not sampled": own.sampling_probability != 1,
        "queries: users are asked none": bool(own.queries),
        "online: rounds are not releases times appearances": own.rounds != rounds,
        "online: users are not the units": statement.units != protocol.users,
        "online: cohort: larger than the number of users": protocol.cohort > protocol.users,
        "online: cohorts: users are in more of them than appearances": met > most,
        "online: releases: not those of the algorithm": protocol.releases != releases,
    }
    for fault, found in contradictions.items():
        if found:
            raise PipelineError(f"{path}: {fault}")


def _check_queries(path: Path, statement: Statement) -> None:
    """Refuse queries that this project does not know."""
    parts = [statement.queries, *(part.queries for part in statement.mechanisms)]
    for queries in parts:
        for place, query in enumerate(queries):
            if query.what not in query_types():
                raise PipelineError(f"{path}: not as declared: queries.{place}.what")


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the key to sign with."""
    try:
        key = load_pem_private_key(_key_file(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise PipelineError(
            f"{path}: not a private key to sign with; allowed is Ed25519 in PEM without a "
            "password: `openssl genpkey -algorithm ed25519 -out FILE` makes one"
        )
    return key


def sign(folder: Path, key: Ed25519PrivateKey) -> None:
    """Sign the bundle in ``folder``: writes ``MANIFEST.sig``."""
    (folder / SIGNATURE).write_bytes(key.sign((folder / MANIFEST).read_bytes()))


def verify_signature(folder: Path, path: Path) -> None:
    """Verify the signature of the bundle in ``folder`` with the signer's public key in the file
    ``path``.
    """
    try:
        key = load_pem_public_key(_key_file(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise PipelineError(
            f"{path}: not a public key; allowed is Ed25519 in PEM: `openssl pkey -in KEY -pubout "
            "-out FILE` writes it"
        )
    if not (folder / SIGNATURE).exists():
        raise PipelineError(
            f"{folder / SIGNATURE}: not there: it is not signed; ask its maker for a signed bundle"
        )
    try:
        key.verify((folder / SIGNATURE).read_bytes(), (folder / MANIFEST).read_bytes())
    except InvalidSignature:
        raise PipelineError(
            f"{folder / SIGNATURE}: not a signature of {MANIFEST} by the key in {path}: the "
            "bundle was changed, or somebody else signed it; do not rely on it"
        ) from None


def _key_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as wrong:
        raise PipelineError(
            f"{path}: the key cannot be read ({wrong.strerror}); name an existing file"
        ) from None


def refuse_void(path: Path, statement: Statement) -> None:
    """Refuse a statement, read from ``path``, that says of itself that it must not be relied on."""
    if not statement.sound:
        reason = "; ".join(statement.void) or "nothing is guaranteed"
        raise PipelineError(
            f"{path}: void: {reason}; do not rely on it (--void-ok goes on all the same)"
        )


def as_released(
    statement: Statement, evaluation: Evaluation, answers: PrivateEvaluation | None
) -> Statement:
    """Return the policy's statement for a bundle; `CHOSEN` is added where answers of the private
    units decided.
    """
    if evaluation.recommendation is None or answers is None:
        return statement
    return replace(statement, public_assumptions=(*statement.public_assumptions, CHOSEN))


def _as_made(bundle: Bundle) -> Statement:
    """The inverse of `as_released`."""
    released = bundle.of_policy
    own = tuple(line for line in released.public_assumptions if line != CHOSEN)
    made = replace(released, public_assumptions=own)
    if as_released(made, bundle.evaluation, bundle.answers) != released:
        raise PipelineError(
            f"{bundle.folder / POLICY[2]}: public_assumptions: {CHOSEN!r}: needed last with a "
            f"recommendation from {ANSWERS}"
        )
    return made


def check_written_again(path: Path, write: Callable[[Path], object]) -> None:
    """Check that writing the loaded content gives the same file, so that nothing in it is
    unseen.
    """
    with tempfile.TemporaryDirectory(prefix="primorl-check-") as again:
        write(Path(again))
        if (Path(again) / path.name).read_bytes() != path.read_bytes():
            raise PipelineError(
                f"{path}: holds more than we read of it: a tensor, metadata or padding of its own"
            )


def checked_policy(folder: Path, config: PolicyConfig) -> DeterministicPolicy:
    """Load the policy of a bundle; its file may hold nothing else."""
    policy, variant, environment = (
        DeterministicPolicy.load(folder / "policy"),
        config.variant,
        config.environment,
    )
    check_written_again(
        folder / POLICY[0],
        lambda again: exported.save(again, [policy], variant=variant, environment=environment),
    )
    return policy


def _check_tensors(bundle: Bundle) -> None:
    folder, config, of_policy = bundle.folder, bundle.model, bundle.policy
    ensemble = GaussianEnsemble.load(folder / "dynamics", torch.device("cpu"))
    check_model(folder / MODEL[0], ensemble)
    check_written_again(
        folder / MODEL[0],
        lambda again: ensemble.save(
            again, environment=config.environment, variant=config.variant, rounds=config.rounds
        ),
    )
    policy = checked_policy(folder, of_policy)
    for side in ("observation_low", "observation_high"):
        stated = getattr(of_policy, side)
        if stated is None or list(stated) != getattr(ensemble.bounds, side).tolist():
            raise PipelineError(
                f"{folder / POLICY[1]}: {side}: not the bound in {MODEL[0]}: it is of another model"
            )
    check_policy(folder / POLICY[0], policy, ensemble, own_scales=bundle.holds_clone)
    needed = bundle.holds_clone and not of_policy.discrete_actions
    for name in SPREAD:
        if needed != (name in bundle.names):
            raise PipelineError(f"{folder / name}: {'missing' if needed else 'of no clone'}")
    if needed:
        spread = folder / SPREAD[0]
        tensors = load_file(spread)
        check_written_again(spread, lambda again: save_file(tensors, again / spread.name))


def _check_starts(bundle: Bundle) -> None:
    """First states are there exactly if they were asked for, within the model's bounds, and nothing
    else is.
    """
    path, there = bundle.folder / STARTS, STARTS in bundle.names
    if there != any(query.what == FIRST_STATES for query in bundle.of_model.queries):
        raise PipelineError(
            f"{path}: {'there' if there else 'missing'}, which contradicts queries in {MODEL[2]}"
        )
    if not there:
        return
    model = StartModel.load(path.parent, torch.device("cpu"))
    bounds = GaussianEnsemble.load(path.parent, torch.device("cpu")).bounds
    check_written_again(path, model.save)
    if not (
        torch.equal(model.low, bounds.observation_low)
        and torch.equal(model.high, bounds.observation_high)
    ):
        raise PipelineError(
            f"{path}: its bounds are not those of {MODEL[0]}: they are of another model"
        )


def _check_configs(bundle: Bundle) -> None:
    folder, model, policy, statement = bundle.folder, bundle.model, bundle.policy, bundle.of_model
    loss = model.public_loss
    if loss is None and statement.public_units:
        raise PipelineError(
            f"{folder / MODEL[1]}: public_loss: missing, though there is a public split"
        )
    if loss is not None and loss.diverged:
        raise PipelineError(
            f"{folder / MODEL[1]}: public_loss: the model is no better than a constant prediction"
        )
    for key in (
        "environment",
        "variant",
        "observation_size",
        "action_size",
        "discrete_actions",
        "observation_names",
        "action_names",
        "elapsed",
    ):
        if getattr(model, key) != getattr(policy, key):
            raise PipelineError(
                f"{folder / POLICY[1]}: {key}: differs from {MODEL[1]}: the policy is not of this "
                "model"
            )
    if statement.private != (model.variant == "private"):
        raise PipelineError(
            f"{folder / MODEL[2]}: private: contradicts the variant in {MODEL[1]}, "
            f"{model.variant!r}"
        )
    if model.termination != statement.termination:
        raise PipelineError(f"{folder / MODEL[2]}: termination: differs from {MODEL[1]}")
    rounds = given(folder / MODEL[2], "rounds", statement.rounds)
    if model.rounds > rounds:
        raise PipelineError(
            f"{folder / MODEL[1]}: rounds: more than the {rounds} that were paid for"
        )


def _check_charges_differ(bundle: Bundle) -> None:
    """One charge pays for one thing: the model, the clone, or an answer."""
    seen = set()
    for name, statement in bundle.statements():
        if name == POLICY[2]:  # it was made from the others
            continue
        if statement.charge in seen:
            raise PipelineError(
                f"{bundle.folder / name}: charge: found a charge that paid for something else"
            )
        seen.add(statement.charge)


def _check_same(path: Path, statement: Statement, model: Statement, keys: Sequence[str]) -> None:
    for key in keys:
        if getattr(statement, key) != getattr(model, key):
            raise PipelineError(
                f"{path}: {key}: differs from {MODEL[2]}, so it is about other data"
            )


def _check_clone(bundle: Bundle) -> None:
    clone, path = bundle.clone, bundle.folder / CLONE
    if clone is not None:
        _check_same(path, clone, bundle.of_model, (*_SAME_DATA, "private"))
        verify_statement(path, clone)
        check_payment(path, clone, bundle.ledger, clone)


def _check_policy_statement(bundle: Bundle) -> None:
    """The policy's statement is the clone's, the model's, or that of model and clone together."""
    path, model, clone, policy = (
        bundle.folder / POLICY[2],
        bundle.of_model,
        bundle.clone,
        _as_made(bundle),
    )
    if bundle.holds_clone:
        if policy != clone:
            raise PipelineError(
                f"{path}: differs from {CLONE}, so it is not what paid for this policy"
            )
        return
    if not policy.mechanisms:
        if bundle.policy.candidates:
            raise PipelineError(
                f"{path}: mechanisms: found none, yet {POLICY[1]} names candidates near a clone"
            )
        if policy != model:
            raise PipelineError(f"{path}: differs from {MODEL[2]}: the policy is not of this model")
        return
    if tuple(part.what for part in policy.mechanisms) != PARTS:
        raise PipelineError(
            f"{path}: mechanisms: allowed are those of {' and '.join(PARTS)}, in this order"
        )
    of_model, of_clone = policy.mechanisms
    if of_model != mechanism(PARTS[0], model):
        raise PipelineError(
            f"{path}: mechanisms.0: differs from {MODEL[2]}: the policy is not of this model"
        )
    _check_same(path, policy, model, (*SHARED, "private", "termination", "trajectories_per_person"))
    for key, own in (("void", ()), ("public_assumptions", (BEFOREHAND,))):
        if not set(getattr(policy, key)) >= {*getattr(model, key), *own}:
            raise PipelineError(f"{path}: {key}: leaves out what {MODEL[2]} says")
    verify_statement(path, policy)
    check_payment(path, policy, bundle.ledger, of_clone)
    if clone is None:
        raise PipelineError(
            f"{path}: mechanisms: found {PARTS[1]}, and the bundle has no {CLONE}; `dvc repro`"
        )
    if of_clone != mechanism(PARTS[1], clone):
        raise PipelineError(
            f"{path}: mechanisms.1: differs from {CLONE}: the policy is not of this clone"
        )


def _check_recommendation(bundle: Bundle) -> None:
    """A recommendation repeats the answers' figures, and names the policy that its answer means."""
    said, answers = bundle.evaluation.recommendation, bundle.answers
    if said is None:
        return
    path = bundle.folder / f"{EVALUATION}: recommendation"
    if (
        said.policy
        != {"trial": "models/policy", "keep": "models/behaviour", "more_data": None}[said.answer]
    ):
        raise PipelineError(f"{path}: policy: not the one that {said.answer} means")
    found = None if answers is None else of_answers(answers, None)
    for key in ("gain", "margin", "misfit", "expected", "interval"):
        if getattr(said, key) != (None if found is None else getattr(found, key)):
            raise PipelineError(f"{path}: {key}: not what the answers in {ANSWERS} come to")
    if found is not None and said.answer == "trial" and found.answer != "trial":
        raise PipelineError(
            f"{path}: answer: found trial, which the answers in {ANSWERS} do not allow"
        )


def _check_answers(bundle: Bundle, answers: PrivateEvaluation) -> None:
    """Answers agree with themselves and with the other files; each has a statement, each statement
    a charge.
    """
    path, model, evaluation = bundle.folder / ANSWERS, bundle.of_model, bundle.evaluation
    if not answers.statements or answers.total is None:
        raise PipelineError(
            f"{path}: statements: found none: nothing was asked, so it does not belong in a bundle"
        )
    expected = {"dataset": evaluation.dataset, "unit": model.unit, "units": model.units}
    if evaluation.model_value_horizon is not None:
        expected["horizon"] = evaluation.model_value_horizon
    for key, value in expected.items():
        if getattr(answers, key) != value:
            raise PipelineError(
                f"{path}: {key}: differs from the other files of the bundle, so it is about other "
                "data"
            )
    named = {each.estimator for each in answers.estimates} | {
        each.estimator for each in answers.histograms
    }
    if not all(map(_ESTIMATOR.fullmatch, named | set(answers.statements))):
        raise PipelineError(
            f"{path}: estimator: found another name than up to 40 lower-case letters, digits and _"
        )
    _check_estimates(path, answers)
    _check_histograms(path, answers)
    for name, own in answers.statements.items():
        place = bundle.folder / f"{ANSWERS}: statements.{name}"
        if not own.private:
            raise PipelineError(
                f"{place}: private: found false, allowed is true: private units answer through "
                "noise only"
            )
        if name not in named:
            raise PipelineError(f"{place}: found a charge without an answer")
        _check_same(place, own, model, _SAME_DATA)
        if own.spent_on_dataset != answers.total:
            raise PipelineError(f"{place}: spent_on_dataset: differs from total")
        verify_statement(place, own)
        check_payment(place, own, bundle.ledger, own)


def _check_estimates(path: Path, answers: PrivateEvaluation) -> None:
    """The price of an answer is that of its estimator's statement; without one it is free."""
    for number, answer in enumerate(answers.estimates):
        key, statement = f"estimates.{number}", answers.statements.get(answer.estimator)
        price = (None, None) if statement is None else (statement.epsilon, statement.delta)
        if (answer.epsilon, answer.delta) != price:
            raise PipelineError(
                f"{path}: {key}: epsilon, delta: not those of the statement of {answer.estimator}"
            )
        if answer.of in ("behaviour", "model") and statement is None:
            raise PipelineError(
                f"{path}: {key}: {answer.of}: found an answer of the private units without a "
                "statement"
            )
        if answer.ci95 is not None and not answer.ci95[0] <= answer.value <= answer.ci95[1]:
            raise PipelineError(f"{path}: {key}: ci95: the value is not in its interval; swapped?")
    verdict = answers.verdict
    if (
        verdict is not None
        and verdict.check is not None
        and not any(answer.of == "model" for answer in answers.estimates)
    ):
        raise PipelineError(f"{path}: verdict: found one without an answer about the model")


def _check_histograms(path: Path, answers: PrivateEvaluation) -> None:
    for number, histogram in enumerate(answers.histograms):
        key, edges, shares = f"histograms.{number}", histogram.edges, histogram.shares
        if histogram.estimator not in answers.statements:
            raise PipelineError(
                f"{path}: {key}: found shares of the private units without a statement"
            )
        ascending = all(low < high for low, high in pairwise(edges))
        if len(edges) != len(shares) + 1 or not shares or not ascending:
            raise PipelineError(f"{path}: {key}: edges: allowed is one more than shares, ascending")
        if min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=_ROUNDING):
            raise PipelineError(
                f"{path}: {key}: shares: allowed are shares that are not negative, one in all"
            )


def _check_chain(bundle: Bundle) -> None:
    """Refuse the first file that is not the one that the file before it in the chain speaks of."""
    folder, model, clone, answers = bundle.folder, bundle.of_model, bundle.clone, bundle.answers
    records = {record.id: record.made for record in bundle.ledger.records}
    paid = (
        {} if answers is None else {each.charge: name for name, each in answers.statements.items()}
    )
    charged = {model.charge, *paid, *([] if clone is None else [clone.charge])}
    found = {
        Path(name).name: file_sha256(folder / name) for name in (*MODEL, *({STARTS} & bundle.names))
    }
    made = records.get(str(model.charge))
    if made is None or any(
        record.made for record in bundle.ledger.records if record.id not in charged
    ):
        raise PipelineError(
            f"{folder / LEDGER}: records: made: needed with charge {model.charge}, and allowed "
            f"only there and with the charges that {ANSWERS} and {CLONE} name"
        )
    for name in sorted(found.keys() | made.keys()):
        _refuse_other_digest(
            folder / "dynamics" / name, found.get(name), made.get(name), str(model.charge)
        )
    cloned = None
    if clone is not None:
        own = records.get(str(clone.charge)) or {}
        cloned = own.get("policy.safetensors")
        whole = (*POLICY[:2], *({*SPREAD} & bundle.names)) if bundle.holds_clone else ()
        for name in (CLONE, *whole):  # the policy's statement repeats the clone's
            made_own = own.get(Path(name).name)
            _refuse_other_digest(
                folder / name, file_sha256(folder / name), made_own, str(clone.charge)
            )
    model_digest, policy_digest = found[Path(MODEL[0]).name], file_sha256(folder / POLICY[0])
    # A clone was not trained in the model, and the answers call it the clone.
    trained_in = None if bundle.holds_clone else model_digest
    speakers: list[tuple[str, object, dict[str, str | None]]] = [
        (
            EVALUATION,
            bundle.evaluation,
            {"model_sha256": model_digest, "policy_sha256": policy_digest},
        ),
        (POLICY[1], bundle.policy, {"model_sha256": trained_in, "policy_sha256": policy_digest}),
    ]
    if answers is not None:
        about = {"model_sha256": model_digest, "clone_sha256": cloned}
        speakers.append(
            (
                ANSWERS,
                answers,
                about if bundle.holds_clone else about | {"policy_sha256": policy_digest},
            )
        )
    for place, speaks, expected in speakers:
        for key, digest in expected.items():
            if getattr(speaks, key) != digest:
                raise PipelineError(
                    f"{folder / place}: {key}: found {_short(getattr(speaks, key))}, allowed is "
                    f"{_short(digest)}, that of the file in the same bundle: {_AGAIN}, `dvc "
                    "repro` makes it again"
                )
    for charge, name in paid.items():
        if answers is not None and records.get(str(charge)) != answers.made(name):
            raise PipelineError(
                f"{folder / ANSWERS}: {name}: not the answers that charge {charge} is recorded "
                f"with: {_AGAIN}"
            )
    if bundle.evaluation.env_id != bundle.policy.environment:
        raise PipelineError(
            f"{folder / EVALUATION}: env_id: differs from environment in {POLICY[1]}: {_AGAIN}"
        )


def _refuse_other_digest(path: Path, found: str | None, made: str | None, charge: str) -> None:
    if found != made:
        raise PipelineError(
            f"{path}: found {_short(found)}, allowed is {_short(made)}, which charge {charge} "
            f"made: {_AGAIN}"
        )


def _short(digest: str | None) -> str:
    return "no such file" if digest is None else f"SHA-256 {digest[:12]}…"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PipelineError(f"{path}: not text in UTF-8") from None
