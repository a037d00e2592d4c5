"""``primorl init``: a project without a clone, and an entry that holds nothing of the log but names and types."""

import gzip
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ruamel.yaml import YAML

import primorl
from pipeline import collect, ingest
from primorl.commands import main as cli
from primorl.commands.init import _public_fraction
from primorl.config import params
from primorl.config.checking import check_project
from primorl.project.errors import PipelineError
from primorl.project.template import check_version
from primorl.trajectories.storage.parquet import PartReader
from tests.pipeline.fakes import FakeRun

ROOT = Path(__file__).parents[2]
HEADER = "when,who,visit,glucose,ward,dose,reward\n"
MEANING = [
    *("--unit", "who", "--trajectory", "visit", "--step", "when"),
    *("--observation", "glucose", "--observation", "ward", "--action", "dose", "--reward", "reward"),
]
WARDS = ["--categories", "ward=north,south"]
FACTS = ["--bounds", "glucose=2:25", "--bounds", "dose=0:1", "--bounds", "reward=-1:0", "--horizon", "5"]
CANARIES = ("77.125", "cell-of-somebody", "0.8125", "-0.4375", "1999-12-31")


def rows(glucose: float = 7.5, people: int = 12, ward: str = "north") -> str:
    return "".join(
        f"2024-01-0{1 + step}T08:00:00,p{person},{visit},{glucose + person / 100 + visit / 7 + step / 10},{ward},"
        f"{0.1 * step},{-0.2 - person / 1000}\n"
        for person in range(people)
        for visit in range(1 + person % 2)
        for step in range(5)
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a log beside it, as the working directory."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(HEADER + rows(), encoding="utf-8")
    return tmp_path


def init(*words: str) -> int:
    return cli.main(["init", "project", *words])


def entry(name: str = "log") -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(Path(f"project/datasets/{name}.yaml").read_text(encoding="utf-8"))
    return content


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a refused call says; nothing is made."""
    assert init(*words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not Path("project").exists()
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []
    return err


def test_a_new_project_is_valid_and_git_and_dvc_know_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init() == 0
    assert capsys.readouterr().out == f"made {place / 'project'}\n"
    assert check_project(Path("project")).dataset == "pendulum-replay"
    for command in (["git", "status"], [sys.executable, "-m", "dvc", "stage", "list"]):
        subprocess.run(command, cwd="project", check=True, capture_output=True)
    assert sorted(path.name for path in Path("project/datasets").iterdir()) == ["defaults.yaml", "pendulum-replay.yaml"]
    for folder in ("withdrawals", "consent", "arrivals"):
        assert (
            Path(f"project/data/{folder}/.gitignore").read_bytes() == (ROOT / f"data/{folder}/.gitignore").read_bytes()
        )


def test_without_git_dvc_is_told_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert init() == 0
    assert not Path("project/.git").exists()
    subprocess.run([sys.executable, "-m", "dvc", "stage", "list"], cwd="project", check=True, capture_output=True)


def test_its_stages_are_the_repositorys_and_follow_the_installed_version_instead_of_the_code(place: Path) -> None:
    assert init() == 0
    ours = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    theirs = yaml.safe_load(Path("project/dvc.yaml").read_text(encoding="utf-8"))
    for stage in ours["stages"].values():
        kept = [dep for dep in stage["deps"] if not dep.startswith("primorl/")]
        stage["deps"] = [kept[0], "primorl.version", *kept[1:]]
    assert theirs == ours
    assert Path("project/primorl.version").read_text(encoding="utf-8") == f"{primorl.__version__}\n"
    for file in (ROOT / "pipeline").glob("*.py"):
        assert Path("project/pipeline", file.name).read_bytes() == file.read_bytes()


def test_an_upgrade_brings_the_stages_and_leaves_what_is_the_users(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init() == 0
    project = Path("project")
    settings = (project / "params.yaml").read_text(encoding="utf-8").replace("seed: 0", "seed: 7")
    for name, text in (("params.yaml", settings), ("primorl.version", "0.0.1\n"), ("pipeline/ingest.py", "")):
        (project / name).write_text(text, encoding="utf-8")
    with pytest.raises(PipelineError, match=r"primorl.version: found '0.0.1'.*run `primorl init .`"):
        check_version(project, primorl.__version__)
    stage = [sys.executable, "-m", "pipeline.partition"]
    done = subprocess.run(
        stage, cwd=project, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 1
    assert "primorl.version: found '0.0.1'" in done.stderr
    capsys.readouterr()
    assert init() == 0
    assert capsys.readouterr().out == "brought to the installed version: pipeline/ingest.py, primorl.version\n"
    assert (project / "params.yaml").read_text(encoding="utf-8") == settings
    check_version(project, primorl.__version__)


def test_a_drafted_entry_passes_the_checker_and_a_real_ingest(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("--csv", "log.csv", *MEANING, *WARDS, *FACTS) == 0
    said = capsys.readouterr().out
    assert "fill in" not in said
    drawn = yaml.safe_load(Path("project/datasets/defaults.yaml").read_text())["partition"]["public_fraction"]
    assert f"as it stands, a hash draws {100 * drawn:g}% of the units" in said
    monkeypatch.chdir(place / "project")
    assert cli.main(["check"]) == 0
    assert "log.csv: has the columns of the entry" in capsys.readouterr().out
    checked = params.load()
    assert checked.dataset == "log"
    for stage in (collect, ingest):
        stage.body(checked, FakeRun())
    made = PartReader(Path("data/trajectories"), made_by="ingest").info
    assert made.unit == "who"
    assert made.spaces.observation_names == ("glucose", "ward=north", "ward=south")
    assert not Path("datasets/pendulum-replay.yaml").exists()


def test_what_it_says_of_the_public_share_is_what_the_settings_say(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    for asked, suggested, expected in (("auto", 0.05, 0.05), (0.3, 0.05, 0.3)):
        for file, fraction in (("params.yaml", asked), ("datasets/defaults.yaml", suggested)):
            (tmp_path / file).write_text(yaml.safe_dump({"partition": {"public_fraction": fraction}}))
        assert _public_fraction(tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (HEADER + rows(), (",", ".")),
        ((HEADER + rows()).replace(",", ";").replace(".", ","), (";", ",")),
        ((HEADER + rows()).replace(",", "\t"), ("\t", ".")),
    ],
)
def test_how_a_csv_is_written_is_found(text: str, form: tuple[str, str], place: Path) -> None:
    Path("log.csv.gz").write_bytes(gzip.compress(text.encode("utf-8-sig")))
    assert init("--csv", "log.csv.gz", *MEANING, *WARDS, *FACTS) == 0
    assert tuple(entry()["options"]["csv"].values()) == form
    assert entry()["options"]["files"] == str(place / "log.csv.gz")


def test_discrete_actions_and_one_trajectory_for_each_unit(place: Path) -> None:
    words = [
        "--unit",
        "visit",
        "--trajectory",
        "visit",
        "--step",
        "when",
        "--observation",
        "glucose",
        "--action",
        "ward",
    ]
    assert (
        init("--csv", "log.csv", *words, "--reward", "reward", *WARDS, "--bounds", "glucose=2:25", "--name", "v") == 0
    )
    options = entry("v")["options"]
    assert options["columns"]["action"] == {"column": "ward", "categories": ["north", "south"]}
    assert options["trajectory_ids"] == "global"


def test_truth_values_are_no_numbers_to_ingest_nor_to_init(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CSV's `true` is text to `ingest`: init asks what may be in the column. Twin: declared, both take it."""
    lines = (HEADER + rows()).splitlines()
    fed = ["fed", *(("true", "false")[place % 2] for place in range(len(lines) - 1))]
    Path("log.csv").write_text("".join(f"{line},{cell}\n" for line, cell in zip(lines, fed, strict=True)))
    words = ["--csv", "log.csv", *MEANING, *WARDS, *FACTS]
    assert "missing --categories fed=A,B; the file has" in refusal(capsys, *words, "--observation", "fed")
    said = refusal(capsys, *words, "--reward", "fed")
    assert "--reward: found 'fed', a column of truth values; write it as 0 and 1\n" in said
    assert init(*words, "--observation", "fed", "--categories", "fed=false,true") == 0
    monkeypatch.chdir(place / "project")
    checked = params.load()
    for stage in (collect, ingest):
        stage.body(checked, FakeRun())
    names = PartReader(Path("data/trajectories"), made_by="ingest").info.spaces.observation_names
    assert names[-2:] == ("fed=false", "fed=true")


def test_the_time_since_the_row_before_is_declared_and_ingested(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("--csv", "log.csv", *MEANING, *WARDS, *FACTS, "--elapsed", "days_since=days:2") == 0
    drafted = entry()
    since = {"elapsed": "days_since", "unit": "days", "most": 2.0}
    assert drafted["options"]["columns"]["observation"][-1] == since
    assert drafted["bounds"]["observation"] == {"low": [2.0, 0.0, 0.0, 0.0], "high": [25.0, 1.0, 1.0, 2.0]}
    assert "'ward=south', 'days_since'\n" in Path("project/datasets/log.yaml").read_text(encoding="utf-8")
    monkeypatch.chdir(place / "project")
    assert cli.main(["check"]) == 0
    checked = params.load()
    for stage in (collect, ingest):
        stage.body(checked, FakeRun())
    (first, second, *_) = next(PartReader(Path("data/trajectories"), made_by="ingest").tables()).to_pylist()
    assert (first["observation"][-1], second["observation"][-1]) == (0.0, 1.0)


def test_categories_that_look_like_numbers_stay_text(place: Path) -> None:
    """DVC and the stages read YAML 1.2, where 1e5 is a number and `no` a text; PyYAML writes for YAML 1.1."""
    assert init("--csv", "log.csv", *MEANING, *FACTS, "--categories", "ward=1e5,no,1,0o17,null") == 0
    assert check_project(Path("project")).chosen.bounds is not None
    (_, ward) = check_project(Path("project")).chosen.options.columns.observation  # type: ignore[union-attr]
    assert ward.categories == ("1e5", "no", "1", "0o17", "null")  # type: ignore[union-attr]


def test_bounds_that_nobody_gave_are_left_open_and_nothing_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("--csv", "log.csv", *MEANING, *WARDS) == 0
    assert "bounds of glucose, bounds of dose, bounds of reward, horizon; nothing trains" in capsys.readouterr().out
    drafted = entry()
    assert drafted["bounds"]["observation"] == {"low": [None, 0.0, 0.0], "high": [None, 1.0, 1.0]}
    assert drafted["bounds"]["reward"] == [None, None]
    action = drafted["options"]["columns"]["action"]
    assert (action["low"], action["high"], drafted["horizon"]) == ([None], [None], None)
    monkeypatch.chdir(place / "project")
    assert cli.main(["check"]) == 1
    refused = capsys.readouterr().err
    for key in ("bounds.observation.low.0", "bounds.reward.1", "options.columns.action.high.0"):
        assert f"{key}: found nothing; allowed is" in refused


def test_the_cards_texts_need_not_be_filled_in_and_the_hint_fits(place: Path) -> None:
    """What the draft says of them is a comment; without its marks it is a block that is taken."""
    assert init("--csv", "log.csv", *MEANING, *WARDS, *FACTS) == 0
    assert check_project(Path("project")).chosen.card.stated == {}
    drafted = Path("project/datasets/log.yaml")
    text = drafted.read_text(encoding="utf-8")
    drafted.write_text(re.sub(r"^# (card:|  \w+: )", r"\1", text, flags=re.MULTILINE), encoding="utf-8")
    assert set(check_project(Path("project")).chosen.card.stated) == {"owner", "purpose", "contact", "licence"}


def test_the_draft_is_the_same_whatever_the_rows_say(place: Path) -> None:
    """The twin of the bounds' tests: two logs of the same columns differ in every value, length and person."""
    assert init("--csv", "log.csv", *MEANING, *WARDS) == 0
    one = Path("project/datasets/log.yaml").read_bytes()
    shutil.rmtree("project")
    Path("log.csv").write_text(HEADER + rows(-880.25, people=3, ward="elsewhere"), encoding="utf-8")
    assert init("--csv", "log.csv", *MEANING, *WARDS) == 0
    assert Path("project/datasets/log.yaml").read_bytes() == one


def with_canaries() -> str:
    number, word, dose, reward, day = CANARIES
    return f"{day}T00:00:00,{word},{word},{number},{word},{dose},{reward}\n"


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        (
            HEADER + with_canaries(),
            [],
            "missing --unit, --trajectory, --step, --observation, --action, --reward; the file",
        ),
        (HEADER + with_canaries(), MEANING, "missing --categories ward=A,B; the file has the columns 'when' (times)"),
        (HEADER + with_canaries(), [*MEANING, "--unit", "whom", *WARDS], "--unit: found 'whom', which is no column"),
        (HEADER + with_canaries(), [*MEANING, "--reward", "who", *WARDS], "--reward: found 'who', a column of text"),
        (
            HEADER + with_canaries(),
            [*MEANING, "--step", "who", *WARDS],
            "column 'who': found string, allowed: numbers, t",
        ),
        (HEADER + with_canaries() + "1,2\n", [*MEANING, "--step", "who", *WARDS], "error: "),
        (HEADER + '"' + with_canaries(), [*MEANING, *WARDS], "error: "),
        ("p1,cell-of-somebody,77.125\np2,south,8.5\n", MEANING, "the first line names no columns"),
        ("p1,cell-of-somebody,1999-12-31\np2,south,2000-01-01\n", MEANING, "the first line names no columns"),
        (f"who,visit,who\n{with_canaries()}", MEANING, "the first line names no columns"),
        (f"who,visit,\n{with_canaries()}", MEANING, "the first line names no columns"),
        (HEADER.replace("who", '"who') + with_canaries(), MEANING, "the first line names no columns"),
        (with_canaries().replace(",", "^"), MEANING, "the first line names no columns"),
        ("", MEANING, "the first line names no columns"),
    ],
    ids=[
        *(
            "no-flags",
            "no-categories",
            "unknown-column",
            "wrong-type",
            "wrong-order",
            "ragged-row",
            "open-quote-in-a-row",
        ),
        *(
            "no-header",
            "no-header-times",
            "name-twice",
            "empty-name",
            "open-quote-in-the-header",
            "strange-delimiter",
            "empty-file",
        ),
    ],
)
def test_no_cell_is_shown(
    text: str, words: list[str], says: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors name columns, whose header may have been forgotten: then the first line is somebody's."""
    Path("log.csv").write_text(text, encoding="utf-8")
    said = refusal(capsys, "--csv", "log.csv", *words)
    assert says in said
    assert not any(canary in said for canary in CANARIES)


def test_bytes_that_are_no_text_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("log.csv").write_bytes(HEADER.encode() + b"\xff\xfe77.125\n")
    assert "not CSV in UTF-8" in refusal(capsys, "--csv", "log.csv", *MEANING)
    assert "cannot be read" in refusal(capsys, "--csv", "none.csv", *MEANING)
    assert "ends in .csv" in refusal(capsys, "--csv", "log.txt", *MEANING)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bounds", "glucose"], "--bounds: found 'glucose'; allowed is COLUMN=LOW:HIGH"),
        (["--bounds", "glucose=25:2"], "--bounds glucose: found '25:2'; allowed is LOW:HIGH"),
        (["--bounds", "glucose=2:inf"], "--bounds glucose: found '2:inf'"),
        (["--bounds", "who=0:1"], "--bounds: found 'who', which takes none; allowed are 'glucose', 'dose', 'reward'"),
        (["--categories", "ward=north"], "--categories ward: found 'north'; allowed are two or more"),
        (["--categories", "visit=1,2"], "--categories: found 'visit', which takes none"),
        (["--action", "ward"], "--action: found 2 columns, and categories of 'ward'"),
        (["--name", "defaults"], "--name: found 'defaults'; allowed are letters, digits, dots, - and _, and not "),
        (["--name", "Pendulum-Replay"], "--name: found 'Pendulum-Replay'; allowed are letters"),
        (["--elapsed", "since"], "--elapsed: found 'since'; allowed is NAME=UNIT:MOST"),
        (["--elapsed", "since=weeks:1"], "--elapsed since: found 'weeks:1'; allowed is UNIT:MOST: seconds, minutes,"),
        (["--elapsed", "since=hours:0"], "--elapsed since: found 'hours:0'; allowed is UNIT:MOST"),
        (["--elapsed", "glucose=hours:1"], "observation may have one entry with elapsed, under a name that no column"),
        (["--elapsed", "since=hours:1", "--bounds", "since=0:1"], "--bounds: found 'since', which takes none"),
        (["--bounds", "glucose=0:1e30"], "bounds.observation.high.0: found 1e+30"),
    ],
)
def test_a_wrong_answer_is_one_line(
    words: list[str], says: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refusal(capsys, "--csv", "log.csv", *MEANING, *WARDS, *words)


@pytest.mark.parametrize("name", ["2024", "1e5", "null", "true", "2024-01-02", "0o17", "1_000", "log"])
def test_a_name_that_yaml_would_read_as_something_else_is_quoted(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For this project and for DVC. Twin: an ordinary name is written as it is."""
    shutil.move("log.csv", f"{name}.csv")
    assert init("--csv", f"{name}.csv", *MEANING, *WARDS, *FACTS) == 0
    settings = Path("project/params.yaml").read_text(encoding="utf-8")
    assert (f"\ndataset: {name} " in settings) is (name == "log")
    assert check_project(Path("project")).dataset == name
    assert YAML(typ="safe").load(settings)["dataset"] == name
    assert entry(name)["population"] == name
    stages = [sys.executable, "-m", "dvc", "stage", "list"]
    subprocess.run(stages, cwd="project", check=True, capture_output=True)
    assert init("--csv", f"{name}.csv", *MEANING, *WARDS, *FACTS, "--name", "2025") == 0
    assert "set `dataset: '2025'` in params.yaml" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["defaults", "pendulum-replay", "Defaults"])
def test_a_file_whose_name_is_reserved_needs_another_one(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a project that is there. Twin: with `--name` the file is taken."""
    shutil.move("log.csv", f"{name}.csv")
    words = ["--csv", f"{name}.csv", *MEANING, *WARDS, *FACTS]
    says = f"--name: not given, and the name of the file stands for it: found {name!r}; allowed are letters, digits"
    assert says in refusal(capsys, *words)
    assert init() == 0
    before = {path: path.read_bytes() for path in Path("project/datasets").iterdir()}
    assert init(*words) == 1
    assert {path: path.read_bytes() for path in Path("project/datasets").iterdir()} == before
    assert init(*words, "--name", "visits") == 0


class Killed(BaseException):
    """As a kill: nothing handles it."""


@pytest.mark.parametrize("moves", [0, 1, 5, 20])
def test_after_a_kill_the_same_command_goes_on_in_a_folder_that_was_empty(
    moves: int, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twin: without the note that it was begun, a folder with files is refused."""
    Path("project").mkdir()
    left, replace = [moves], Path.replace

    def killed(path: Path, target: Path) -> Path:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return replace(path, target)

    with monkeypatch.context() as during:
        during.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            init("--csv", "log.csv", *MEANING, *WARDS, *FACTS)
    assert not Path("project/primorl.version").exists()
    assert init("--csv", "log.csv", *MEANING, *WARDS, *FACTS) == 0
    assert check_project(Path("project")).dataset == "log"
    assert not Path("project/primorl.unfinished").exists()
    for command in (["git", "status"], [sys.executable, "-m", "dvc", "stage", "list"]):
        subprocess.run(command, cwd="project", check=True, capture_output=True)
    Path("project/primorl.version").unlink()
    assert init() == 1
    assert "found files there; allowed is a new or empty folder" in capsys.readouterr().err


def test_a_folder_that_was_not_there_appears_whole_or_not_at_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: the same call that is not killed. Its permissions are those of any new folder."""

    def killed(path: Path, target: Path) -> Path:
        raise Killed

    with monkeypatch.context() as during:
        during.setattr(Path, "rename", killed)
        with pytest.raises(Killed):
            init()
    assert not Path("project").exists()
    assert init() == 0
    Path("other").mkdir()
    assert Path("project").stat().st_mode == Path("other").stat().st_mode
    assert Path("project/primorl.version").exists()


def test_where_no_project_is_made(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--unit, --bounds: found without --csv" in refusal(capsys, "--unit", "who", "--bounds", "a=0:1")
    assert cli.main(["init", "."]) == 1
    assert "found files there; allowed is a new or empty folder" in capsys.readouterr().err
    assert init() == 0
    assert cli.main(["init", "project/inner"]) == 1
    assert "lies in the project" in capsys.readouterr().err
    subprocess.run(["git", "init", "--quiet", "other"], check=True)
    assert cli.main(["init", "other/inner"]) == 1
    assert "lies in the git repository" in capsys.readouterr().err
    shutil.move("log.csv", "project/log.csv")
    assert init("--csv", "project/log.csv", *MEANING, *WARDS) == 1
    assert "where git would see its rows" in capsys.readouterr().err


def test_an_entry_is_added_to_a_project_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init() == 0
    assert init("--csv", "log.csv", *MEANING, *WARDS, *FACTS) == 0
    assert "set `dataset: log` in params.yaml" in capsys.readouterr().out
    assert check_project(Path("project")).dataset == "pendulum-replay"
    assert init("--csv", "log.csv", *MEANING, *WARDS, *FACTS) == 1
    assert "is there already; give another --name" in capsys.readouterr().err


def test_on_a_terminal_it_asks_for_what_is_missing(place: Path) -> None:
    """One question at a time, wrong answers again; names and types are shown, and no cell."""
    Path("log.csv").write_text(HEADER + with_canaries() * 5, encoding="utf-8")
    answers = ["no name", "mine", "nobody", "who", "visit", "when", "glucose, ward", "dose", "north", "north,south"]
    answers += ["2:25", "", "5:4", "-1:0", "5"]
    status, said = dialogue(["init", "project", "--csv", "log.csv", "--reward", "reward"], answers)
    assert status == 0, said
    assert said.count("try again") == 4
    assert "'glucose'  numbers" in said
    assert not any(canary in said for canary in CANARIES)
    drafted = entry("mine")
    assert drafted["bounds"] == {
        "observation": {"low": [2.0, 0.0, 0.0], "high": [25.0, 1.0, 1.0]},
        "reward": [-1.0, 0.0],
    }
    assert drafted["options"]["columns"]["action"] == {"columns": ["dose"], "low": [None], "high": [None]}
    assert drafted["horizon"] == 5


def dialogue(words: list[str], answers: list[str]) -> tuple[int, str]:
    """Run the command on a terminal and answer each question, which ends with a colon."""
    process, terminal = pty.fork()
    if process == 0:
        command = [sys.executable, "-m", "primorl.commands.main", *words]
        os.execvpe(sys.executable, command, os.environ | {"PYTHONPATH": str(ROOT)})
    said, waiting = b"", list(answers)
    while True:
        try:
            heard = os.read(terminal, 4096)
        except OSError:  # Linux says so when the other side has ended
            heard = b""
        if not heard:
            break
        said += heard
        if waiting and said.rstrip().endswith(b":"):
            os.write(terminal, waiting.pop(0).encode() + b"\n")
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), said.decode()
