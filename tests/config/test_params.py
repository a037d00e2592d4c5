import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.config import params
from primorl.project.errors import PipelineError
from tests.projects import ROOT, project_settings, write_settings

RAW = project_settings()
RAW["privacy"] |= {"target_epsilon": 1.0, "noise_multiplier": None}
FILE = "datasets/pendulum-replay.yaml: "
MISSING = object()


def changed(key: str, value: object, raw: dict[str, Any] = RAW) -> dict[str, Any]:
    raw = copy.deepcopy(raw)
    *path, last = key.split(".")
    block = raw
    for part in path:
        block = block[part]
    if value is MISSING:
        del block[last]
    else:
        block[last] = value
    return raw


def refusal(raw: dict[str, Any]) -> str:
    with pytest.raises(PipelineError) as raised:
        params.from_plain(raw)
    message = str(raised.value)
    assert message.startswith(("params.yaml: ", "datasets/"))
    assert "\n" not in message
    return message.removeprefix("params.yaml: ")


def leaves(block: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        name
        for key, value in block.items()
        if key != "suggested"  # the keys of other blocks, any of them
        for name in (leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"])
    ]


OWN = [key for key in leaves(RAW) if not key.startswith("chosen.") and key != "online.guarantee"]  # of older files
LISTED = [key for key in leaves(RAW) if key.startswith("chosen.") and key.count(".") == 1]


@pytest.mark.parametrize("name", params.names(ROOT / "datasets"))
def test_every_dataset_can_be_chosen(name: str) -> None:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8")) | {"dataset": name}
    checked = params.parse(raw, ROOT / "params.yaml").fitted({"policy.starts": "public"})
    assert params.from_plain(params.plain(checked)) == checked


@pytest.mark.parametrize("key", OWN)
def test_no_key_has_a_second_default_in_code(key: str) -> None:
    assert refusal(changed(key, MISSING)) == f"{key}: missing"


@pytest.mark.parametrize("key", LISTED)
def test_keys_that_dvc_follows_have_no_default(key: str) -> None:
    assert refusal(changed(key, MISSING)) == f"{FILE}{key.removeprefix('chosen.')}: missing"


@pytest.mark.parametrize("block", ["", *(key for key, value in RAW.items() if isinstance(value, dict))])
def test_an_unknown_key_is_refused_by_name(block: str) -> None:
    key = f"{block}.epsilonn".removeprefix(".")
    where = key.replace("chosen.", FILE) if block == "chosen" else key
    assert refusal(changed(key, 1)) == f"{where}: unknown key; remove it or check its spelling"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", -1, "seed: found -1; allowed is greater than or equal to 0"),
        ("seed", 0.5, "seed: found 0.5; allowed is a valid integer, got a number with a fractional part"),
        (
            "privacy.rounds",
            "atuo",
            "privacy.rounds: found 'atuo'; allowed is a valid integer, unable to parse string as an integer, or auto",
        ),
        ("seed", True, "seed: found True; a number is needed, not a truth value"),
        ("privacy", "strong", "privacy: found 'strong'; a block of keys is needed"),
        (
            "chosen.source",
            "s3",
            f"{FILE}source: found 's3'; allowed are 'replay', 'minari', 'd4rl', 'tabular', 'icu-sepsis', 'propofol'",
        ),
        ("chosen.options.hidden", 64, f"{FILE}options.hidden: found 64; a list is needed"),
        (
            "chosen.bounds.observation",
            "all",
            f"{FILE}bounds.observation: found 'all'; allowed is 'space' or 'public'",
        ),
        (
            "chosen.bounds.observation",
            {"low": [0.0, 1.0], "high": [1.0, 1.0]},
            f"{FILE}bounds.observation: low and high must have the same length, and low < high in every dimension",
        ),
        (
            "chosen.bounds.reward",
            [1.0, 0.0],
            f"{FILE}bounds.reward: found [1.0, 0.0]; must be [low, high] with low < high",
        ),
        ("chosen.score", {"low": 0.0, "high": 0.0, "scale": 1.0}, f"{FILE}score: low must be below high"),
        (
            "partition.public",
            {"column": "consent", "values": ["yes"]},
            "partition: found both of public_fraction and public; give exactly one and set the other to null or auto",
        ),
        ("partition.public", {"file": "../ids.txt"}, "leaves the project"),
        (
            "privacy.target_epsilon",
            float("inf"),
            "privacy.target_epsilon: found inf; allowed is a finite number",
        ),
        (
            "privacy.target_epsilon",
            None,
            "privacy: found neither of target_epsilon and noise_multiplier; give exactly one and set the other to null "
            "or auto",
        ),
        (
            "dynamics.variant",
            "High",
            "dynamics.variant: found 'High'; allowed is 'private', 'no_privacy', 'no_clip' or 'mopo'",
        ),
        ("dynamics.processes", 2, "dynamics.processes: unknown key; it is compute.processes, on which no charge"),
        (
            "policy.buffer_size",
            10,
            "policy: buffer_size must hold one batch of rollouts: at least rollout_batch * horizon",
        ),
        ("policy.seeds", [], "policy.seeds: found an empty list; must name at least one seed, or be null"),
        ("policy.seeds", [1, 2, 1], "policy.seeds: found 1 more than once; every seed stands once"),
        ("policy.seeds", [1, -2], "policy.seeds.1: found -2; allowed is greater than or equal to 0"),
        ("tracking", "http://ana:hush@host", "tracking: a block of keys is needed"),
        ("tracking.uri", ["http://ana:hush@host"], "tracking.uri: allowed is a valid string"),
    ],
)
def test_an_error_names_the_key_what_was_found_and_what_is_allowed(key: str, value: object, message: str) -> None:
    found = refusal(changed(key, value))
    assert found == message or (message in found and found.startswith(key))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("privacy.noise_multiplier", 1e308),
        ("privacy.clipping_norm", 1e300),
        ("privacy.clipping_norm", 1e-300),
        ("privacy.rounds", 10**12),
        ("dynamics.hidden", [10**9]),
        ("dynamics.hidden", [8] * 17),
        ("dynamics.ensemble_size", 10**12),
        ("dynamics.learning_rate", 1e200),
        ("policy.buffer_size", 10**15),
        ("policy.seeds", list(range(1001))),
        ("chosen.horizon", 10**12),
        ("chosen.bounds.reward", [-1e300, 1e300]),
        ("partition.salt", "\ud800"),
        ("seed", 10**5000),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_what_no_machine_could_train_is_refused_when_it_is_read(key: str, value: object) -> None:
    raw = changed(key, value)
    if key == "privacy.noise_multiplier":
        raw["privacy"]["target_epsilon"] = None
    message = refusal(raw)
    assert key.removeprefix("chosen.") in message
    assert len(message) < 250


def test_a_long_key_and_many_wrong_values_are_not_echoed_whole() -> None:
    assert len(refusal(changed("policy", {"x" * 5_000_000: 1} | RAW["policy"]))) < 400
    message = refusal(changed("policy.seeds", [-1] * 1000))
    assert message.endswith("and 990 more")
    assert len(message) < 1000


@pytest.mark.parametrize("key", leaves(RAW))
def test_every_number_has_bounds(key: str) -> None:
    value: Any = RAW
    for part in key.split("."):
        value = value[part]
    if isinstance(value, int | float) and not isinstance(value, bool):
        for far in (10**20, -(10**20)):
            assert key.removeprefix("chosen.") in refusal(changed(key, far))


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("abc ", max_size=5) | st.lists(st.integers())
)


@given(st.sampled_from(leaves(RAW)), ANYTHING)
@settings(max_examples=300)
def test_any_value_is_taken_or_refused_in_one_line_that_names_a_key_of_the_file(key: str, value: object) -> None:
    try:
        params.from_plain(changed(key, value))
    except PipelineError as refused:
        message = str(refused)
        assert "\n" not in message
        assert key.removeprefix("chosen.").partition(".")[0] in message
        assert "pydantic" not in message


def stage(cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pipeline.evaluate", *arguments]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "DVC_ROOT": str(cwd)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_a_stage_says_what_is_wrong_in_one_line_and_fails(tmp_path: Path) -> None:
    write_settings(RAW, tmp_path)
    content = {key: value for key, value in changed("policy.horizon", 0).items() if key != "chosen"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    wrong = stage(tmp_path)
    assert wrong.returncode == 1
    assert wrong.stderr == "error: params.yaml: policy.horizon: found 0; allowed is greater than 0\n"

    shown = stage(tmp_path, "--debug")
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
    assert shown.stderr.splitlines()[-1] == wrong.stderr.strip()


@pytest.mark.parametrize("path", ["../elsewhere", "a/../../b", "link/b"])
def test_relative_paths_stay_in_the_project(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "link").symlink_to(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(project)
    for change in (
        {"ledger": {"url": f"sqlite:///{path}"}},
        {"tracking": {"uri": path, "experiment": "e"}},
        {"tracking": {"uri": f"file:{path}", "experiment": "e"}},
        {"tracking": {"uri": f"sqlite:///{path}?timeout=3", "experiment": "e"}},
    ):
        with pytest.raises(PipelineError, match="leaves the project; allowed are paths within it") as refused:
            params.from_plain(copy.deepcopy(RAW) | change)
        assert path not in str(refused.value), "a store's address is never quoted"
    minari = copy.deepcopy(RAW)
    minari["chosen"] |= {"source": "minari", "options": {"id": "x-v0", "root": path}}
    with pytest.raises(PipelineError, match=r"yaml: options.root: found .*leaves the project"):
        params.from_plain(minari)
    for fine in ("inside/x", "/absolute/../x", "a/../b"):
        params.from_plain(copy.deepcopy(RAW) | {"ledger": {"url": f"sqlite:///{fine}"}})


def test_commands_that_only_read_need_no_valid_run(tmp_path: Path) -> None:
    raw = changed("privacy.noise_multiplier", 4.0)  # both are given
    raw["policy"] = "broken"
    raw["privacy"]["budget"]["epsilon"] = 3.0
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    reading = params.load_reading(tmp_path / "params.yaml")
    assert (reading.dataset, reading.ledger.url, reading.privacy.budget.epsilon) == ("pendulum-replay", None, 3.0)
    raw["privacy"]["budget"]["epsilon"] = -3.0
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(PipelineError, match=r"params.yaml: privacy.budget.epsilon: found -3.0; "):
        params.load_reading(tmp_path / "params.yaml")
