"""Long work says how far it is, and a file or pipe gets plain lines."""

import pytest

from primorl.project.progress import progress_bar


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(2, "train_model", "round") as bar:
        bar.update()
        bar.set_postfix(public_loss="1.5", refresh=False)
        bar.update()
    err = capsys.readouterr().err
    assert "\r" not in err
    assert err.isascii()
    first, last = err.splitlines()
    assert first.startswith("train_model: 0 of 2 rounds, 00:00 so far, ")
    assert last.startswith("train_model: 2 of 2 rounds, 00:00 so far, 00:00 left")
    assert last.endswith("public_loss=1.5")


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar(2, "train_model", "round") as bar:
        bar.update(2)
    err = capsys.readouterr().err
    assert err.startswith("\rtrain_model:   0%|")
    assert "| 2/2 [" in err
