"""Which policy may be used: the one that was recommended, or another one only against advice and by
name.

A recommendation is made where no simulator measured the policy (`primorl.evaluate.recommendation`).
It is found in ``evaluation.json`` of the bundle that a policy's folder lies in, or in
``metrics/summary.json`` of its project. Of a copy of the folder elsewhere this is unknown, and a
warning says so.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256, read_json
from primorl.base.paths import BEHAVIOUR, PIPELINE, POLICY, PRIVATE_EVALUATION, SUMMARY
from primorl.policy.config import PolicyConfig

AGAINST = "--against-advice"
_BUNDLE, _MANIFEST = "evaluation.json", "MANIFEST.json"
_NOT_JUDGED = "nobody recommended it"


@dataclass(frozen=True)
class Advice:
    """A recommendation that is about the weights in a folder.

    Attributes:
        answer: ``trial``, ``keep`` or ``more_data``.
        reason: why, in a sentence or two.
        file: where it stands.
        followed: whether the use of the folder follows it.
    """

    answer: str
    reason: str
    file: Path
    followed: bool


def follows(folder: str | None, answer: str) -> bool:
    """Tell whether the use of ``folder`` follows an answer: a policy only a trial, the clone, which
    is a record of practice, unless nothing is known.
    """
    return answer == "trial" or (answer == "keep" and folder == str(BEHAVIOUR))


def read_advice(folder: Path) -> Advice | None:
    """Return the recommendation about the policy in ``folder``; None: an environment measured it,
    or nothing tells.

    Raises:
        PipelineError: the folder lies in a project whose last evaluation was of other weights or
            answers, or there was none.
    """
    config, place = PolicyConfig.read(folder), folder.resolve()
    if config.environment is not None:
        return None
    file, cloned = place.parent / _BUNDLE, False
    answers = None
    if not (file.exists() and (place.parent / _MANIFEST).exists()):
        known = (up for up in place.parents if any((up / f).exists() for f in (PIPELINE, SUMMARY)))
        project = next(known, None)
        if project is None:
            warnings.warn(
                f"{folder}: lies in no bundle and no project, so nothing tells whether this "
                "policy is recommended; keep a bundle's files together",
                stacklevel=3,
            )
            return None
        file, answers = project / SUMMARY, project / PRIVATE_EVALUATION
        cloned = config.policy == str(BEHAVIOUR)
    said = read_json(file) if file.exists() else {}
    if answers is not None:
        newest = file_sha256(answers) if answers.exists() else None
        if newest is None or said.get("private_evaluation_sha256") != newest:
            said = {}
        elif cloned:
            said["policy_sha256"] = read_json(answers).get("clone_sha256")
    advice = said.get("recommendation")
    judged = said.get("policy_sha256") == file_sha256(folder / "policy.safetensors")
    if not judged or not isinstance(advice, dict):
        raise PipelineError(
            f"{folder}: found a policy that {file} does not judge, so {_NOT_JUDGED}; `dvc repro` "
            f"evaluates models/policy; to use it all the same: {AGAINST} (in Python: "
            "against_advice=True)"
        )
    answer = advice["answer"]
    return Advice(answer, advice["reason"], file, follows(config.policy, answer))


def refuse_against_advice(folder: Path) -> None:
    """Refuse a policy that was advised against.

    Raises:
        PipelineError: says what is recommended instead.
    """
    advice = read_advice(folder)
    if advice is None or advice.followed:
        return
    instead = "keep today's practice" if advice.answer == "keep" else "more data needed"
    raise PipelineError(
        f"{folder}: advised against in {advice.file}: {instead}. {advice.reason} To use it all "
        f"the same: --policy {folder} {AGAINST} (in Python: against_advice=True)"
    )


def describe(folder: Path) -> str | None:
    """Return the recommendation about the policy in ``folder`` in a few words; None where an
    environment measured it.

    Its reason quotes answers of the private units, which the policy's own ε does not count, and is
    left out.
    """
    try:
        advice = read_advice(folder)
    except PipelineError:
        return _NOT_JUDGED
    if advice is None:
        return None
    if advice.answer == "trial":
        return "the policy is recommended for a trial"
    return "a record of today's practice" if advice.followed else "advised against"


def choose(folder: Path | None, *, against_advice: bool) -> Path:
    """Return the folder to use: ``folder`` if it may be used, or, without a name, the one that is
    recommended.

    Raises:
        PipelineError: the policy was advised against, or none is recommended; or ``against_advice``
            without a name.
    """
    if against_advice:
        if folder is None:
            raise PipelineError(
                f"{AGAINST}: found without --policy, allowed with the policy's folder: name it"
            )
        return folder
    folder = folder or POLICY
    refuse_against_advice(folder)
    return folder
