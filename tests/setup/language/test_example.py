"""The example runs offline, writes weights with their statement, and prints nothing of a private prompt."""

import json
import sys
from pathlib import Path

import pytest

from examples import sentiment

pytest.importorskip("transformers", reason="the extra rlhf is not installed")
pytest.importorskip("peft", reason="the extra rlhf is not installed")


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["sentiment", *options])
    sentiment.main()


def test_it_trains_and_states_what_it_guarantees(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples import tiny_reviews

    monkeypatch.setattr(tiny_reviews, "trained", tiny_reviews.untrained)
    small = ["--cohorts", "2", "--cohort", "16", "--held-out", "16", "--rank", "1", "--epsilon", "1"]
    run(monkeypatch, *small, "--out", str(tmp_path))
    stated = json.loads((tmp_path / "privacy.json").read_text())
    assert (stated["private"], stated["unit"], stated["units"], stated["rounds"]) == (True, "user", 32, 1)
    assert 0.99 < stated["epsilon"] <= 1.0
    assert (tmp_path / "adapter_model.safetensors").exists()
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed[1:]] == [
        "reward before",
        "reward after",
        "weights and privacy.json",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "gpt2"], "name all three, or none"),
        (["--model", "/no/model", "--prompts", "/no", "--reward", "/no"], "model: '/no/model' cannot be loaded"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message) as refused:
        run(monkeypatch, *options)
    assert str(refused.value).startswith("error: ")
    assert "\n" not in str(refused.value)
