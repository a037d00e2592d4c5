"""``primorl plan`` says what the accountant says, solves what it is asked, and names what is wrong in one line."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from primorl.commands import main as cli
from primorl.config.params import Params, load
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.ledger.ledger import Budget, Version
from primorl.project.errors import PipelineError
from primorl.project.files import write_json
from primorl.setup import clone_work
from primorl.setup.accounts import project_ledger
from primorl.setup.planning import make_plan
from primorl.trajectories.storage.manifest import Manifest
from tests.pipeline.tiny_policy import write_partition
from tests.privacy.accounting.test_epsilon import GOLDEN
from tests.privacy.ledger.ledgers import adaptive, request, version
from tests.projects import project_settings, write_settings
from tests.trajectories.builders import INFO, episode, table

KEYS = ("epsilon_pld", "epsilon_rdp", "delta", "sampling_probability", "noise_multiplier", "rounds")
PRIVACY = {
    "budget": {"epsilon": 2.0, "delta": 1e-5},
    "target_epsilon": None,
    "noise_multiplier": 20.0,
    "delta": 1e-5,
    "sampling_probability": 1.0,  # quick to account
    "rounds": 5,
}
BARE = ("--sampling-probability", "1", "--rounds", "5", "--delta", "1e-5")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_params(**privacy: object) -> None:
    raw = project_settings()
    raw["privacy"] |= PRIVACY | privacy
    write_settings(raw)


def write_partitions() -> Version:
    """What the `partition` stage declares of a dataset of 40 units."""
    data = version([str(i) for i in range(80)], INFO.dataset_fingerprint)
    write_json(Path("data/partitions/manifest.json"), Manifest(INFO, private_units=40, public_units=2).to_json())
    Path("data/partitions/units.bin").write_bytes(data.members)
    Path("data/partitions/public_units.bin").write_bytes(version(["p", "q", "r", "s"]).members)
    return data


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["plan", *words]) == 0
    return capsys.readouterr().out


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(said(capsys, "--json", *words), parse_constant=pytest.fail)


def epsilon(q: float, z: float, rounds: int, delta: float = 1e-5) -> float:
    return accounting.spent(accounting.training_event(q, z, rounds), delta).epsilon_pld


@pytest.mark.parametrize(("q", "z", "rounds", "rdp", "pld"), GOLDEN[2:4])
def test_golden_values(
    q: float, z: float, rounds: int, rdp: float, pld: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The contract's keys, with the measured values."""
    words = {"--sampling-probability": q, "--noise-multiplier": z, "--rounds": rounds, "--delta": 1e-5}
    answer = answered(capsys, *(str(word) for pair in words.items() for word in pair))
    assert answer["epsilon_pld"] == pytest.approx(pld, rel=2e-3)
    assert answer["epsilon_rdp"] == pytest.approx(rdp, rel=2e-3)
    assert answer["epsilon_pld"] < answer["epsilon_replace_one"]
    assert [answer[key] for key in KEYS[2:]] == [1e-5, q, z, rounds]
    assert answer["neighboring_relation"] == "zero_out_one"


def test_a_target_is_solved_for_noise_or_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    """Each answer keeps the target; a little less noise, or one round more, would not."""
    target = ("--target-epsilon", "1.5")
    noise = answered(capsys, *BARE, *target)
    assert noise["epsilon_pld"] <= 1.5 < epsilon(1.0, 0.999 * noise["noise_multiplier"], 5)
    assert noise == answered(capsys, *BARE, *target, "--solve", "noise-multiplier")
    some = ("--sampling-probability", "1", "--noise-multiplier", "20", "--delta", "1e-5", *target, "--solve", "rounds")
    rounds = answered(capsys, *some)
    assert rounds["epsilon_pld"] <= 1.5 < epsilon(1.0, 20.0, rounds["rounds"] + 1)
    assert rounds["noise_multiplier"] == 20.0


def test_what_is_not_given_comes_from_params(capsys: pytest.CaptureFixture[str]) -> None:
    """ε now; an option changes its own number only; a target in the file is solved for anew at other rounds."""
    write_params()
    assert answered(capsys)["epsilon_pld"] == epsilon(1.0, 20.0, 5)
    assert answered(capsys, "--rounds", "9")["epsilon_pld"] == epsilon(1.0, 20.0, 9)
    assert answered(capsys, "--target-epsilon", "1")["noise_multiplier"] == 8.342
    longer = answered(capsys, "--target-epsilon", "3", "--solve", "rounds")
    assert (longer["noise_multiplier"], longer["rounds"] > 5) == (20.0, True)
    write_params(target_epsilon=1.0, noise_multiplier=None)
    now, more = answered(capsys), answered(capsys, "--rounds", "20")
    assert now["noise_multiplier"] == solve_noise_multiplier(1.0, 1e-5, 1.0, 5)
    assert more["noise_multiplier"] == solve_noise_multiplier(1.0, 1e-5, 1.0, 20)
    assert answered(capsys, "--target-epsilon", "2", "--solve", "rounds")["noise_multiplier"] == now["noise_multiplier"]
    assert answered(capsys, "--noise-multiplier", "7")["epsilon_pld"] == epsilon(1.0, 7.0, 5)
    write_params()
    assert cli.main(["plan", "--solve", "rounds"]) == 1
    found = "error: --target-epsilon: not given, and privacy.target_epsilon in params.yaml is null; give it\n"
    assert capsys.readouterr().err == found


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["--json"],
            "--noise-multiplier, --target-epsilon: neither is given, and there is no params.yaml here; give one",
        ),
        (["--noise-multiplier", "1"], "--sampling-probability: not given, and there is no params.yaml here to take"),
        ([*BARE, "--solve", "noise-multiplier"], "--target-epsilon: not given, and there is no params.yaml here"),
        ([*BARE, "--noise-multiplier", "1e-200"], "found '1e-200', allowed: a number from 1e-06 to 1e+06"),
        ([*BARE, "--target-epsilon", "nan"], "found 'nan', allowed: a number above 0"),
        (["--sampling-probability", "1.01"], "found '1.01', allowed: a number above 0, at most 1"),
        (["--rounds", "1.5"], "found '1.5', allowed: a whole number from 1 to 1000000"),
        (["--delta", "1"], "found '1', allowed: a number above 0 and below 1"),
        (["--units", "0"], "found '0', allowed: a whole number from 1"),
        (["--queries=1,x"], "found 'x', allowed: none, or numbers with commas between them, each a number from"),
        (["--queries=9,"], "found '', allowed: none, or"),
        (["--queries=1,1,1,1,1,1,1,1,1"], "found 9, allowed: up to 8"),
        (
            [*BARE, "--target-epsilon", "1", "--solve", "rounds"],
            "--rounds: found with --solve rounds, which looks for them; leave one of the two out",
        ),
        (
            [*BARE, "--target-epsilon", "1", "--noise-multiplier", "3"],
            "--noise-multiplier: found where the one for a target is looked for; leave it out, or look for the rounds",
        ),
        (
            [*BARE[:4], "--delta", "1e-9", "--target-epsilon", "1e-6"],
            "--target-epsilon: found 1e-06: no noise multiplier below 100000 reaches epsilon 1e-06; raise it",
        ),
        (
            [*BARE[:2], *BARE[4:], "--noise-multiplier", "0.5", "--target-epsilon", "1", "--solve", "rounds"],
            "--target-epsilon: found 1: no round fits: one alone costs more than epsilon 1; raise it, or the noise",
        ),
    ],
)
def test_errors_are_one_line_that_names_the_option(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *words]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert complaint in err


def test_text_without_a_project_is_the_mechanism_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """ε is rounded up, so that no line promises more than the accountant."""
    text = said(capsys, *BARE, "--noise-multiplier", "20", "--units", "50")
    exact = epsilon(1.0, 20.0, 5)
    printed = float(text.split("ε ")[1].split()[0])
    assert exact <= printed < exact * 1.001
    assert "noise per coordinate of the mean update: 0.4 of the clipping norm" in text
    assert "charge" not in text
    assert "warning" not in text
    too_large = ("--units", "50", "--delta", "0.02")
    assert "warning: δ is not below 1/50" in said(capsys, *BARE[:4], "--noise-multiplier", "20", *too_large)
    answer = answered(capsys, *BARE, "--noise-multiplier", "0.01")
    assert answer["epsilon_pld"] == answer["epsilon_rdp"] > 1000
    assert answer["epsilon_replace_one"] is None, "infinite"


def test_text_says_what_was_spent_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds left, and the multiplier that fits, keep the budget with what was charged; a bit more breaks it."""
    write_params()
    data = write_partitions()
    assert "nothing was charged to this dataset yet" in said(capsys)
    ledger = project_ledger(load(Path("params.yaml")))
    earlier = accounting.training_event(1.0, 20.0, 40)
    ledger.reserve(request(data, earlier, dataset="small"), None)
    ledger.close()

    def together(z: float, rounds: int) -> float:
        return adaptive(earlier, accounting.training_event(1.0, z, rounds))

    text = said(capsys)
    assert "small: ε 1.2 spent at δ 1e-05, in 1 charge(s)" in text
    assert 1.199 < epsilon(1.0, 20.0, 40) <= 1.2
    assert "this run fits" in text
    left = int(text.rpartition("rounds left with its noise multiplier: ")[2])
    assert together(20.0, left) <= 2.0 < together(20.0, left + 1)
    text = said(capsys, "--rounds", "200")
    multiplier = float(text.partition("this run does not fit; still fitting: noise_multiplier ")[2].split()[0])
    assert together(multiplier, 200) <= 2.0 < together(0.98 * multiplier, 200)
    assert int(text.rpartition("rounds left with its noise multiplier: ")[2]) == left
    assert "rounds left with its noise multiplier: none" in said(capsys, "--noise-multiplier", "0.5")
    write_params(budget={"epsilon": None, "delta": 1e-5})
    assert said(capsys).endswith("budget: none (privacy.budget.epsilon is null)\n")


def test_plan_and_the_ledger_advise_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Word for word: one budget has one figure, and one line to paste."""
    write_params(budget={"epsilon": 1.0, "delta": 1e-5}, rounds=100)
    data = write_partitions()
    with closing(project_ledger(load(Path("params.yaml")))) as ledger:
        with pytest.raises(PipelineError) as refused:
            ledger.reserve(request(data, accounting.training_event(1.0, 20.0, 100)), Budget(1.0, 1e-5))
        first = ledger.reserve(request(data, accounting.training_event(1.0, 20.0, 1)), None)
        ledger.commit(first.id)
        with pytest.raises(PipelineError) as later:
            ledger.reserve(request(data, accounting.training_event(1.0, 20.0, 100)), Budget(1.0, 1e-5))
    advised = str(later.value).partition("still fitting: ")[2]
    assert "-S privacy.target_epsilon=null -S privacy.noise_multiplier=" in advised
    assert f"this run does not fit; still fitting: {advised}\n" in said(capsys)
    assert str(refused.value).partition("still fitting: ")[2] != advised, "the twin: another budget, another figure"


STATISTICS = {"normaliser": "private", "starts": True, "noise_multiplier": 30.0}


def together(z: float, rounds: int, *queries: float) -> float:
    return accounting.Training(1.0, z, rounds, queries).spent(1e-5).epsilon_pld


def test_queries_that_params_ask_for_are_part_of_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """Now, for a target and for rounds; they can be left out or given, and the text names them."""
    write_params(statistics=STATISTICS)
    answer = answered(capsys)
    assert answer["queries"] == [30.0, 30.0]
    assert answer["epsilon_pld"] == together(20.0, 5, 30.0, 30.0) > epsilon(1.0, 20.0, 5) * 1.02
    assert answered(capsys, "--queries", "none")["epsilon_pld"] == epsilon(1.0, 20.0, 5)
    assert answered(capsys, "--queries", "9,11")["epsilon_pld"] == together(20.0, 5, 9.0, 11.0)
    solved = answered(capsys, "--target-epsilon", "1")
    assert (
        together(solved["noise_multiplier"], 5, 30.0, 30.0)
        <= 1.0
        < together(solved["noise_multiplier"] * 0.99, 5, 30.0, 30.0)
    )
    longer = answered(capsys, "--target-epsilon", "3", "--solve", "rounds")
    assert together(20.0, longer["rounds"], 30.0, 30.0) <= 3.0 < together(20.0, longer["rounds"] + 1, 30.0, 30.0)
    assert "after 2 queries of all units (privacy.statistics), noise multiplier 30, 30" in said(capsys)
    assert answered(capsys, *BARE, "--noise-multiplier", "20", "--queries", "none")["queries"] == []


@pytest.mark.parametrize("variant", ["no_clip", "mopo"])
def test_json_of_a_variant_without_a_guarantee_says_so(variant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its ε is null; what other noise would cost is still answered."""
    write_params()
    assert answered(capsys)["private"] is True
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    raw["dynamics"]["variant"] = variant
    Path("params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert f"dynamics.variant {variant}: a run of it has no guarantee at all" in said(capsys)
    answer = answered(capsys)
    assert answer["private"] is False
    assert [answer[name] for name in ("epsilon_pld", "epsilon_rdp", "epsilon_replace_one")] == [None] * 3
    asked = answered(capsys, "--noise-multiplier", "20")
    assert (asked["private"], asked["epsilon_pld"]) == (True, epsilon(1.0, 20.0, 5))


def test_what_training_refuses_is_refused_in_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    """A query that is nothing but noise, and a target that no noise reaches."""
    statistics = {"normaliser": "private", "starts": False, "noise_multiplier": 1000.0}
    write_params(statistics=statistics)
    chosen = load(Path("params.yaml"))
    assert cli.main(["plan", "--json"]) == 0, "before there are partitions, nobody knows the number of units"
    capsys.readouterr()
    write_partitions()
    names = ["a", "b"]
    write_partition(Path("data/partitions/public"), table([episode(20, i) for i in range(2)], units=names, names=names))
    with pytest.raises(PipelineError) as refused:
        refused_by_training(chosen)
    assert "leaves nothing of the normaliser's answer" in str(refused.value)
    for words in ([], ["--json"]):
        assert cli.main(["plan", *words]) == 1
        assert capsys.readouterr().err == f"error: {refused.value}\n"
    write_params(statistics=statistics | {"noise_multiplier": 0.3})
    assert cli.main(["plan", "--json"]) == 0, "the twin: less noise is accepted"
    capsys.readouterr()
    write_params(target_epsilon=1e-6, noise_multiplier=None, delta=1e-9)
    with pytest.raises(PipelineError) as refused:
        refused_by_training(load(Path("params.yaml")))
    assert cli.main(["plan"]) == 1
    assert capsys.readouterr().err == f"error: {refused.value}\n"


def refused_by_training(chosen: Params) -> None:
    manifest = Manifest.load(Path("data/partitions/manifest.json"))
    make_plan(chosen, manifest)


def test_the_clone_and_the_private_evaluation_are_counted_with_the_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are paid by the same people; the twin: without them nothing is said."""
    monkeypatch.setattr(clone_work, "ROUNDS", 5)
    monkeypatch.setattr(clone_work, "SAMPLING_PROBABILITY", 1.0)
    monkeypatch.setattr(clone_work, "noise_for", lambda epsilon, delta: 20.0)
    write_params()
    assert "in all" not in said(capsys)
    raw = project_settings()
    raw["privacy"] |= PRIVACY
    raw["behaviour"]["target_epsilon"] = 0.5
    write_settings(raw)
    both = float(adaptive(*[accounting.training_event(1.0, 20.0, 5)] * 2, delta=1e-5))
    (line,) = (line for line in said(capsys).splitlines() if "in all" in line)
    assert "with a clone of the behaviour (0.5): about ε " in line
    assert float(line.split("about ε ")[1].split()[0]) == pytest.approx(both, rel=1e-3)
    raw["evaluation"]["private"]["estimators"] = {"behaviour": 0.1}
    write_settings(raw)
    assert "with a clone of the behaviour (0.5) and the private evaluation of its policy (behaviour 0.1)" in said(
        capsys
    )
