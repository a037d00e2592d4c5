"""What is made of models and shown of them: predict, summary, runs, report; `run` says before
what it charges.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from primorl.base import PipelineError, dvc
from primorl.base.dvc import Status
from primorl.base.files import write_json
from primorl.base.reporting import RunContent
from primorl.config import params
from primorl.config.params import plain
from primorl.tracking import log_run
from primorl.work.bill import Bill
from tests.commands.conftest import Call
from tests.pipeline.conftest import small
from tests.pipeline.test_evaluate import chosen, project, run
from tests.policy.test_loaded import NAMES, RANGE, loaded
from tests.projects import project_settings, write_settings

__all__ = ["small"]


IN = ("predict", "--observations", "in.csv", "--out", "out/actions.csv")


def test_it_says_how_many_rows_it_abstained_from_and_what_is_not_there(primorl: Call) -> None:
    """The policy may lie elsewhere."""
    Path("bundle").mkdir()
    loaded(Path("bundle"), **RANGE, **NAMES)
    Path("in.csv").write_text("age,dose,weight\n1,1,5\n,1,5\n1,99,5\n", encoding="utf-8")
    given = (*IN, "--policy", "bundle")
    status, out, err = primorl(*given, "--keep", "age", "--keep", "dose")
    assert (status, out) == (0, "out/actions.csv: 3 rows, actions of bundle\n")
    assert err.splitlines()[-1] == "abstained: 2 of 3 rows, which have no action"
    header = Path("out/actions.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == '"age","dose","up","down","abstained","reason"'
    for wrong, says in (
        (IN, "error: models/policy/config.json: not there"),
        ((*given, "--observations", "none.csv"), "error: none.csv: not there"),
    ):
        status, _, err = primorl(*wrong)
        assert (status != 0, err.count("\n"), err.startswith(says)) == (True, 1, True), err


EPSILONS = {"epsilon": 0.4998, "epsilon_rdp": 0.55, "delta": 1e-5}
SPENT = {"epsilon": 0.4998, "delta": 1e-5, "charges": 1}
SUMMARY: dict[str, Any] = EPSILONS | {"format": 1, "dataset": "small", "variant": "private"}
SUMMARY |= {"private": True, "unit": "trajectory", "units": 9, "void": []}
SUMMARY |= {"spent_on_dataset": SPENT, "env_id": "Pendulum-v1", "return_mean": -143.52}
SUMMARY |= {"return_ci95": [-161.6, -125.4], "episodes": 100}
SUMMARY |= {"normalized_score": None, "seed": 0, "seconds": {"ingest": 3.0}}
SUMMARY |= {
    f"{name}_sha256": hashlib.sha256(name.encode()).hexdigest() for name in ("model", "policy")
}


def test_summary_prints_a_table_or_the_file_and_says_whether_they_are_of_an_earlier_run(
    primorl: Call,
) -> None:
    """After a run that failed on the way, the advice is about a model that is not there any
    more.
    """
    model, policy = (
        Path("models/dynamics/model.safetensors"),
        Path("models/policy/policy.safetensors"),
    )
    for file in (model, policy):
        file.parent.mkdir(parents=True)
        file.write_text(file.stem)
    write_json(Path("metrics/summary.json"), SUMMARY)

    status, out, err = primorl("summary")
    assert (status, err) == (0, "")
    assert "privacy  of the policy: ε = 0.5, δ = 1e-05 per trajectory\n" in out
    model.write_bytes(b"another")
    policy.unlink()
    said = "models/dynamics and models/policy is another or gone; run `primorl run`, which says "
    said += "first what it charges, or, in a clone, `dvc pull`"
    status, out, err = primorl("summary", "--json")
    assert (status, json.loads(out)) == (0, SUMMARY)
    assert err == f"warning: metrics/summary.json: these results are of an earlier run: {said}\n"


MEASURED = {"return_low": -9.0, "return_high": 1.0, "epsilon_spent_on_dataset": 2.5}


def test_what_cannot_be_listed_is_one_line(primorl: Call) -> None:
    write_settings(project_settings())
    assert f"error: {Path('mlflow.db').resolve()}: not there" in primorl("runs")[2]
    assert not list(Path().glob("*.db"))
    write_json(Path("mlflow.db"), {"not": "a database"})
    assert primorl("runs")[2].startswith("error: tracking.uri: the MLflow store")


USUAL = {"delta": 1e-5, "unit": "trajectory"}
GAIN = {"gain_over_today": 99.0, "gain_over_today_low": 98.0, "gain_over_today_high": 100.0}
RUNS: tuple[tuple[str, dict[str, Any], dict[str, float]], ...] = (
    ("baseline", USUAL | {"delta": None}, {"return_mean": -80.0}),
    ("small", USUAL, {"epsilon": 0.5, "return_mean": -200.0} | MEASURED),
    ("good", USUAL, {"epsilon": 1.0, "return_mean": -150.0} | MEASURED),
    ("large", USUAL, {"epsilon": 5.0, "return_mean": -100.0} | MEASURED),
    ("weak", USUAL | {"delta": 1e-3}, {"epsilon": 0.5, "return_mean": -95.0}),
    ("visits", USUAL | {"unit": "visit"}, {"epsilon": 0.5, "return_mean": -90.0}),
    ("modelled", USUAL, {"epsilon": 0.5, "model_value": 7.0} | GAIN),
    ("old", {}, {"epsilon": 0.5}),
    ("training", {}, {}),
)


def test_each_result_is_listed_once_and_the_best_that_compares_first(
    folder: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Measured returns first, then the newest."""
    monkeypatch.setenv("DVC_ROOT", str(folder))
    shutil.copy(empty_store, "mlflow.db")
    for name, stated, metrics in RUNS:
        monkeypatch.setenv("DVC_EXP_NAME", name)
        settings = project_settings()
        settings["privacy"] |= {"target_epsilon": 0.5 * len(name)}
        write_settings(settings)
        tags = {"dataset_fingerprint": f"{1.0 in metrics.values():d}" * 64}
        tags |= {"recommendation": "more_data"} if name == "modelled" else {}
        given = {"private": "epsilon" in metrics} | stated if metrics else {}
        numbers = [(key, value, 0) for key, value in metrics.items()]
        log_run(params.load(), RunContent(given, tags, numbers), [])

    def listed(*words: str) -> list[str]:
        status, out, err = primorl("runs", *words)
        assert (status, err) == (0, "")
        assert "ε of policy" in out
        assert "ε by then" in out
        return [line.split()[2] for line in out.splitlines()[1:]]

    ranked = ["baseline", "visits", "weak", "large", "good", "small"]
    assert listed() == [*ranked, "old", "modelled"], "a model's own opinion ranks nothing"
    assert " more data " in primorl("runs")[1]
    good = next(line for line in primorl("runs")[1].splitlines() if " good " in line)
    assert (good[:6], good.split()[-1]) == ("111111", "privacy.target_epsilon=2.0"), (
        "of the settings only what a person wrote and what differs"
    )
    found = json.loads(primorl("runs", "--json")[1])
    told = {each["name"]: (each["spent"], each["value"], each["low"]) for each in found}
    assert (told["small"], told["modelled"]) == ((2.5, -200.0, -9.0), (None, 99.0, 98.0))


__all__ = ["project", "small"]


class FakeBill:
    unpaid = True
    refuse_unpayable: Any = Bill.refuse_unpayable

    def __init__(self, done: int, refused: str = ""):
        self._done, self._refused = done, refused

    def __str__(self) -> str:
        return f"bill after {self._done}"

    def refuse_beyond_budget(self) -> None:
        if self._refused == "no budget":
            raise PipelineError(self._refused)

    def refuse_lost(self) -> None:
        if self._refused == "paid elsewhere":
            raise PipelineError(self._refused)


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        (set(), ""),
        ({"train_model"}, ""),
        ({"train_model"}, "no budget"),
        ({"train_model"}, "paid elsewhere"),
    ],
)
def test_it_runs_only_what_changed_and_says_before_what_it_charges(
    project: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call, changed: set[str], refused: str
) -> None:
    """What the budget does not allow, or another clone paid for, leaves the last model: DVC
    deletes the outputs of a stage before it runs. Twins: nothing changed, and a stage did.
    """
    write_settings(plain(chosen()))
    run(chosen())
    done: list[tuple[str, ...]] = []
    monkeypatch.setattr(dvc, "show_dvc", lambda *words: done.append(words))
    monkeypatch.setattr(Status, "changed_stages", lambda _: changed)
    monkeypatch.setattr("primorl.work.resolve.preview", lambda *_: FakeBill(len(done), refused))
    status, out, err = primorl("run")
    if refused:
        assert primorl("check", "--charges")[0] == 1, "it stands before `&& dvc repro`"
        assert (status, err, done) == (1, f"error: {refused}\n", [("repro", "--quiet", "plan")])
        return
    assert status == 0, err
    assert "dataset " in out
    if not changed:
        assert done == []
        assert "nothing is run or charged" in err
        return
    assert done == [("repro", "--quiet", "plan"), ("repro",)]
    assert "bill after 1" in out, "said once the plan is made and before anything is charged"
