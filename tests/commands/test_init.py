"""``primorl init``: a project without a clone, and a draft that holds nothing of the log
but names.
"""

import ast
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import minari
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml
from ruamel.yaml import YAML

from pipeline import collect, ingest
from primorl.base.files import write_json
from primorl.base.reporting import StageLog
from primorl.commands import main as cli
from primorl.config.params import load
from primorl.data.storage.rows import PartReader
from tests.commands.conftest import Call
from tests.data.builders import PENDULUM, create, episode
from tests.projects import ROOT

HEADER = "when,who,visit,glucose,ward,dose,reward\n"
CANARIES = (
    "1999-12-31T00:00:00,cell-of-somebody,cell-of-somebody,77.125,cell-of-somebody,0.8125,-0.4375\n"
)


def rows(glucose: float = 7.5, people: int = 12, ward: str = "north") -> str:
    return "".join(
        f"2024-01-0{1 + step}T08:00:00,p{person},{visit},"
        f"{glucose + person / 100 + visit / 7 + step / 10},{ward},"
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
    same = [f"data/{folder}/.gitignore" for folder in ("withdrawals", "consent")]
    for name in (*same, *(f"pipeline/{file.name}" for file in (ROOT / "pipeline").glob("*.py"))):
        assert Path(name).read_bytes() == (ROOT / name).read_bytes()
    users = Path("params.yaml").read_text(encoding="utf-8").replace("seed: 0", "seed: 7")
    edits = {"params.yaml": users, "primorl.version": "0.0.1\n", "pipeline/ingest.py": ""}
    for name, text in edits.items():
        Path(name).write_text(text, encoding="utf-8")
    assert primorl("check")[2].startswith("error: primorl.version: found '0.0.1'")
    brought = "brought to the installed version: pipeline/ingest.py, primorl.version\n"
    assert primorl("init", ".")[:2] == (0, brought)
    assert (load().dataset, load().seed) == ("pendulum-replay", 7)
    assert primorl("check")[0] == 0


def test_nothing_points_to_a_page_that_a_project_lacks(primorl: Call) -> None:
    """Neither its files nor what the commands say: the documentation lies in the repository."""
    assert init("--csv", "log.csv") == 0
    Path("ward/data").mkdir(parents=True)
    assert primorl("init", "project", "--meds", "ward")[0] == 0
    files = [path for path in Path("project").rglob("*.*") if ".git/" not in str(path)]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    for path in (ROOT / "primorl").rglob("*.py"):
        parts = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        literals = [one.value for one in parts if isinstance(one, ast.Constant)]
        # a docstring has several lines, and others are no messages
        texts += [one for one in literals if isinstance(one, str) and "\n" not in one]
    assert len(texts) > 1000
    assert [text for text in texts if re.search(r"docs/[\w/-]+\.md", text)] == []


def filled(content: Any) -> Any:
    """The draft as a person fills it in."""
    content |= {"unit": "who", "trajectories_per_person": 2, "horizon": 5}
    columns = content["options"]["columns"]
    columns |= {"unit": "who", "trajectory": "visit", "order": "when", "reward": "reward"}
    columns["observation"] = ["glucose", {"column": "ward", "categories": ["north", "south"]}]
    columns["action"] = {"columns": ["dose"], "low": [0.0], "high": [1.0]}
    observation = {"low": [2.0, 0.0, 0.0], "high": [25.0, 1.0, 1.0]}
    content["bounds"] = {"observation": observation, "reward": [-1.0, 0.0]}
    return content


def test_a_draft_that_is_filled_in_passes_the_checker_and_a_real_ingest(
    monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Nothing runs before. The draft of a log with other values, lengths and people is the same."""
    assert init("--csv", "log.csv") == 0
    draft = Path("project/datasets/log.yaml").read_bytes()
    shutil.rmtree("project")
    Path("log.csv").write_text(HEADER + rows(8.25, people=9), encoding="utf-8")
    assert init("--csv", "log.csv") == 0
    assert Path("project/datasets/log.yaml").read_bytes() == draft
    monkeypatch.chdir("project")
    drafted = Path("datasets/log.yaml")
    missing = primorl("check")[2]
    for key in ("horizon", "bounds.reward", "columns.unit", "columns.order", "columns.observation"):
        assert key in missing
    content = filled(yaml.safe_load(draft))
    drafted.write_text(yaml.safe_dump(content), encoding="utf-8")
    status, out, err = primorl("check")
    assert (status, "log.csv: has the columns of the entry" in out) == (0, True), err
    checked = load()
    for stage in (collect, ingest):
        stage.body(checked, StageLog())
    made = PartReader(Path("data/trajectories"), made_by="ingest")
    assert made.info.spaces.observation_names == ("glucose", "ward=north", "ward=south")


def test_a_draft_for_events_is_refused_until_it_is_filled_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """It has all that the page's entry has; no event is read."""
    (folder / "ward/data").mkdir(parents=True)
    assert "found no folder `data`" in primorl("init", "project", "--meds", ".")[2]
    assert init("--meds", "ward") == 0
    drafted = entry("ward")
    page = (ROOT / "docs/datasets/meds.md").read_text(encoding="utf-8")
    whole = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    assert drafted.keys() == whole.keys()
    assert drafted["options"].keys() == whole["options"].keys()
    assert drafted["options"]["folder"] == str(folder / "ward")
    monkeypatch.chdir("project")
    for key in ("horizon", "options.begins", "options.action", "bounds.reward"):
        assert key in primorl("check")[2]
    text = yaml.safe_dump(whole | {"options": whole["options"] | {"folder": str(folder / "ward")}})
    Path("datasets/ward.yaml").write_text(text, encoding="utf-8")
    assert primorl("check")[::2] == (0, "")


def test_how_a_csv_is_written_is_found_and_names_stay_text(folder: Path, primorl: Call) -> None:
    """For this project and for DVC, which reads YAML 1.2."""
    european = (HEADER + rows()).replace(",", ";").replace(".", ",")
    Path("1e5.csv.gz").write_bytes(gzip.compress(european.encode("utf-8-sig")))
    assert init("--csv", "1e5.csv.gz") == 0
    drafted = entry("1e5")
    assert tuple(drafted["options"]["csv"].values()) == (";", ",")
    assert drafted["options"]["files"] == str(folder / "1e5.csv.gz")
    assert drafted["population"] == "1e5"
    settings = Path("project/params.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(settings)["dataset"] == "1e5"
    assert YAML(typ="safe").load(settings)["dataset"] == "1e5"
    assert "is there already" in primorl("init", "project", "--csv", "1e5.csv.gz")[2]


def test_a_folder_of_logs_is_one_log_where_its_files_have_the_same_columns(
    folder: Path, primorl: Call
) -> None:
    Path("logs").mkdir()
    assert "logs: found no log there" in primorl("init", "project", "--csv", "logs")[2]
    for part in ("a", "b"):
        Path(f"logs/{part}.csv").write_text(HEADER + rows(), encoding="utf-8")
    assert init("--csv", "logs") == 0
    assert entry("logs")["options"]["files"] == str(folder / "logs")
    Path("visits").mkdir()
    pq.write_table(pacsv.read_csv("log.csv"), "visits/a.parquet")
    assert primorl("init", "project", "--csv", "visits")[0] == 0
    columns = f"Columns of the log: {json.dumps(HEADER.strip().split(','))[1:-1]}"
    for name in ("logs", "visits"):
        assert columns in Path(f"project/datasets/{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("cell", "point"),
    [("0,125", ","), ("-12,5", ","), ("12,345", "."), ("7.25", ".")],
)
def test_a_comma_of_thousands_is_no_decimal_comma(cell: str, point: str) -> None:
    """One that is taken for such is refused when rows are read; the reverse would be silent."""
    Path("log.csv").write_text(f"who\tvisit\twhen\tvalue\np1\t0\t1\t{cell}\n", encoding="utf-8")
    assert init("--csv", "log.csv") == 0
    assert entry()["options"]["csv"] == {"delimiter": "\t", "decimal_point": point}


def test_no_cell_is_shown_and_nothing_is_made(primorl: Call) -> None:
    """The header may have been forgotten: then the first line is somebody's. Twin: numbers of rows,
    as pandas and R write them, are a column without a name.
    """
    nameless = f"{HEADER.replace('ward', '')}{CANARIES}"
    for text in ("p1,cell-of-somebody,1999-12-31\n", f"who,visit,who\n{CANARIES}", nameless, ""):
        Path("log.csv").write_text(text, encoding="utf-8")
        status, out, err = primorl("init", "project", "--csv", "log.csv")
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert "the first line names no columns" in err
        assert not any(canary in err for canary in (*CANARIES.strip().split(","), "1999-12-31"))
    Path("bytes.csv").write_bytes(HEADER.encode() + b"\xff\xfe77.125\n")
    Path("torn.parquet").write_bytes(b"PAR1")
    for file, says in (
        ("torn.parquet", "torn.parquet: not readable as Parquet"),
        ("bytes.csv", "line 2: found what is not UTF-8"),
    ):
        assert says in primorl("init", "project", "--csv", file)[2]
    assert not Path("project").exists()
    Path("log.csv").write_text(f",{HEADER}0,{CANARIES}", encoding="utf-8")
    assert init("--csv", "log.csv") == 0


def test_where_no_project_is_made(monkeypatch: pytest.MonkeyPatch, primorl: Call) -> None:
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
        (["project", "--csv", "project/log.csv"], "where git would see its rows"),
        (["donn\udce9es"], r"donn\xe9es: found a name that is not UTF-8; rename"),
        (["project", "--csv", "donn\udce9es.csv"], r"donn\xe9es.csv: found a name that is not"),
    ):
        assert said in primorl("init", *words)[2]


SPECS: dict[str, tuple[dict[str, Any], tuple[Any, Any, str]]] = {
    "hopper/medium-v0": ({"id": "Hopper-v5"}, ("Hopper-v5", None, "hopper")),
    "pen/human-v2": ({"id": "Pen-v1", "max_episode_steps": 100}, (None, 100, "learned")),
    "unknown-v0": ({}, (None, "FILL IN", "learned")),
}


@pytest.mark.parametrize("dataset_id", SPECS)
def test_a_dataset_of_minari_is_an_entry_in_one_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call, dataset_id: str
) -> None:
    """From Minari's own folder. No environment is built."""
    spec, (environment, horizon, rule) = SPECS[dataset_id]
    (folder / "minari").mkdir()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    path = create(folder / "minari", dataset_id, [episode(3, 0)], **PENDULUM)
    path /= "metadata.json"
    about = json.loads(path.read_text()) | {"ref_min_score": -1.0, "ref_max_score": 2.0}
    write_json(path, about | ({"env_spec": json.dumps(spec)} if spec else {}))
    assert init("--minari", dataset_id) == 0
    made = entry(dataset_id.replace("/", "-"))
    assert (made["environment"], made["horizon"], made["termination"]) == (
        environment,
        horizon,
        rule,
    )
    assert made["score"] == {"low": -1.0, "high": 2.0, "scale": 100.0}
    monkeypatch.chdir("project")
    assert primorl("check")[0] == int(horizon == "FILL IN")


def test_a_dataset_of_minari_that_is_not_here_is_fetched_and_collect_finds_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    """Into Minari's own folder. Its client, which reaches the hub, is not called here."""

    def fetch(dataset_id: str) -> None:
        mine = Path(os.environ["MINARI_DATASETS_PATH"])
        path = create(mine, dataset_id, [episode(3, 0)], **PENDULUM) / "metadata.json"
        spec = json.dumps({"id": "Door-v1", "max_episode_steps": 100})
        write_json(path, json.loads(path.read_text()) | {"env_spec": spec})

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    monkeypatch.setattr(minari, "download_dataset", fetch)
    assert init("--minari", "door/human-v2") == 0
    monkeypatch.setattr(minari, "download_dataset", lambda _: 1 / 0)
    refused = primorl("init", "other", "--minari", "door-human-v1")[2]
    assert "could not be fetched (ZeroDivisionError)" in refused
    monkeypatch.chdir("project")
    assert load().dataset == "door-human-v2"
    collect.body(load(), StageLog())
    assert Path("data/raw/door/human-v2/data/metadata.json").exists()


@pytest.mark.parametrize(
    ("name", "environment", "rule"),
    [
        ("halfcheetah-medium-expert-v2", "HalfCheetah-v5", "none"),
        ("kitchen-mixed-v0", None, "learned"),
    ],
)
def test_a_dataset_of_d4rl_is_an_entry_in_one_step(
    monkeypatch: pytest.MonkeyPatch, primorl: Call, name: str, environment: str | None, rule: str
) -> None:
    assert init("--d4rl", name) == 0
    made = entry(name)
    assert (made["environment"], made["termination"]) == (environment, rule)
    assert made["options"] == {"name": name, "remote": True}
    ours = yaml.safe_load((ROOT / "datasets/halfcheetah-medium-expert.yaml").read_text())
    assert made["score"] == ours["score"] or not name.startswith("halfcheetah")
    monkeypatch.chdir("project")
    assert primorl("check")[0] == 0


def test_what_no_dataset_is_called_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, primorl: Call
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    (folder / "older-v0/data").mkdir(parents=True)
    for words, says in (
        (("--minari", "../secrets"), "--minari: found '../secrets'"),
        (("--minari", "older-v0"), "as Minari 0.5 has"),
        (("--minari", "hopper"), "--minari: found 'hopper'"),
        (("--d4rl", "hopper-v7"), "allowed are D4RL's, as hopper-"),
        (("--d4rl", "x", "--csv", "log.csv"), "found several"),
    ):
        status, _, err = primorl("init", "project", *words)
        assert (status, err.count("\n"), Path("project").exists()) == (1, 1, False)
        assert says in err
