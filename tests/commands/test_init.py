"""``primorl init``: a project without a clone, and an entry that holds nothing of the log but names and types."""

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ruamel.yaml import YAML

from pipeline import collect, ingest
from primorl.commands import main as cli
from primorl.config.blocks import PublicColumn
from primorl.config.params import load
from primorl.data.storage.parquet import PartReader
from tests.commands.conftest import Call
from tests.pipeline.fakes import FakeRun
from tests.projects import ROOT

HEADER = "when,who,visit,glucose,ward,dose,reward\n"
MEANING = [
    *(
        "--csv",
        "log.csv",
        "--unit",
        "who",
        "--trajectory",
        "visit",
        "--step",
        "when",
        "--reward",
        "reward",
    ),
    *("--observation", "glucose", "--observation", "ward", "--action", "dose"),
]
WARDS = ["--categories", "ward=north,south"]
FACTS = [
    *("--bounds", "glucose=2:25", "--bounds", "dose=0:1", "--bounds", "reward=-1:0"),
    *("--horizon", "5", "--per-person", "2"),
]
CANARIES = (
    "1999-12-31T00:00:00,cell-of-somebody,cell-of-somebody,77.125,cell-of-somebody,0.8125,-0.4375\n"
)


def rows(glucose: float = 7.5, people: int = 12, ward: str = "north") -> str:
    return "".join(
        f"2024-01-0{1 + step}T08:00:00,p{person},{visit},{glucose + person / 100 + visit / 7 + step / 10},{ward},"
        f"{0.1 * step},{-0.2 - person / 1000}\n"
        for person in range(people)
        for visit in range(1 + person % 2)
        for step in range(5)
    )


@pytest.fixture(autouse=True)
def log() -> None:
    Path("log.csv").write_text(HEADER + rows(), encoding="utf-8")


def init(*words: str) -> int:
    return cli.main(["init", "project", *words])


def entry(name: str = "log") -> Any:
    return yaml.safe_load(Path(f"project/datasets/{name}.yaml").read_text(encoding="utf-8"))


def refusal(primorl: Call, *words: str) -> str:
    """The one line that a refused call says; nothing is made."""
    status, out, err = primorl("init", "project", *words)
    assert (status in (1, 2), out, err[:7], err.count("\n")) == (True, "", "error: ", 1)
    assert {path.suffix for path in Path().iterdir() if path.name != "other"} == {".csv"}
    return err


def test_a_new_project_has_the_repositorys_stages_and_an_upgrade_leaves_what_is_the_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """The stages follow the installed version instead of the code; git and DVC know them."""
    assert primorl("init", "project") == (0, f"made {folder / 'project'}\n", "")
    for command in (["git", "status"], [sys.executable, "-m", "dvc", "stage", "list"]):
        subprocess.run(command, cwd="project", check=True, capture_output=True)
    monkeypatch.chdir("project")
    ours = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    for stage in ours["stages"].values():
        kept = [dep for dep in stage["deps"] if not dep.startswith("primorl/")]
        stage["deps"] = [kept[0], "primorl.version", *kept[1:]]
    assert yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8")) == ours
    same = [f"data/{folder}/.gitignore" for folder in ("withdrawals", "consent", "arrivals")]
    for name in (*same, *(f"pipeline/{file.name}" for file in (ROOT / "pipeline").glob("*.py"))):
        assert Path(name).read_bytes() == (ROOT / name).read_bytes()
    users = Path("params.yaml").read_text(encoding="utf-8").replace("seed: 0", "seed: 7")
    for name, text in (
        ("params.yaml", users),
        ("primorl.version", "0.0.1\n"),
        ("pipeline/ingest.py", ""),
    ):
        Path(name).write_text(text, encoding="utf-8")
    assert primorl("check")[2].startswith("error: primorl.version: found '0.0.1'")
    brought = "brought to the installed version: pipeline/ingest.py, primorl.version\n"
    assert primorl("init", ".")[:2] == (0, brought)
    assert (load().dataset, load().seed) == ("pendulum-replay", 7)
    assert primorl("check")[0] == 0


class Killed(BaseException):
    """As a kill: nothing handles it."""


@pytest.mark.parametrize("moves", [0, 5])
def test_after_a_kill_the_same_command_goes_on_in_a_folder_that_was_empty(
    moves: int, monkeypatch: pytest.MonkeyPatch, primorl: Call
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
            init(*MEANING, *WARDS, *FACTS)
    assert not Path("project/primorl.version").exists()
    assert init(*MEANING, *WARDS, *FACTS) == 0
    assert load(Path("project/params.yaml")).dataset == "log"
    Path("project/primorl.version").unlink()
    assert "found files there; allowed is a new or empty folder" in primorl("init", "project")[2]


def test_a_drafted_entry_passes_the_checker_and_a_real_ingest(
    monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """With texts, truth values, empty cells and the time between rows; the hint for the card is a block."""
    header, *lines = (HEADER + rows()).splitlines()
    lines = [
        re.sub(r"[\d.]+,north", ",north", line) if place % 5 == 2 else line
        for place, line in enumerate(lines)
    ]
    fed = [f"{line},{('true', 'false')[place % 2]}\n" for place, line in enumerate(lines)]
    Path("log.csv").write_text("".join((f"{header},fed\n", *fed)))
    more = [
        "--observation",
        "fed",
        "--categories",
        "fed=false,true",
        "--elapsed",
        "days_since=days:2",
    ]
    assert (
        "empty cells among the first rows of: glucose; ingestion"
        in primorl("init", "other", *MEANING)[1]
    )
    more += ["--carry", "glucose=days:3:6", "--public", "ward=north"]
    status, said, _ = primorl("init", "project", *MEANING, *WARDS, *FACTS, *more)
    assert (status, "fill in" in said, "empty" in said) == (0, False, False)
    monkeypatch.chdir("project")
    drafted = Path("datasets/log.yaml")
    drafted.write_text(
        re.sub(r"^# (card:|  \w+: )", r"\1", drafted.read_text(), flags=re.MULTILINE)
    )
    assert "log.csv: has the columns of the entry" in primorl("check")[1]
    checked = load()
    assert set(checked.chosen.card.stated) == {"owner", "purpose", "contact", "licence"}
    for stage in (collect, ingest):
        stage.body(checked, FakeRun())
    made = PartReader(Path("data/trajectories"), made_by="ingest")
    assert checked.partition.public == PublicColumn(column="ward", values=("north",))
    names = (
        "glucose",
        "glucose_age",
        "ward=north",
        "ward=south",
        "fed=false",
        "fed=true",
        "days_since",
    )
    assert (made.info.spaces.observation_names, made.info.trajectories_per_person) == (names, 2)
    (first, second, third, *_) = next(made.tables()).to_pylist()
    assert (first["observation"][-1], second["observation"][-1]) == (0.0, 1.0)
    assert (third["observation"][0], third["observation"][1]) == (second["observation"][0], 1.0)


def test_how_a_csv_is_written_is_found_and_discrete_actions_are(folder: Path) -> None:
    words = [
        {"log.csv": "log.csv.gz", "who": "visit", "dose": "ward"}.get(word, word)
        for word in MEANING
    ]
    del words[12:14]  # the ward is the action, not observed
    plain = HEADER + rows()
    forms = {
        (";", ","): plain.replace(",", ";").replace(".", ","),
        ("\t", "."): plain.replace(",", "\t"),
    }
    for form, text in forms.items():
        Path("log.csv.gz").write_bytes(gzip.compress(text.encode("utf-8-sig")))
        shutil.rmtree("project", ignore_errors=True)
        assert init(*words, *WARDS, "--bounds", "glucose=2:25") == 0
        options = entry()["options"]
        assert (tuple(options["csv"].values()), options["files"]) == (
            form,
            str(folder / "log.csv.gz"),
        )
        assert options["columns"]["action"] == {"column": "ward", "categories": ["north", "south"]}


def test_names_and_categories_that_yaml_would_read_as_something_else_stay_text(
    primorl: Call,
) -> None:
    """For this project and for DVC, which reads YAML 1.2."""
    shutil.move("log.csv", "1e5.csv")
    words = ["--csv", "1e5.csv", *MEANING[2:], *FACTS, "--categories", "ward=1e5,no,1,0o17,null"]
    assert init(*words) == 0
    settings = Path("project/params.yaml").read_text(encoding="utf-8")
    checked = load(Path("project/params.yaml"))
    assert (
        checked.dataset,
        YAML(typ="safe").load(settings)["dataset"],
        entry("1e5")["population"],
    ) == ("1e5",) * 3
    (_, ward) = checked.chosen.options.columns.observation  # type: ignore[union-attr]
    assert ward.categories == ("1e5", "no", "1", "0o17", "null")  # type: ignore[union-attr]
    assert "is there already; edit it, delete it" in primorl("init", "project", *words)[2]


def test_what_nobody_gave_is_to_be_filled_in_whatever_the_rows_say(
    monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """The draft of a log with other values, lengths and people is the same. Nothing runs before it is filled in."""
    assert (
        "bounds of dose, bounds of reward, horizon, trajectories_per_person; nothing trains"
        in primorl("init", "project", *MEANING)[1]
    )
    draft = Path("project/datasets/log.yaml").read_bytes()
    shutil.rmtree("project")
    Path("log.csv").write_text(HEADER + rows(-880.25, people=3, ward="elsewhere"), encoding="utf-8")
    assert init(*MEANING) == 0
    assert Path("project/datasets/log.yaml").read_bytes() == draft
    assert init("--csv", "log.csv", "--name", "bare") == 0
    assert entry("bare")["options"]["columns"]["reward"] == entry("bare")["unit"] == "FILL IN"
    monkeypatch.chdir("project")
    for key in (
        "horizon",
        "bounds.observation.low.0",
        "bounds.reward.1",
        "options.columns.action.high.0",
    ):
        assert f"{key}: found 'FILL IN'; allowed is" in primorl("check")[2]


def test_no_cell_is_shown(primorl: Call) -> None:
    """Errors name columns, whose header may have been forgotten: then the first line is somebody's."""
    no_names = "the first line names no columns"
    for text, words, says in (
        (HEADER + CANARIES, ["--unit", "whom"], "--unit: found 'whom', which is no column"),
        (HEADER + CANARIES, ["--reward", "who"], "--reward: found 'who', a column of text"),
        ("p1,cell-of-somebody,1999-12-31\np2,south,2000-01-01\n", [], no_names),
        (f"who,visit,who\n{CANARIES}", [], no_names),
        (HEADER.replace("who", '"who') + CANARIES, [], no_names),
        ("", [], no_names),
    ):
        Path("log.csv").write_text(text, encoding="utf-8")
        said = refusal(primorl, *MEANING, *words)
        assert says in said
        assert not any(canary in said for canary in (*CANARIES.strip().split(","), "1999-12-31"))


def test_a_wrong_answer_is_one_line(primorl: Call) -> None:
    Path("bytes.csv").write_bytes(HEADER.encode() + b"\xff\xfe77.125\n")
    for words, says in (
        ("--bounds glucose", "'--bounds': found 'glucose'; allowed is COLUMN=LOW:HIGH"),
        (
            "--bounds dosis=0:1",
            "--bounds: found 'dosis', which is no column; allowed are 'when' (times), 'who'",
        ),
        (
            "--bounds ward=0:1",
            "--bounds: found 'ward', a column of categories; allowed is a column of numbers",
        ),
        (
            "--step ward",
            "--step: found 'ward', a column of text; name a column of numbers or times; write dates as",
        ),
        ("--categories ward=north", "'--categories': ward: found 'north'; allowed are two or more"),
        ("--action ward", "--action: found 2 columns, and categories of 'ward'"),
        (
            "--name Pendulum-Replay",
            "--name: found 'Pendulum-Replay'; allowed are letters, digits, dots, - and _",
        ),
        (
            "--elapsed since=weeks:1",
            "'--elapsed': since: found 'weeks:1'; allowed is UNIT:MOST: seconds, min",
        ),
        (
            "--carry dose=hours:24",
            "--carry: found 'dose', which is not observed or holds categories",
        ),
        (
            "--carry glucose=hours:24:x",
            "'--carry': glucose: found 'hours:24:x'; allowed is UNIT:MOST or UNIT:MOST:FIR",
        ),
        ("--csv none.csv", "cannot be read"),
        ("--csv bytes.csv", "not CSV in UTF-8"),
    ):
        assert says in refusal(primorl, *MEANING, *WARDS, *words.split())


def test_where_no_project_is_made(monkeypatch: pytest.MonkeyPatch, primorl: Call) -> None:
    assert "--unit, --bounds: found without --csv" in refusal(
        primorl, "--unit", "who", "--bounds", "a=0:1"
    )
    subprocess.run(["git", "init", "--quiet", "other"], check=True)
    with monkeypatch.context() as without_git:
        without_git.setenv("PATH", "")
        assert init() == 0
    assert "no_scm = true" in Path("project/.dvc/config").read_text(encoding="utf-8")
    shutil.copy("log.csv", "project/log.csv")
    for words, said in (
        (["."], "found files there; allowed is a new or empty folder"),
        (["project/inner"], "lies in the project"),
        (["other/inner"], "lies in the git repository"),
        (["project", *MEANING, "--csv", "project/log.csv", *WARDS], "where git would see its rows"),
    ):
        assert said in primorl("init", *words)[2]


def test_an_outcome_in_the_last_row_is_asked_for_and_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Twin: without a word the last reward is not used, and the command says so."""
    assert init(*MEANING, *WARDS, *FACTS) == 0
    assert (entry()["options"]["end"], entry()["termination"]) == ("last_row", "none")
    assert "give --end outcome" in capsys.readouterr().out
    shutil.rmtree("project")
    assert init(*MEANING, *WARDS, *FACTS, "--end", "outcome") == 0
    assert (entry()["options"]["end"], entry()["termination"]) == ("outcome", "learned")
    assert "--end" not in capsys.readouterr().out
