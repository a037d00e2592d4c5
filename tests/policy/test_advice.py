"""A policy that was advised against is used only by name and in so many words."""

from pathlib import Path
from typing import Any

import pytest

import primorl
from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256, read_json, write_json
from primorl.commands.main import main
from primorl.policy.loaded import choose
from tests.policy.test_loaded import LOG, NAMES, loaded

POLICY, CLONE = Path("models/policy"), Path("models/behaviour")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of a log, with a policy and a clone that nobody has evaluated."""
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    for folder in (POLICY, CLONE):
        loaded(folder, **LOG, **NAMES)
        write_json(
            folder / "config.json", read_json(folder / "config.json") | {"policy": str(folder)}
        )
    Path("dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    Path("in.csv").write_text("age,dose,weight\n1,1,5\n", encoding="utf-8")
    return tmp_path


def advise(answer: str, policy: Path | None) -> None:
    named = None if policy is None else str(policy)
    said: dict[str, Any] = {"answer": answer, "policy": named, "reason": "It loses 3."}
    weights = {folder: file_sha256(folder / "policy.safetensors") for folder in (POLICY, CLONE)}
    answers = Path("metrics/private_evaluation.json")
    write_json(answers, {"clone_sha256": weights[CLONE], "answer": answer})
    about = {"policy_sha256": weights[POLICY], "private_evaluation_sha256": file_sha256(answers)}
    write_json(Path("metrics/summary.json"), about | {"recommendation": said})


def test_what_is_recommended_is_used_and_nothing_else(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twins: a trial is recommended; a policy that a simulator measured. Of a copy elsewhere nobody
    can tell.
    """
    Path("metrics").mkdir()
    advise("trial", POLICY)
    assert choose(None, against_advice=False) == POLICY
    for answer, refused in (("keep", (POLICY,)), ("more_data", (POLICY, CLONE))):
        advise(answer, None)
        for folder in refused:
            with pytest.raises(PipelineError, match=rf"{folder}: advised against in .*It loses"):
                primorl.load_policy(folder)
        if answer == "keep":
            primorl.load_policy(CLONE)  # a record of practice, by name
    predict = ["predict", "--observations", "in.csv", "--out", "out.csv"]
    assert [main(predict), main([*predict, "--policy", str(POLICY)])] == [1, 1]
    assert not Path("out.csv").exists()
    assert main([*predict, "--policy", str(POLICY), "--against-advice"]) == 0
    assert f"actions of {POLICY}\n" in capsys.readouterr().out
    loaded(Path("elsewhere"), environment="Pendulum-v1")
    primorl.load_policy("elsewhere")
    for file in ("dvc.yaml", "metrics/summary.json"):
        Path(file).unlink()
    with pytest.warns(UserWarning, match="nothing tells whether this policy is recommended"):
        primorl.load_policy(POLICY)


def test_a_project_recommends_the_weights_that_it_evaluated(project: Path) -> None:
    """Nobody has before an evaluation, after another training, or where the people's answers are
    newer.
    """
    Path("metrics").mkdir()
    with pytest.raises(PipelineError, match="nobody recommended it; `dvc repro` evaluates"):
        primorl.load_policy(POLICY)
    advise("trial", POLICY)
    primorl.load_policy(POLICY)
    said = read_json(Path("metrics/summary.json"))
    write_json(Path("metrics/summary.json"), said | {"policy_sha256": "0" * 64})
    with pytest.raises(PipelineError, match="nobody recommended it"):
        primorl.load_policy(POLICY)
    write_json(Path("metrics/summary.json"), said)
    primorl.load_policy(POLICY)
    answers = Path("metrics/private_evaluation.json")
    write_json(answers, read_json(answers) | {"answer": "newer"})
    with pytest.raises(PipelineError, match="nobody recommended it"):
        primorl.load_policy(POLICY)
    with pytest.raises(PipelineError, match="found without --policy"):
        choose(None, against_advice=True)


def test_a_bundle_carries_its_advice(project: Path) -> None:
    """The clone that a bundle holds is a record; a policy that was released against its
    recommendation is not.
    """
    for folder, fine in ((CLONE, True), (POLICY, False)):
        bundle = Path(f"bundle-{fine}")
        bundle.mkdir()
        folder.rename(bundle / "policy")
        said = {"answer": "keep", "policy": None, "reason": "It loses 3."}
        weights = file_sha256(bundle / "policy/policy.safetensors")
        write_json(bundle / "MANIFEST.json", {})
        write_json(bundle / "evaluation.json", {"policy_sha256": weights, "recommendation": said})
        if fine:
            primorl.load_policy(bundle / "policy")
        else:
            with pytest.raises(PipelineError, match=r"advised against in .*evaluation\.json"):
                primorl.load_policy(bundle / "policy")
