import pytest

from primorl.project.progress import progress_bar


def test_a_terminal_gets_a_bar_and_a_pipe_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar(2, "train_model", "round") as bar:
        bar.update()
        bar.set_postfix(public_loss="1.5", refresh=False)
        bar.update()
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("train_model: 0 of 2 rounds, 00:00 so far, ")
    assert last.startswith("train_model: 2 of 2 rounds, 00:00 so far, 00:00 left")
    assert last.endswith("public_loss=1.5")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar(2, "train_model", "round") as bar:
        bar.update(2)
    assert capsys.readouterr().err.startswith("\rtrain_model:   0%|")
