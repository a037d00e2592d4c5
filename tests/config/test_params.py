"""The settings are checked when they are read: every key is named, and nothing wrong reaches a
stage; YAML is read as DVC reads it.

params.yaml decides, then the dataset's recipe, then a default or a rule; a log without an
environment gets shares of the model's ε.
"""

import ast
import copy
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from dp_accounting import dp_event
from dvc.utils.serialize import parse_yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from primorl.base import PipelineError
from primorl.config import params
from primorl.config.params import PUBLIC, RULED
from primorl.config.reading import read_yaml
from primorl.privacy.accounting.epsilon import compose, gaussian_mean
from primorl.work.rules import epsilon_of
from tests.projects import ROOT, from_plain, project_settings

RAW = project_settings()
RAW["privacy"]["target_epsilon"] = 1.0
ONLINE = "online.yaml: "
OWN = "datasets/pendulum-replay.yaml"
FILE = f"{OWN}: "
OPEN: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
OPEN["partition"]["public_fraction"] = 0.02


@pytest.fixture(autouse=True)
def datasets(project: Path) -> None:
    shutil.copytree(ROOT / "datasets", "datasets")


def changed(key: str, value: object, raw: dict[str, Any] = RAW) -> dict[str, Any]:
    raw = copy.deepcopy(raw)
    *path, last = key.split(".")
    block = raw
    for part in path:
        block = block[part]
    block[last] = value
    return raw


def refusal(raw: dict[str, Any], read: Callable[[dict[str, Any]], object] = from_plain) -> str:
    with pytest.raises(PipelineError) as raised:
        read(raw)
    message = str(raised.value)
    assert message.startswith(("params.yaml: ", "datasets/", ONLINE))
    assert "\n" not in message
    return message.removeprefix("params.yaml: ")


def leaves(block: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in block.items():
        if isinstance(value, dict):
            # Keys of other blocks, any of them.
            found |= leaves(value, f"{prefix}{key}.") if key != "recipe" else {}
        else:
            found[f"{prefix}{key}"] = value
    return found


@pytest.mark.parametrize("name", [file.stem for file in (ROOT / "datasets").glob("*.yaml")])
def test_every_dataset_can_be_chosen(name: str) -> None:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8")) | {"dataset": name}
    raw["partition"]["public_fraction"] = 0.02
    checked = params.parse(raw, ROOT / "params.yaml").with_decided({"policy.starts": "public"})
    assert from_plain(params.plain(checked), checked.origins) == checked


def test_no_key_takes_any_number_and_none_is_unknown() -> None:
    for key, value in leaves(RAW).items():
        inner = key.removeprefix("chosen.").removeprefix("online.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            for far in (10**20, -(10**20)):
                assert inner in refusal(changed(key, far))
    for block in ("", *(key for key, value in RAW.items() if isinstance(value, dict))):
        files = {"chosen": FILE, "online": ONLINE}
        where = files.get(block, f"{block}.".removeprefix("."))
        unknown = changed(f"{block}.epsilonn".removeprefix("."), 1)
        assert refusal(unknown) == f"{where}epsilonn: unknown key; remove it or check its spelling"
    dotted = RAW | {"privacy.target_epsilon": 3}
    assert refusal(dotted) == "privacy.target_epsilon: unknown key; remove it or check its spelling"


TWICE = {"low": [0.0, 1.0], "high": [1.0, 1.0]}
SMALL = RAW["policy"] | {"buffer_size": 10, "horizon": 5, "rollout_batch": 4}
WRONG: tuple[tuple[str, object, str], ...] = (
    ("seed", -1, "seed: found -1; allowed: greater than or equal to 0"),
    ("seed", True, "seed: found True; allowed: integer"),
    ("privacy", "strong", "privacy: found 'strong'; a block of keys is needed"),
    ("chosen.source", "s3", "source: found 's3'; allowed are 'replay', 'minari', 'd4rl'"),
    ("chosen.options.hidden", 64, "options.hidden: found 64; a list is needed"),
    ("chosen.bounds.observation", TWICE, "found 1 and 1 in dimension 1"),
    ("chosen.bounds.reward", [1.0, 0.0], "bounds.reward: found [1.0, 0.0]; must be [low, high]"),
    ("chosen.bounds.angles", [[0, 1], [1, 2]], "angles: found a column twice"),
    ("chosen.score", {"low": 0.0, "high": 0.0, "scale": 1.0}, "score: low must be below high"),
    ("privacy.delta", 1e-15, "privacy.delta: found 1e-15; allowed: greater"),
    ("privacy.delta", 1, "privacy.delta: found 1; allowed: less than 1"),
    ("privacy.target_epsilon", float("inf"), "privacy.target_epsilon: found inf; allowed:"),
    ("dynamics.variant", "High", "found 'High'; allowed: 'private', 'no_privacy' or 'no_clip'"),
    ("policy", SMALL, "policy: buffer_size must hold one batch of rollouts"),
    ("policy.seeds", [1, 2, 1], "policy.seeds: found 1 more than once"),
    ("policy.seeds", [-1] * 1000, "and 990 more mistakes"),
    ("tracking.uri", ["http://ana:hush@host"], "tracking.uri: allowed: string"),
    # what no machine could train
    ("dynamics.hidden", [10**9], "dynamics.hidden"),
    ("chosen.bounds.reward", [-1e300, 1e300], "bounds.reward"),
)


def test_an_error_names_the_key_what_was_found_and_what_is_allowed() -> None:
    for key, value, says in WRONG:
        found = refusal(changed(key, value))
        assert found.startswith(FILE if key.startswith("chosen.") else key.partition(".")[0])
        assert says in found
        assert "hush" not in found
        assert len(found) < (1000 if says == "and 990 more mistakes" else 400)


def keys_of(kind: type, prefix: str = "") -> Iterator[str]:
    """Dotted keys of a class of settings, of all its alternatives."""
    for name, hint in get_type_hints(kind).items():
        yield f"{prefix}{name}"
        for below in dataclasses_in(hint):
            yield from keys_of(below, f"{prefix}{name}.")


def dataclasses_in(hint: Any) -> Iterator[type]:
    if is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        yield from dataclasses_in(part)


def test_every_key_that_an_error_names_exists() -> None:
    """Texts in code name keys as `privacy.delta` or `options.columns`; docstrings are apart."""
    known = {key.removeprefix("chosen.") for key in keys_of(params.Params)}
    blocks = {key.partition(".")[0] for key in known if "." in key}
    named = re.compile(rf"(?<![\w./`-])(?:{'|'.join(blocks)})(?:\.[a-z_]+)+(?![\w(/])")
    files = r"\.(json|yaml|db|md|html|py|bin|safetensors|csv|head|probabilities)$"
    assert named.findall("set options.epsilonn or policy.json") == [
        "options.epsilonn",
        "policy.json",
    ]
    for path in sorted((ROOT / "primorl").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(ast.walk(tree))
        about = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and id(node) not in about:
                for key in named.findall(str(node.value)):
                    assert key in known or re.search(files, key), f"{path}:{node.lineno}"


def test_where_rollouts_begin_is_settled_before_anything_is_paid_for() -> None:
    nobody, released = {"partition.public_fraction": 0}, {"policy.starts": "released"}
    for dataset, changes, says in (
        ("csv-log", {}, None),
        ("csv-log", nobody | released, None),
        ("pendulum-replay", nobody | released | {"dynamics.model": "linear"}, None),
        (
            "csv-log",
            {"policy.starts": "reset"},
            "found 'reset', while datasets/csv-log.yaml says environment: null",
        ),
        ("pendulum-replay", released, "'released', while the public split tells"),
        ("csv-log", nobody | {"policy.starts": "public"}, "partition.public_fraction is 0"),
    ):
        raw = project_settings(dataset)
        for key, value in changes.items():
            raw = changed(key, value, raw)
        if says is None:
            from_plain(raw)
        else:
            assert says in refusal(raw)


@pytest.mark.parametrize("path", ["a/../../b", "link/b"])
def test_relative_paths_stay_in_the_project(
    path: str, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (project / "link").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    says = "leaves the project; allowed are paths within it"
    for key, value in (
        ("ledger.url", f"sqlite:///{path}"),
        *(("tracking.uri", uri) for uri in (path, f"file:{path}", f"sqlite:///{path}?timeout=3")),
    ):
        found = refusal(changed(key, value))
        assert says in found
        assert path not in found, "a store's address is never quoted"
    minari = copy.deepcopy(RAW)
    minari["chosen"] |= {"source": "minari", "options": {"id": "x-v0", "root": path}}
    assert "yaml: options.root: found " in (found := refusal(minari))
    assert "leaves the project" in found
    for fine in ("inside/x", "/absolute/../x", "a/../b"):
        from_plain(changed("ledger.url", f"sqlite:///{fine}"))


def test_a_file_that_does_not_fit_is_named(tmp_path: Path) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    file, own = tmp_path / "params.yaml", tmp_path / OWN
    unknown = "params.yaml: dataset: found .*; allowed are the files in datasets/: "
    for where, old, new, says in (
        (file, "dataset: pendulum-replay", "dataset: ../x", unknown),
        (file, "seed: 0", "seed: 0\nchosen: {}", "chosen: unknown key"),
        (own, "\nbounds:", "\nother:", "datasets/pendulum-replay.yaml: .*bounds: missing"),
    ):
        text = where.read_text(encoding="utf-8")
        assert old in text
        where.write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(PipelineError, match=f"^[^\n]*{says}[^\n]*$"):
            params.load(file)
        where.write_text(text, encoding="utf-8")


REFUSED: tuple[tuple[str | bytes, str], ...] = (
    ("seed: [1", ", line 1: not valid YAML"),
    ("seed: 1\n<<<<<<< HEAD\nx: 2\n=======\n", ": git left both sides of a merge there; keep one"),
    (b"\xff\xff", ": not readable"),
    ("[" * 1000, ": not valid YAML"),
    ("seed: !!python/object/apply:os.mkdir ['made']", ", line 1: not valid YAML"),
    ("seed: 1\nseed: hush\n", ", line 2: a key is given twice; keep one"),
)


def read(folder: Path, content: str | bytes) -> Any:
    path = folder / "params.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_yaml(path, "why")


def test_words_and_dates_stay_text_and_numbers_are_read(tmp_path: Path) -> None:
    words: dict[str, Any] = {word: word for word in ("yes", "2026-01-01", "1:30")}
    for text, value in (words | {"1e-5": 1e-5, "010": 10}).items():
        assert read(tmp_path, f"a: {text}\n") == {"a": value}


@given(st.text("0123456789eE.+-_:xob", min_size=1, max_size=7))
@example("1:30")
@example("1e-5")
@example("010")
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_number_is_read_as_dvc_reads_it(tmp_path: Path, text: str) -> None:
    try:
        found = read(tmp_path, f"a: {text}\n")
        theirs = parse_yaml(f"a: {text}\n", "params.yaml")
    except Exception:
        return
    if isinstance(found, dict) and isinstance(found["a"], int | float):
        assert isinstance(theirs["a"], int | float)
        assert found["a"] == theirs["a"] or (math.isnan(found["a"]) and math.isnan(theirs["a"]))


def test_what_would_hang_or_execute_is_refused(tmp_path: Path) -> None:
    for content, says in REFUSED:
        with pytest.raises(PipelineError) as refused:
            read(tmp_path, content)
        message = str(refused.value)
        assert says in message
        assert "\n" not in message
        assert "hush" not in message
    assert not Path("made").exists()


def with_keys(**keys: Any) -> dict[str, Any]:
    """What ``params.yaml`` says, with other values of some keys, as ``privacy__rounds``."""
    raw = OPEN
    for key, value in keys.items():
        raw = changed(key.replace("__", "."), value, raw)
    return raw


def cook(recipe: dict[str, Any], file: str = OWN) -> None:
    content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    Path(file).write_text(yaml.safe_dump(content | {"recipe": recipe}), encoding="utf-8")


def test_one_key_says_what_a_run_may_cost_and_shares_divide_it() -> None:
    """A log without an environment gets a clone and a question; a simulator needs none."""
    cook({"privacy": {"target_epsilon": 2.0}})
    assert params.parse(OPEN).privacy.target_epsilon == 2.0
    assert params.parse(with_keys(privacy__target_epsilon=0.3)).privacy.target_epsilon == 0.3
    simulated = params.parse(OPEN)
    assert simulated.privacy.shares == {"model": 1.0}
    assert (simulated.clones, simulated.asks_today) == (False, False)
    log = params.parse(with_keys(dataset="csv-log"))
    assert (log.clones, log.asks_today) == (True, True)
    for shares, says in (
        ({"clone": 1.0}, "found none of the model"),
        ({"model": 0.9, "clone": 0.2}, "found 1.1 in all; allowed is at most 1"),
        ({"model": 1, "dptd": 0.1}, "privacy.shares"),
    ):
        assert says in refusal(with_keys(privacy__shares=shares), params.parse)


def test_parts_of_gaussian_jobs_make_the_whole() -> None:
    """Twins: parts of a tenth more or less make another whole."""
    for epsilon in (0.01, 0.9, 8.0):
        chosen = params.parse(with_keys(dataset="csv-log", privacy__target_epsilon=epsilon))
        parts = [epsilon_of(chosen, job) for job in chosen.privacy.shares]
        for factor, within in ((1.001, True), (0.9, False), (1.1, False)):
            means = [gaussian_mean(factor * each, 1e-5) for each in parts]
            events = [dp_event.GaussianDpEvent(1 / mean) for mean in means]
            close = compose(events, 1e-5).epsilon_pld == pytest.approx(epsilon, rel=0.01)
            assert close is within


def test_consent_takes_the_place_of_a_draw() -> None:
    listed = {"file": "data/consent/a.txt"}
    empty: dict[str, Any] = {"partition__public_fraction": None}
    found = params.parse(with_keys(dataset="csv-log", partition__public=listed, **empty))
    assert found.partition.public_fraction is None
    assert found.partition.public == params.PublicFile(file="data/consent/a.txt")
    assert (found.dynamics.model, found.normaliser) == (None, "private"), "they may differ"
    rest = params.parse(with_keys(partition__public_fraction=0.1))
    assert (rest.dynamics.model, rest.normaliser) == ("network", "public")
    both = with_keys(partition__public=listed, partition__public_fraction=0.1)
    assert "found both of public_fraction and public" in refusal(both, params.parse)


def test_nobody_is_public_where_nobody_said_so() -> None:
    """Twin: a share that the recipe has."""
    for recipe, expected in (({}, 0), ({"public_fraction": 0.3}, 0.3)):
        cook({"partition": recipe}, "datasets/csv-log.yaml")
        found = params.parse(with_keys(dataset="csv-log", partition__public_fraction=None))
        assert found.partition.public_fraction == expected


def test_a_key_that_is_empty_and_one_that_is_not_there_are_the_same() -> None:
    bare = dict.fromkeys(OPEN) | {"dataset": "csv-log", "seed": 0}
    full = with_keys(dataset="csv-log", partition__public_fraction=None)
    found = params.parse(full)
    assert params.parse(bare) == params.parse({"dataset": "csv-log"}) == found
    assert params.parse(bare).undecided == found.undecided


def test_only_what_nobody_gives_is_left_to_a_rule_and_a_rule_touches_nothing_else() -> None:
    cook({"privacy": {"rounds": 9}})
    checked = params.parse(with_keys(dynamics__hidden=[7]))
    assert checked.undecided == RULED - {"privacy.rounds", "dynamics.hidden", "dynamics.model"}
    found = checked.with_decided({"dynamics.learning_rate": 0.02, "privacy.clipping_norm": 0.7})
    assert (found.dynamics.learning_rate, found.privacy.clipping_norm) == (0.02, 0.7)
    assert (found.privacy.rounds, found.dynamics.hidden) == (9, (7,))
    origins = {"privacy.rounds": OWN, "dynamics.hidden": "params.yaml", "dynamics.model": PUBLIC}
    assert checked.origins.items() >= origins.items()
    assert {
        "dynamics.learning_rate",
        "privacy.clipping_norm",
    } == checked.undecided - found.undecided
    for key in ("privacy.rounds", "dynamics.hidden", "dynamics.batch_size"):
        assert checked.with_decided({key: 3}) == checked


def test_a_mistake_in_a_recipe_is_named_where_it_stands() -> None:
    raw = with_keys(privacy__target_epsilon=1.0)
    wrong: tuple[tuple[Any, str], ...] = (
        ({"policy": {"horizon": "auto"}}, "recipe.policy.horizon: found 'auto'"),
        ({"privacy": {"budget": {"epsilon": 3}}}, "recipe.privacy.budget.epsilon: all runs"),
        ({"dynamics": {"variant": "no_privacy"}}, "recipe.dynamics.variant: whether a run"),
        ({"dynamics": [1]}, "recipe.dynamics: a block of keys is needed"),
        ([1], "recipe: a block of keys is needed"),
    )
    for recipe, message in wrong:
        cook(recipe)
        found = refusal(raw, params.parse)
        assert found.startswith(f"{OWN}: ")
        assert message in found
        assert len(found) < 400


def test_a_misspelt_key_is_refused_where_it_is_empty_too() -> None:
    unknown = "unknown key; remove it or check its spelling"
    assert f"policy.penalti: {unknown}" in refusal(with_keys(policy__penalti=None), params.parse)
    Path("online.yaml").write_text("usrs:\n", encoding="utf-8")
    assert refusal(OPEN, params.parse) == f"online.yaml: usrs: {unknown}"
    Path("online.yaml").unlink()
    cook({"policy": {"penalti": None, "penalty": None}})
    assert refusal(OPEN, params.parse) == f"{OWN}: recipe.policy.penalti: {unknown}"
