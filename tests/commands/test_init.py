"""``primorl init``: a project without a clone, and an entry that holds nothing of the log but names and types."""

import gzip
import os
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
from primorl.config import params
from primorl.config.params import load
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
    assert init(*words) in (1, 2)
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
    assert load(Path("project/params.yaml")).dataset == "pendulum-replay"
    for command in (["git", "status"], [sys.executable, "-m", "dvc", "stage", "list"]):
        subprocess.run(command, cwd="project", check=True, capture_output=True)
    assert sorted(path.name for path in Path("project/datasets").iterdir()) == ["defaults.yaml", "pendulum-replay.yaml"]
    for folder in ("withdrawals", "consent", "arrivals"):
        assert (
            Path(f"project/data/{folder}/.gitignore").read_bytes() == (ROOT / f"data/{folder}/.gitignore").read_bytes()
        )


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


class Killed(BaseException):
    """As a kill: nothing handles it."""


@pytest.mark.parametrize("moves", [0, 5])
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
    assert load(Path("project/params.yaml")).dataset == "log"
    assert not Path("project/primorl.unfinished").exists()
    for command in (["git", "status"], [sys.executable, "-m", "dvc", "stage", "list"]):
        subprocess.run(command, cwd="project", check=True, capture_output=True)
    Path("project/primorl.version").unlink()
    assert init() == 1
    assert "found files there; allowed is a new or empty folder" in capsys.readouterr().err


def test_a_drafted_entry_passes_the_checker_and_a_real_ingest(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With texts, truth values and the time since the row before; the hint for the card is a block that is taken."""
    lines = (HEADER + rows()).splitlines()
    fed = ["fed", *(("true", "false")[place % 2] for place in range(len(lines) - 1))]
    Path("log.csv").write_text("".join(f"{line},{cell}\n" for line, cell in zip(lines, fed, strict=True)))
    more = ["--observation", "fed", "--categories", "fed=false,true", "--elapsed", "days_since=days:2"]
    assert init("--csv", "log.csv", *MEANING, *WARDS, *FACTS, *more) == 0
    said = capsys.readouterr().out
    assert "fill in" not in said
    drawn = yaml.safe_load(Path("project/datasets/defaults.yaml").read_text())["partition"]["public_fraction"]
    assert f"as it stands, a hash draws {100 * drawn:g}% of the units" in said
    assert not Path("project/datasets/pendulum-replay.yaml").exists()
    monkeypatch.chdir(place / "project")
    drafted = Path("datasets/log.yaml")
    drafted.write_text(re.sub(r"^# (card:|  \w+: )", r"\1", drafted.read_text(), flags=re.MULTILINE))
    assert cli.main(["check"]) == 0
    assert "log.csv: has the columns of the entry" in capsys.readouterr().out
    checked = params.load()
    assert set(checked.chosen.card.stated) == {"owner", "purpose", "contact", "licence"}
    for stage in (collect, ingest):
        stage.body(checked, FakeRun())
    made = PartReader(Path("data/trajectories"), made_by="ingest")
    assert (checked.dataset, made.info.unit) == ("log", "who")
    names = ("glucose", "ward=north", "ward=south", "fed=false", "fed=true", "days_since")
    assert made.info.spaces.observation_names == names
    (first, second, *_) = next(made.tables()).to_pylist()
    assert (first["observation"][-1], second["observation"][-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (HEADER + rows(), (",", ".")),
        ((HEADER + rows()).replace(",", ";").replace(".", ","), (";", ",")),
        ((HEADER + rows()).replace(",", "\t"), ("\t", ".")),
    ],
)
def test_how_a_csv_is_written_is_found_and_discrete_actions_are(text: str, form: tuple[str, str], place: Path) -> None:
    Path("log.csv.gz").write_bytes(gzip.compress(text.encode("utf-8-sig")))
    words = [word if word not in ("who", "dose") else {"who": "visit", "dose": "ward"}[word] for word in MEANING]
    words = [*words[:8], *words[10:]]  # the ward is the action, not observed
    assert init("--csv", "log.csv.gz", *words, *WARDS, "--bounds", "glucose=2:25") == 0
    options = entry()["options"]
    assert tuple(options["csv"].values()) == form
    assert options["files"] == str(place / "log.csv.gz")
    assert options["columns"]["action"] == {"column": "ward", "categories": ["north", "south"]}
    assert options["trajectory_ids"] == "global"


@pytest.mark.parametrize("name", ["1e5", "null", "2024-01-02", "log"])
def test_names_and_categories_that_yaml_would_read_as_something_else_stay_text(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For this project and for DVC, which reads YAML 1.2. Twin: an ordinary name is written as it is."""
    shutil.move("log.csv", f"{name}.csv")
    words = ["--csv", f"{name}.csv", *MEANING, *FACTS, "--categories", "ward=1e5,no,1,0o17,null"]
    assert init(*words) == 0
    settings = Path("project/params.yaml").read_text(encoding="utf-8")
    assert (f"\ndataset: {name} " in settings) is (name == "log")
    checked = load(Path("project/params.yaml"))
    assert (checked.dataset, YAML(typ="safe").load(settings)["dataset"], entry(name)["population"]) == (name,) * 3
    (_, ward) = checked.chosen.options.columns.observation  # type: ignore[union-attr]
    assert ward.categories == ("1e5", "no", "1", "0o17", "null")  # type: ignore[union-attr]
    assert init(*words, "--name", "2025") == 0
    assert "set `dataset: '2025'` in params.yaml" in capsys.readouterr().out
    assert init(*words) == 1
    assert "is there already; give another --name" in capsys.readouterr().err


def test_what_nobody_gave_is_to_be_filled_in_whatever_the_rows_say(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The draft of a log with other values, lengths and people is the same. Nothing runs before it is filled in."""
    assert init("--csv", "log.csv", *MEANING) == 0
    named = "bounds of glucose, categories of ward, bounds of dose, bounds of reward, horizon; nothing trains"
    assert named in capsys.readouterr().out
    draft = Path("project/datasets/log.yaml").read_bytes()
    shutil.rmtree("project")
    Path("log.csv").write_text(HEADER + rows(-880.25, people=3, ward="elsewhere"), encoding="utf-8")
    assert init("--csv", "log.csv", *MEANING) == 0
    assert Path("project/datasets/log.yaml").read_bytes() == draft
    assert init("--csv", "log.csv", "--name", "bare") == 0
    assert entry("bare")["options"]["columns"]["reward"] == entry("bare")["unit"] == "FILL IN"
    capsys.readouterr()
    monkeypatch.chdir(place / "project")
    assert cli.main(["check"]) == 1
    refused = capsys.readouterr().err
    for key in ("horizon", "bounds.observation.low.0", "bounds.reward.1", "options.columns.action.high.0"):
        assert f"{key}: found 'FILL IN'; allowed is" in refused


def with_canaries() -> str:
    number, word, dose, reward, day = CANARIES
    return f"{day}T00:00:00,{word},{word},{number},{word},{dose},{reward}\n"


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        (HEADER + with_canaries(), [*MEANING, "--unit", "whom"], "--unit: found 'whom', which is no column"),
        (HEADER + with_canaries(), [*MEANING, "--reward", "who"], "--reward: found 'who', a column of text"),
        ("p1,cell-of-somebody,77.125\np2,south,8.5\n", MEANING, "the first line names no columns"),
        ("p1,cell-of-somebody,1999-12-31\np2,south,2000-01-01\n", MEANING, "the first line names no columns"),
        (f"who,visit,who\n{with_canaries()}", MEANING, "the first line names no columns"),
        (HEADER.replace("who", '"who') + with_canaries(), MEANING, "the first line names no columns"),
        ("", MEANING, "the first line names no columns"),
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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bounds", "glucose"], "'--bounds': found 'glucose'; allowed is COLUMN=LOW:HIGH"),
        (["--bounds", "glucose=25:2"], "'--bounds': glucose: found '25:2'; allowed is LOW:HIGH"),
        (["--bounds", "glucose=2:inf"], "'--bounds': glucose: found '2:inf'"),
        (["--bounds", "dosis=0:1"], "--bounds: found 'dosis', which is no column; allowed are 'when' (times), 'who'"),
        (["--categories", "ward=north"], "'--categories': ward: found 'north'; allowed are two or more"),
        (["--action", "ward"], "--action: found 2 columns, and categories of 'ward'"),
        (["--name", "Pendulum-Replay"], "--name: found 'Pendulum-Replay'; allowed are letters, digits, dots, - and _"),
        (["--elapsed", "since"], "'--elapsed': found 'since'; allowed is NAME=UNIT:MOST"),
        (["--elapsed", "since=weeks:1"], "'--elapsed': since: found 'weeks:1'; allowed is UNIT:MOST: seconds, min"),
        (["--elapsed", "since=hours:0"], "'--elapsed': since: found 'hours:0'; allowed is UNIT:MOST"),
        (["--csv", "none.csv"], "cannot be read"),
        (["--csv", "log.txt"], "ends in .csv"),
        (["--csv", "bytes.csv"], "not CSV in UTF-8"),
        (["--csv", "defaults.csv"], "the file's name stands for it: found 'defaults'; allowed are letters"),
    ],
)
def test_a_wrong_answer_is_one_line(
    words: list[str], says: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bytes.csv").write_bytes(HEADER.encode() + b"\xff\xfe77.125\n")
    shutil.copy("log.csv", "defaults.csv")
    assert says in refusal(capsys, "--csv", "log.csv", *MEANING, *WARDS, *words)


def test_where_no_project_is_made(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--unit, --bounds: found without --csv" in refusal(capsys, "--unit", "who", "--bounds", "a=0:1")
    subprocess.run(["git", "init", "--quiet", "other"], check=True)
    with monkeypatch.context() as without_git:
        without_git.setenv("PATH", "")
        assert init() == 0
    assert not Path("project/.git").exists()
    subprocess.run([sys.executable, "-m", "dvc", "stage", "list"], cwd="project", check=True, capture_output=True)
    shutil.copy("log.csv", "project/log.csv")
    for words, said in (
        (["."], "found files there; allowed is a new or empty folder"),
        (["project/inner"], "lies in the project"),
        (["other/inner"], "lies in the git repository"),
        (["project", "--csv", "project/log.csv", *MEANING, *WARDS], "where git would see its rows"),
    ):
        assert cli.main(["init", *words]) == 1
        assert said in capsys.readouterr().err
