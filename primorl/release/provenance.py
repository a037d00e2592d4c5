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
from primorl.release.contents import ANSWERS, EVALUATION, LEDGER, MODEL, POLICY, STARTS, Evaluation, LedgerStatement

_AGAIN = "damaged, edited or of another run; `dvc checkout` brings back what the stages wrote"


def check_chain(
    folder: Path,
    statement: Statement,
    ledger: LedgerStatement,
    policy: PolicyConfig,
    evaluation: Evaluation,
    answers: PrivateEvaluation | None,
) -> None:
    """Follow the chain.

    Args:
        folder: of the bundle.
        statement: its model's.
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
    if made is None or any(record.made for record in ledger.records if record.id not in {statement.charge, *paid}):
        raise PipelineError(
            f"{folder / LEDGER}: records: made: needed with charge {statement.charge}, and allowed only there and with "
            f"the charges that {ANSWERS} names"
        )
    for name in sorted(found.keys() | made.keys()):
        if found.get(name) != made.get(name):
            raise PipelineError(
                f"{folder / 'dynamics' / name}: found {_short(found.get(name))}, allowed is {_short(made.get(name))}, "
                f"which charge {statement.charge} made: {_AGAIN}"
            )
    digests = {"model_sha256": found[Path(MODEL[0]).name], "policy_sha256": file_sha256(folder / POLICY[0])}
    speakers = ((POLICY[1], policy), (EVALUATION, evaluation), *([] if answers is None else [(ANSWERS, answers)]))
    for place, speaks in speakers:
        for key, digest in digests.items():
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


def _short(digest: str | None) -> str:
    return "no such file" if digest is None else f"SHA-256 {digest[:12]}…"
