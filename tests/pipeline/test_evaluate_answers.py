"""``evaluate`` repeats what the private units answered, and what model, policy and answers cost together."""

from dataclasses import replace
from pathlib import Path

import pytest

from primorl.evaluation.private.results import Answer, PrivateEvaluation
from primorl.evaluation.wording import text
from primorl.privacy.statement import SpentOnDataset
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, read_json
from primorl.project.paths import MODEL, POLICY, PRIVATE_EVALUATION
from tests.pipeline.test_evaluate import chosen, project, run
from tests.pipeline.tiny_policy import write_model
from tests.statements import PRIVATE as STATEMENT

__all__ = ["project"]

TOTAL = SpentOnDataset(epsilon=2.75, epsilon_fixed=2.5, epsilon_rdp=3.0, delta=1e-5, charges=4)


def answer(of: str, by: str, value: float, ci95: tuple[float, float] | None, epsilon: float | None) -> Answer:
    return Answer(
        estimator=by,
        of=of,  # type: ignore[arg-type]
        what="reward error" if of == "model" else "mean return",
        value=value,
        ci95=ci95,
        covers="sampling and noise",
        bias="none",
        epsilon=epsilon,
        delta=None if epsilon is None else 1e-5,
    )


ANSWERS = (
    answer("policy", "lstd", -9.9, (-11.1, -8.7), 0.2),
    answer("policy", "model", -9.0, None, None),
    answer("zero_action", "lstd", -20.0, (-25.0, -19.0), 0.2),
    answer("behaviour", "behaviour", -12.3, (-13.1, -11.5), 0.0496),
    answer("model", "model_check", 0.5, (0.4, 0.6), 0.1),
)


@pytest.fixture
def answers(project: Path) -> PrivateEvaluation:
    write_model(STATEMENT)
    record = replace(
        PrivateEvaluation.read(PRIVATE_EVALUATION),
        estimates=ANSWERS,
        total=TOTAL,
        verdict="believable up to 5 steps",
        model_sha256=file_sha256(MODEL / "model.safetensors"),
        policy_sha256=file_sha256(POLICY / "policy.safetensors"),
    )
    record.write(PRIVATE_EVALUATION)
    return record


@pytest.mark.usefixtures("answers")
def test_the_summary_has_the_values_the_verdict_and_the_total() -> None:
    run(chosen())
    summary = read_json(Path("metrics/summary.json"))
    assert [found["of"] for found in summary["private_evaluation"]] == ["policy", "policy", "zero_action", "behaviour"]
    assert summary["model_verdict"] == "believable up to 5 steps"
    assert (summary["spent_on_dataset"]["epsilon"], summary["spent_on_dataset"]["charges"]) == (2.75, 4)
    assert summary["epsilon"] == STATEMENT["epsilon"], "the model's own"
    assert text(summary).splitlines()[3:9] == [
        "spent    in all: ε = 2.75, δ = 1e-05 in 4 charges with the private evaluation "
        "(ε = 2.5 if all settings were fixed beforehand)",
        "today    -12.3 ± 0.8 by behaviour (ε 0.0496)",
        "policy   -9.9 ± 1.2 by lstd (ε 0.2)",
        "policy   -9 by model (free)",
        "zeros    -20 [-25, -19] by lstd (ε 0.2)",
        "model    believable up to 5 steps",
    ]
    clone = summary["private_evaluation"][1] | {"of": "clone"}
    labelled = text(summary | {"private_evaluation": [clone]}).splitlines()
    assert "clone    -9 by model (free), as it would be released" in labelled


@pytest.mark.parametrize("key", ["model_sha256", "policy_sha256"])
def test_answers_about_another_model_or_policy_are_refused(answers: PrivateEvaluation, key: str) -> None:
    replace(answers, **{key: "0" * 64}).write(PRIVATE_EVALUATION)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=rf"{key}: the answers are not about models/.*; run `dvc repro`") as refused:
        run(chosen())
    assert "\n" not in str(refused.value)
    assert not Path("metrics/summary.json").exists()
