"""``primorl plan`` says what the accountant says, solves what it is asked, and names what is wrong in one line."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.image import imread

from primorl.commands import frontier
from primorl.commands import main as cli
from primorl.config.params import Params, load
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.ledger.ledger import Budget, Version
from primorl.project.errors import PipelineError
from primorl.project.files import write_json
from primorl.setup.accounts import project_ledger
from primorl.setup.planning import make_plan
from primorl.trajectories.storage.manifest import Manifest
from tests.pipeline.tiny_policy import write_partition
from tests.privacy.accounting.test_epsilon import GOLDEN
from tests.privacy.ledger.ledgers import adaptive, request, version
from tests.projects import project_settings, write_settings
from tests.trajectories.builders import INFO, episode, table

ROOT = Path(__file__).parents[2]
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
    return accounting.spent(accounting.training_event(q, z, rounds), delta, rounds=rounds).epsilon_pld


@pytest.mark.parametrize(("q", "z", "rounds", "rdp", "pld"), GOLDEN[2:])
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


def test_what_is_infinite_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answered(capsys, *BARE, "--noise-multiplier", "0.01")
    assert answer["epsilon_pld"] == answer["epsilon_rdp"] > 1000
    assert answer["epsilon_replace_one"] is None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["--json"],
            "--noise-multiplier, --target-epsilon: neither is given, and there is no params.yaml here; give one",
        ),
        (["--noise-multiplier", "1"], "--sampling-probability: not given, and there is no params.yaml here to take"),
        ([*BARE[:2], *BARE[4:], "--noise-multiplier", "1"], "--rounds: not given, and there is no params.yaml here"),
        ([*BARE, "--solve", "noise-multiplier"], "--target-epsilon: not given, and there is no params.yaml here"),
        ([*BARE, "--noise-multiplier", "0"], "--noise-multiplier: found '0'; allowed: a number from 1e-06 to 1e+06"),
        ([*BARE, "--noise-multiplier", "1e-200"], "--noise-multiplier: found '1e-200'; allowed: a number from"),
        ([*BARE, "--noise-multiplier", "much"], "--noise-multiplier: found 'much'; allowed: a number from"),
        ([*BARE, "--target-epsilon", "nan"], "--target-epsilon: found 'nan'; allowed: a number above 0"),
        ([*BARE, "--target-epsilon", "-1"], "--target-epsilon: found '-1'; allowed: a number above 0"),
        (["--sampling-probability", "1.01"], "--sampling-probability: found '1.01'; allowed: a number above 0, at"),
        (["--rounds", "0"], "--rounds: found '0'; allowed: a whole number from 1 to 1000000"),
        (["--rounds", "1.5"], "--rounds: found '1.5'; allowed: a whole number from 1 to 1000000"),
        (["--delta", "1"], "--delta: found '1'; allowed: a number above 0 and below 1"),
        (["--units", "0"], "--units: found '0'; allowed: a whole number from 1"),
        (
            [*BARE, "--target-epsilon", "1", "--solve", "rounds"],
            "--rounds: found with --solve rounds, which looks for them; leave one of the two out",
        ),
        (
            [*BARE, "--target-epsilon", "1", "--noise-multiplier", "3"],
            "--noise-multiplier: found where the one for a target is looked for; leave it out, or look for the rounds",
        ),
        ([*BARE, "--noise-multiplier", "1", "--figure", "x.png"], "--figure: found without --frontier"),
        (
            [*BARE[:4], "--delta", "1e-9", "--target-epsilon", "1e-6"],
            "--target-epsilon: found 1e-06: no noise multiplier below 100000 reaches epsilon 1e-06; raise it",
        ),
        (
            [*BARE[:2], *BARE[4:], "--noise-multiplier", "0.5", "--target-epsilon", "1", "--solve", "rounds"],
            "--target-epsilon: found 1: no round fits: one alone costs more than epsilon 1; raise it, or the noise",
        ),
        (["--frontier", *BARE, "--target-epsilon", "1"], "--units: not given, and there is no data/partitions/"),
        (["--frontier", *BARE, "--noise-multiplier", "1"], "--frontier: found with --solve or --noise-multiplier"),
        (["--frontier", *BARE, "--units", "9"], "--target-epsilon: not given, and there is no params.yaml here"),
        (
            ["--frontier", *BARE[:4], "--delta", "1e-9", "--units", "9", "--target-epsilon", "1e-7"],
            "--target-epsilon: found 1e-07, which no point of the frontier reaches; raise it",
        ),
    ],
)
def test_errors_are_one_line_that_names_the_option(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("frontier:") and line]  # the progress bar
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {complaint}")


def test_a_target_that_params_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write_params()
    assert cli.main(["plan", "--solve", "rounds"]) == 1
    found = "error: --target-epsilon: not given, and privacy.target_epsilon in params.yaml is null; give it\n"
    assert capsys.readouterr().err == found


def test_text_without_a_project_is_the_mechanism_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """ε is rounded up, so that no line promises more than the accountant."""
    text = said(capsys, *BARE, "--noise-multiplier", "20", "--units", "50")
    exact = epsilon(1.0, 20.0, 5)
    printed = float(text.split("ε ")[1].split()[0])
    assert exact <= printed < exact * 1.001
    assert "noise per coordinate of the mean update: 0.4 of the clipping norm" in text
    assert "charge" not in text
    assert "warning" not in text
    assert "warning: δ is not below 1/50" in said(capsys, *BARE[:4], "--noise-multiplier", "20", *TOO_LARGE)


TOO_LARGE = ("--units", "50", "--delta", "0.02")


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


def test_a_variant_without_a_guarantee_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    write_params()
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    raw["dynamics"]["variant"] = "no_clip"
    Path("params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert "dynamics.variant no_clip: a run of it has no guarantee at all" in said(capsys)


def test_the_frontier_holds_the_target_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, with noise and compute that follow from them; more noise for more rounds, less for larger cohorts."""
    write_params(target_epsilon=2.0, noise_multiplier=None)
    write_partitions()
    rows = answered(capsys, "--frontier", "--rounds", "2", "--sampling-probability", "0.5")
    pairs = [(rounds, q) for rounds in (1, 2, 4, 8) for q in (0.5, 1.0)]
    assert [(row["rounds"], row["sampling_probability"]) for row in rows] == pairs
    for row in rows:
        q, z, rounds = row["sampling_probability"], row["noise_multiplier"], row["rounds"]
        assert 1.995 < epsilon(q, z, rounds) <= 2.0
        assert row["noise_per_coordinate"] == pytest.approx(z / (q * 40))
        assert row["unit_updates"] == pytest.approx(q * 40 * rounds)
        assert row["transitions"] == pytest.approx(q * 40 * rounds * 200)  # the horizon of the manifest
        assert (row["units"], row["target_epsilon"], row["delta"]) == (40, 2.0, 1e-5)
    assert [(row["rounds"], row["sampling_probability"]) for row in rows if row["current"]] == [(2, 0.5)]
    noise = np.array([row["noise_per_coordinate"] for row in rows]).reshape(4, 2)
    assert (np.diff(noise, axis=0) > 0).all()
    assert (np.diff(noise, axis=1) < 0).all()


def test_the_frontier_is_a_table_and_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a point and one marked; the figure shows as many lines as rounds, and the marked point in red."""
    words = ("--frontier", *BARE, "--target-epsilon", "2", "--units", "9", "--figure", "frontier.png")
    text = said(capsys, *words)
    assert text.startswith("ε 2 at δ 1e-05, one of 9 units zeroed out\n")
    points = [line for line in text.splitlines()[3:] if line]
    assert len(points) == 5
    marked = [line for line in points if "in use" in line]
    assert [line.split()[0] for line in marked] == ["5"]
    picture = imread("frontier.png")
    red = (picture[..., 0] > 0.6) & (picture[..., 1:3].max(-1) < 0.4)
    assert red.sum() > 50
    assert said(capsys, *words[:-2]) == text


def test_the_default_grid_is_around_what_is_in_use() -> None:
    probabilities, rounds = frontier.around(2940, 0.1, 150)
    assert probabilities == [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    assert rounds == [38, 75, 150, 300, 600]
    assert frontier.around(3, None, 1) == ([1.0], [1, 2, 4])
    assert 0.03 in frontier.around(2940, 0.03, 150)[0]
    assert min(frontier.around(10**9, None, 1)[0]) == 0.001


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
    rows = answered(capsys, "--frontier", "--units", "40", "--target-epsilon", "2", "--rounds", "4")
    assert all(
        together(row["noise_multiplier"], row["rounds"], 30.0, 30.0) <= 2.0
        for row in rows
        if row["sampling_probability"] == 1.0
    )
    assert answered(capsys, *BARE, "--noise-multiplier", "20", "--queries", "none")["queries"] == []


@pytest.mark.parametrize("words", ["9,", "x", "0", "-1,2", "inf", "1,1,1,1,1,1,1,1,1"])
def test_wrong_queries_are_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_params()
    assert cli.main(["plan", f"--queries={words}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: --queries: found {words!r}; allowed: none, or up to 8 numbers")
    assert error.count("\n") == 1


@pytest.mark.parametrize("variant", ["no_privacy", "no_clip", "mopo"])
def test_json_of_a_variant_without_a_guarantee_says_so(variant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its ε is null; what other noise would cost is still answered."""
    write_params()
    assert answered(capsys)["private"] is True
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    raw["dynamics"]["variant"] = variant
    Path("params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
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
