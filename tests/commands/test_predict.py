"""``primorl predict``: what it prints and refuses; what it computes is tested in tests/setup/test_prediction.py."""

from pathlib import Path

import pytest

from tests.commands.charging import primorl
from tests.policy.test_loaded import NAMES, RANGE, loaded

CSV = "id,age,dose,weight\n007,1,1,5\n8,,1,5\n9,1,99,5\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("models/policy").mkdir(parents=True)
    loaded(Path("models/policy"), **RANGE, **NAMES)
    Path("in.csv").write_text(CSV, encoding="utf-8")
    return tmp_path


def test_it_writes_actions_and_says_how_many_it_abstained_from(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("predict", "--observations", "in.csv", "--out", "out/actions.csv", "--keep", "id", "--keep", "dose")
    status, out, err = primorl(capsys, *words)
    assert (status, out) == (0, "out/actions.csv: 3 rows\n")
    assert err.splitlines()[-1] == "abstained: 2 of 3 rows, which have no action"
    header, first, second, third = Path("out/actions.csv").read_text(encoding="utf-8").splitlines()
    assert header == '"id","dose","up","down","abstained"'
    assert first.startswith('"007","1",')
    assert first.endswith(",false")
    assert (second, third) == ('"8","1",,,true', '"9","99",,,true')


def test_the_policy_may_lie_elsewhere_and_what_makes_no_sense_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("models/policy").rename("bundle")
    words = ("--observations", "in.csv", "--out", "actions.parquet")
    assert primorl(capsys, "predict", *words, "--policy", "bundle")[0] == 0
    for wrong, says in (
        (words, "error: models/policy/config.json: not there"),
        ((*words, "--policy", "bundle", "--observations", "none.csv"), "error: none.csv: not there"),
        ((*words, "--policy", "bundle", "--keep", "name"), "error: in.csv: found no column 'name'"),
        ((*words, "--policy", "bundle", "--step", "t"), "error: --trajectory, --step: found one without the other"),
        (words[:2], "error: Missing option '--out'"),
    ):
        status, _, err = primorl(capsys, "predict", *wrong)
        assert status != 0
        assert err.startswith(says)
        assert len(err.splitlines()) == 1
