"""``primorl predict``: what it prints and refuses; what it computes is tested in tests/setup/test_prediction.py."""

from pathlib import Path

from tests.commands.conftest import Call
from tests.policy.test_loaded import NAMES, RANGE, loaded

IN = ("predict", "--observations", "in.csv", "--out", "out/actions.csv")


def test_it_writes_actions_and_says_how_many_it_abstained_from(primorl: Call) -> None:
    """The policy may lie elsewhere; what makes no sense is one line."""
    Path("bundle").mkdir()
    loaded(Path("bundle"), **RANGE, **NAMES)
    Path("in.csv").write_text("id,age,dose,weight\n007,1,1,5\n8,,1,5\n9,1,99,5\n", encoding="utf-8")
    given = (*IN, "--policy", "bundle")
    status, out, err = primorl(*given, "--keep", "id", "--keep", "dose")
    assert (status, out) == (0, "out/actions.csv: 3 rows\n")
    assert err.splitlines()[-1] == "abstained: 2 of 3 rows, which have no action"
    header, first, second, third = Path("out/actions.csv").read_text(encoding="utf-8").splitlines()
    assert header == '"id","dose","up","down","abstained"'
    assert first.startswith('"007","1",')
    assert first.endswith(",false")
    assert (second, third) == ('"8","1",,,true', '"9","99",,,true')
    for wrong, says in (
        (IN, "error: models/policy/config.json: not there"),
        ((*given, "--observations", "none.csv"), "error: none.csv: not there"),
        ((*given, "--keep", "name"), "error: in.csv: found no column 'name'"),
        ((*given, "--step", "t"), "error: --trajectory, --step: found one without the other"),
        (IN[:3], "error: Missing option '--out'"),
    ):
        status, _, err = primorl(*wrong)
        assert (status != 0, err.count("\n")) == (True, 1)
        assert err.startswith(says)
