"""The chain that binds a statement to the bytes it speaks of: ledger, model, policy, evaluation, private answers.

The ledger's record of a charge names the digest of every file that the charge made, the whole statement among them. The
policy names the model's digest and its own, the evaluation and the private answers name both. The charge of an answer
names the digest of the answer and its statement.
"""

from pathlib import Path

from primorl.evaluation.private.results import PrivateEvaluation
from primorl.policy.config import PolicyConfig
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256
from primorl.release.contents import (
    ANSWERS,
    CLONE,
    EVALUATION,
    LEDGER,
    MODEL,
    POLICY,
    STARTS,
    Evaluation,
    LedgerStatement,
)

_AGAIN = "damaged, edited or of another run; `dvc checkout` brings back what the stages wrote"


def check_chain(
    folder: Path,
    statement: Statement,
    clone: Statement | None,
    ledger: LedgerStatement,
    policy: PolicyConfig,
    evaluation: Evaluation,
    answers: PrivateEvaluation | None,
) -> None:
    """Follow the chain.

    Args:
        folder: of the bundle.
        statement: its model's.
        clone: the statement of the clone of the behaviour; None: there is none.
        ledger: one of its records has the id of the statement's charge.
        policy: ``config.json`` of the policy.
        evaluation: ``evaluation.json``.
        answers: ``private-evaluation.json``; None: there is none.

    Raises:
        PipelineError: names the first file that is not the one that the file before it in the chain speaks of.
    """
    names = (*MODEL, *([STARTS] if (folder / STARTS).exists() else []))
    found = {Path(name).name: file_sha256(folder / name) for name in names}
    made = next((record.made for record in ledger.records if record.id == statement.charge), None)
    paid = {each.charge: name for name, each in ({} if answers is None else answers.statements).items()}
    charged = {statement.charge, *paid, *([] if clone is None else [clone.charge])}
    if made is None or any(record.made for record in ledger.records if record.id not in charged):
        raise PipelineError(
            f"{folder / LEDGER}: records: made: needed with charge {statement.charge}, and allowed only there and with "
            f"the charges that {ANSWERS} and {CLONE} name"
        )
    for name in sorted(found.keys() | made.keys()):
        if found.get(name) != made.get(name):
            raise PipelineError(
                f"{folder / 'dynamics' / name}: found {_short(found.get(name))}, allowed is {_short(made.get(name))}, "
                f"which charge {statement.charge} made: {_AGAIN}"
            )
    cloned = _check_clone(folder, clone, ledger, policy)
    digests: dict[str, str | None] = {
        "model_sha256": found[Path(MODEL[0]).name],
        "policy_sha256": file_sha256(folder / POLICY[0]),
    }
    speakers: list[tuple[str, object, dict[str, str | None]]] = [(EVALUATION, evaluation, digests)]
    if policy.policy == "models/behaviour":  # it was not trained in the model, and the answers call it the clone
        speakers.append((POLICY[1], policy, digests | {"model_sha256": None}))
        about = {"model_sha256": digests["model_sha256"], "clone_sha256": cloned}
    else:
        speakers.append((POLICY[1], policy, digests))
        about = digests | {"clone_sha256": cloned}
    if answers is not None:
        speakers.append((ANSWERS, answers, about))
    for place, speaks, expected in speakers:
        for key, digest in expected.items():
            if getattr(speaks, key) != digest:
                raise PipelineError(
                    f"{folder / place}: {key}: found {_short(getattr(speaks, key))}, allowed is {_short(digest)}, "
                    f"that of the file in the same bundle: {_AGAIN}, `dvc repro` makes it again"
                )
    for entry in ledger.records:
        answered = paid.get(entry.id)
        if answers is not None and answered is not None and entry.made != answers.made(answered):
            raise PipelineError(
                f"{folder / ANSWERS}: {answered}: not the answers that charge {entry.id} is recorded with: {_AGAIN}"
            )
    if evaluation.env_id != policy.environment:
        raise PipelineError(f"{folder / EVALUATION}: env_id: differs from environment in {POLICY[1]}: {_AGAIN}")


def _check_clone(folder: Path, clone: Statement | None, ledger: LedgerStatement, policy: PolicyConfig) -> str | None:
    """The digest of the clone's policy, as its charge made it; the files of it that are here are those."""
    if clone is None:
        return None
    made = next((record.made for record in ledger.records if record.id == clone.charge), None) or {}
    names = {CLONE: "privacy.json"}
    if policy.policy == "models/behaviour":
        names |= {name: Path(name).name for name in POLICY[:2]}  # the third repeats the clone's statement
    for name, own in names.items():
        if file_sha256(folder / name) != made.get(own):
            raise PipelineError(
                f"{folder / name}: found {_short(file_sha256(folder / name))}, allowed is {_short(made.get(own))}, "
                f"which charge {clone.charge} made: {_AGAIN}"
            )
    return made.get("policy.safetensors")


def _short(digest: str | None) -> str:
    return "no such file" if digest is None else f"SHA-256 {digest[:12]}…"
