"""``primorl sweep``: what it prints, its exit status, and what --plan counts."""

import re
from pathlib import Path

import pytest

from primorl.config.params import Params
from primorl.sweeps.file import Trial
from tests.commands.conftest import Call
from tests.pipeline.training_project import charged
from tests.sweeps.conftest import MODEL, project, quick, ran, sweep_of
from tests.sweeps.stages import BAD_SEED

__all__ = ["project", "quick"]


@pytest.mark.usefixtures("project")
def test_it_runs_prints_and_ends_with_one_where_a_trial_failed(primorl: Call) -> None:
    sweep_of({"cases": {"A": {"policy.epochs": 3}}, "grid": {"seed": [2, BAD_SEED]}})
    status, out, _ = primorl("sweep", "tiny.yaml", "--workers", "1")
    assert status == 1
    good, bad, why = out.splitlines()[1:]
    assert good.split() == [Trial({"policy.epochs": 3, "seed": 2}).name, "A", "2", "-2", "1.5", "0", "finished"]
    assert bad.endswith("  failed")
    assert why == f"{bad.split()[0]} failed: a stage says why"
    sweep_of({"cases": {"A": {"policy.epochs": 3}}, "grid": {"seed": [2]}})
    assert primorl("sweep", "tiny.yaml")[0] == 0
    before = ran()
    assert primorl("sweep", "tiny.yaml", "--rows", "out.csv")[:2] == (0, "out.csv: 1 finished trials of tiny\n")
    assert len(Path("out.csv").read_text().splitlines()) == 2
    search = {"metric": "return_mean", "direction": "maximize", "trials": 1, "space": {"seed": {"choices": [1]}}}
    sweep_of({"search": search}, "search")
    for words, said in (
        ("missing.yaml", "missing.yaml: not there"),
        ("tiny.yaml --rows a.txt", "allowed are .csv and .parquet"),
        ("tiny.yaml --workers 0", "workers"),
        ("search.yaml --plan", "--plan is for a grid"),
    ):
        assert said in primorl("sweep", *words.split())[2]
    assert ran() == before


def test_the_plan_counts_equal_models_once_and_runs_nothing(
    project: Params, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Two policies in one model are one charge; another seed of the model is another.

    A row is a line of the terminal: names and settings are cut.
    """
    sweep_of({"settings": MODEL, "grid": {"seed": [0, 1], "policy.epochs": [1, 2]}})
    text = Path("params.yaml").read_text()
    budget = "epsilon: 100.0\n    delta: 0.001"
    Path("params.yaml").write_text(text.replace("epsilon: null\n    delta: 1.0e-05", budget, 1))
    status, out, err = primorl("sweep", "tiny.yaml", "--plan")
    assert status == 0, err
    assert out.splitlines()[1].split()[4:6] == ["1", "1"]  # z, and z/(qK) of two units at q = 0.5
    assert "4 trials, 4 to run; 2 new charges" in out
    assert "the first 2 of 2 charges fit" in out
    case = "a long name of a group of settings that nobody would want to read twice"
    grid = {"seed": [2, BAD_SEED], "dynamics.variant": ["mopo", "private"]}
    sweep_of({"settings": MODEL, "cases": {case: {}}, "grid": grid})
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, out, err = primorl("sweep", "tiny.yaml", "--plan")
    head, *lines = re.sub(r"\x1b\[\d*m", "", out).splitlines()
    assert head.split()[:2] == ["trial", "case"], err
    assert all(len(line) <= 80 for line in [head, *lines[:4]])
    assert [line.split()[-1] for line in lines[:4]] == ["new"] * 4
    assert "2 of them without any guarantee" in out
    assert not Path(".primorl/sweeps").exists()
    assert charged(project) == []
