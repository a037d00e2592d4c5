import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from primorl.config import params
from primorl.config.datasets import Score
from primorl.project.errors import PipelineError

REPOSITORY = Path(__file__).resolve().parents[2]
RAW: dict[str, Any] = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
ONE_OF_EACH_SOURCE = {entry["source"]: name for name, entry in reversed(RAW["datasets"].items())}
RAW["datasets"] = {name: RAW["datasets"][name] for name in ONE_OF_EACH_SOURCE.values()}
RAW["privacy"] |= {"target_epsilon": 1.0, "noise_multiplier": None}
DATASET = "datasets.pendulum-replay"
MISSING = object()


def changed(key: str, value: object) -> dict[str, Any]:
    """The project's params.yaml with one key set, or removed."""
    raw = copy.deepcopy(RAW)
    *path, last = key.split(".")
    block = raw
    for part in path:
        block = block[part]
    if value is MISSING:
        del block[last]
    else:
        block[last] = value
    return raw


def refusal(raw: object) -> str:
    with pytest.raises(PipelineError) as raised:
        params.parse(raw)
    message = str(raised.value)
    assert message.startswith("params.yaml: ")
    assert "\n" not in message
    return message.removeprefix("params.yaml: ")


def leaves(block: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        name
        for key, value in block.items()
        if key != "settings"  # the keys of the blocks below, any of them
        for name in (leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"])
    ]


def test_the_projects_own_file_is_right_and_frozen() -> None:
    checked = params.load(REPOSITORY / "params.yaml")
    assert checked.chosen is checked.datasets[checked.dataset]
    with pytest.raises(ValueError, match="frozen"):
        checked.seed = 1


@pytest.mark.parametrize("key", leaves(RAW))
def test_no_key_has_a_second_default_in_code(key: str) -> None:
    assert refusal(changed(key, MISSING)) == f"{key}: missing"


@pytest.mark.parametrize("key", leaves(RAW))
def test_a_block_in_place_of_a_value_is_refused_by_name(key: str) -> None:
    assert key in refusal(changed(key, {"nested": 1}))


@pytest.mark.parametrize(
    "block", ["", *(key for key, value in RAW.items() if isinstance(value, dict) and key != "datasets")]
)
def test_an_unknown_key_is_refused_by_name(block: str) -> None:
    key = f"{block}.epsilonn".removeprefix(".")
    assert refusal(changed(key, 1)) == f"{key}: unknown key; remove it or check its spelling"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "dataset",
            "halfcheetah",
            f"dataset: found 'halfcheetah', allowed are the entries of datasets: {sorted(RAW['datasets'])}",
        ),
        ("dataset", 3, "dataset: found 3; input should be a valid string"),
        ("dataset", "../x", "dataset: found '../x'; string should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$'"),
        ("seed", -1, "seed: found -1; input should be greater than or equal to 0"),
        ("seed", 2**31, "seed: found 2147483648; input should be less than 2147483648"),
        ("seed", 0.5, "seed: found 0.5; input should be a valid integer, got a number with a fractional part"),
        ("seed", True, "seed: found True; a number is needed, not a truth value"),
        ("privacy.target_epsilon", True, "privacy.target_epsilon: found True; a number is needed, not a truth value"),
        ("datasets", [], "datasets: a block of keys is needed"),
        ("privacy", "strong", "privacy: found 'strong'; a block of keys is needed"),
        (DATASET, 3, f"{DATASET}: found 3; a block of keys is needed"),
        (
            f"{DATASET}.source",
            "s3",
            f"{DATASET}.source: found 's3'; allowed are "
            "'replay', 'minari', 'd4rl', 'tabular', 'icu-sepsis', 'propofol'",
        ),
        (f"{DATASET}.options.episodes", 0, f"{DATASET}.options.episodes: found 0; input should be greater than 0"),
        (f"{DATASET}.options.hidden", 64, f"{DATASET}.options.hidden: found 64; a list is needed"),
        (f"{DATASET}.options.hidden", [64, 0], f"{DATASET}.options.hidden.1: found 0; input should be greater than 0"),
        (
            f"{DATASET}.bounds.observation",
            "all",
            f"{DATASET}.bounds.observation: found 'all'; input should be 'space' or 'public'",
        ),
        (
            f"{DATASET}.bounds.observation",
            {"low": [0.0, 1.0], "high": [1.0, 1.0]},
            f"{DATASET}.bounds.observation: low and high must have the same length, and low < high in every dimension",
        ),
        (f"{DATASET}.bounds.observation", {"low": [0.0]}, f"{DATASET}.bounds.observation.high: missing"),
        (
            f"{DATASET}.bounds.reward",
            [1.0, 0.0],
            f"{DATASET}.bounds.reward: found [1.0, 0.0]; must be [low, high] with low < high",
        ),
        (f"{DATASET}.score", {"low": 0.0, "high": 0.0, "scale": 1.0}, f"{DATASET}.score: low must be below high"),
        (
            "partition.public_fraction",
            -0.1,
            "partition.public_fraction: found -0.1; input should be greater than or equal to 0",
        ),
        ("privacy.delta", 1.0, "privacy.delta: found 1.0; input should be less than 1"),
        (
            "privacy.target_epsilon",
            float("inf"),
            "privacy.target_epsilon: found inf; input should be a finite number",
        ),
        (
            "privacy.target_epsilon",
            None,
            "privacy: found neither of target_epsilon and noise_multiplier; give exactly one and set the other to null",
        ),
        (
            "privacy.noise_multiplier",
            4.0,
            "privacy: found both of target_epsilon and noise_multiplier; give exactly one and set the other to null",
        ),
        (
            "dynamics.variant",
            "High",
            "dynamics.variant: found 'High'; input should be 'private', 'no_privacy', 'no_clip' or 'mopo'",
        ),
        ("dynamics.ensemble_size", 1, "dynamics.ensemble_size: found 1; input should be greater than or equal to 2"),
        (
            "dynamics.log_variance_bounds",
            [0.5, -10],
            "dynamics.log_variance_bounds: found [0.5, -10.0]; must be [low, high] with low < high",
        ),
        (
            "policy.buffer_size",
            10,
            "policy: buffer_size must hold one batch of rollouts: at least rollout_batch * horizon",
        ),
        ("policy.seeds", [], "policy.seeds: found an empty list; must name at least one seed, or be null"),
        ("policy.seeds", [1, 2, 1], "policy.seeds: found 1 more than once; every seed stands once"),
        ("policy.seeds", [1, -2], "policy.seeds.1: found -2; input should be greater than or equal to 0"),
        ("policy.discount", float("nan"), "policy.discount: found nan; input should be less than 1"),
        ("tracking", "http://ana:hush@host", "tracking: a block of keys is needed"),
        ("tracking.uri", ["http://ana:hush@host"], "tracking.uri: input should be a valid string"),
    ],
)
def test_an_error_names_the_key_what_was_found_and_what_is_allowed(key: str, value: object, message: str) -> None:
    assert refusal(changed(key, value)) == message


def test_every_wrong_key_is_named_at_once() -> None:
    raw = changed("privacy.delta", 2)
    raw["policy"]["horizon"] = 0
    assert refusal(raw) == (
        "privacy.delta: found 2; input should be less than 1; policy.horizon: found 0; input should be greater than 0"
    )


@pytest.mark.parametrize("raw", [None, [], "text", 3])
def test_a_file_that_is_no_block_of_keys_is_refused(raw: object) -> None:
    assert refusal(raw) == "a block of keys is needed"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed: [1", ", line 1: not valid YAML"),
        (b"seed: 1\n\tx: 2", ", line 2: not valid YAML"),
        (b"\xff\xff", ": not valid YAML"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "params.yaml").write_bytes(content)
    with pytest.raises(PipelineError) as raised:
        params.load(tmp_path / "params.yaml")
    assert str(raised.value) == f"{tmp_path / 'params.yaml'}{message}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"params\.yaml: not there"):
        params.load(tmp_path / "params.yaml")


def test_numbers_as_yaml_dialects_write_them_are_read() -> None:
    checked = params.parse(changed("privacy.delta", "1e-6"))  # YAML 1.1 takes 1e-6 for text, YAML 1.2 for a number
    assert checked.privacy.delta == 1e-6


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("abc ", max_size=5) | st.lists(st.integers())
)


@given(st.sampled_from(leaves(RAW)), ANYTHING)
@settings(max_examples=300)
def test_any_value_is_taken_or_refused_in_one_line_that_names_a_key_of_the_file(key: str, value: object) -> None:
    try:
        params.parse(changed(key, value))
    except PipelineError as refused:
        message = str(refused)
        assert "\n" not in message
        assert key.partition(".")[0] in message
        assert "pydantic" not in message


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(1e-3, 1e3), st.floats(0, 1, allow_subnormal=False))
def test_scores_are_linear_between_low_and_high(low: float, width: float, scale: float, share: float) -> None:
    score = Score(low=low, high=low + width, scale=scale)
    assert score.of(low) == 0
    assert score.of(score.high) == pytest.approx(scale)
    assert score.of(low + share * (score.high - low)) == pytest.approx(share * scale, abs=1e-3 * scale)


def stage(cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pipeline.evaluate", *arguments]
    environment = {"PATH": "", "PYTHONPATH": str(REPOSITORY), "DVC_ROOT": str(cwd)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_a_stage_says_what_is_wrong_in_one_line_and_fails(tmp_path: Path) -> None:
    missing = stage(tmp_path)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "error: params.yaml: not there; every choice lives in this file\n"

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(changed("policy.horizon", 0)), encoding="utf-8")
    wrong = stage(tmp_path)
    assert wrong.returncode == 1
    assert wrong.stderr == "error: params.yaml: policy.horizon: found 0; input should be greater than 0\n"

    shown = stage(tmp_path, "--debug")
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
    assert shown.stderr.splitlines()[-1] == wrong.stderr.strip()


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    """YAML would let the last one win in silence: a second `privacy:` block could undo the first."""
    file = tmp_path / "params.yaml"
    text = (REPOSITORY / "params.yaml").read_text(encoding="utf-8")
    file.write_text(text + "\nseed: 7\n", encoding="utf-8")
    with pytest.raises(PipelineError, match=r"params.yaml, line \d+: key 'seed' given twice"):
        params.load(file)
    file.write_text(text.replace("  delta: 1.0e-5\n", "  delta: 1.0e-5\n  delta: 0.5\n"), encoding="utf-8")
    with pytest.raises(PipelineError, match="key 'delta' given twice"):
        params.load(file)


def test_loading_executes_nothing(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(f"seed: !!python/object/apply:os.mkdir ['{tmp_path}/made']", encoding="utf-8")
    with pytest.raises(PipelineError, match="not valid YAML"):
        params.load(tmp_path / "params.yaml")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("path", ["../elsewhere", "a/../../b", "link/b"])
def test_relative_paths_stay_in_the_project(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through a link; an absolute path is taken to be meant."""
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
            params.parse(copy.deepcopy(RAW) | change)
        assert path not in str(refused.value), "a store's address is never quoted"
    minari = copy.deepcopy(RAW)
    minari["datasets"]["local"] = minari["datasets"]["pendulum-replay"] | {
        "source": "minari",
        "options": {"id": "x-v0", "root": path},
    }
    with pytest.raises(PipelineError, match=r"datasets.local.options.root: found .*leaves the project"):
        params.parse(minari)
    for fine in ("inside/x", "/absolute/../x", "a/../b"):
        params.parse(copy.deepcopy(RAW) | {"ledger": {"url": f"sqlite:///{fine}"}})


def test_a_datasets_settings_lie_over_the_blocks() -> None:
    """Swapping `dataset:` brings the settings it was measured with; the other datasets' change nothing."""
    raw = copy.deepcopy(RAW)
    raw["datasets"]["other"] = copy.deepcopy(raw["datasets"]["pendulum-replay"])
    raw["datasets"]["other"]["settings"] |= {
        "dynamics": {"hidden": [7], "early_stopping": {"every": 3}},
        "privacy": {"target_epsilon": None, "noise_multiplier": 4.0},
    }
    plain = params.parse(raw)
    raw["dataset"] = "other"
    laid = params.parse(raw)
    assert (laid.dynamics.hidden, laid.dynamics.early_stopping.every) == ((7,), 3)
    assert laid.dynamics.early_stopping.patience == plain.dynamics.early_stopping.patience
    assert (laid.privacy.target_epsilon, laid.privacy.noise_multiplier) == (None, 4.0)
    assert laid.policy == plain.policy
    assert plain.dynamics.hidden != (7,)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dynamics": {"hiden": [7]}}, "datasets.pendulum-replay.settings.dynamics.hiden: unknown key"),
        ({"dynamics": {"processes": 2}}, "settings.dynamics.processes: unknown key; it is compute.processes, on which"),
        ({"policy": {"horizon": 0}}, "datasets.pendulum-replay.settings.policy.horizon: found 0; "),
        ({"privacy": {"budget": {"epsilon": 3}}}, "budget: one for all datasets; set it in the block privacy"),
        ({"ledger": {}}, "datasets.pendulum-replay.settings.ledger: unknown key"),
        ({"dynamics": [1]}, "datasets.pendulum-replay.settings.dynamics: "),
    ],
)
def test_wrong_settings_are_named_where_they_stand(wrong: dict[str, Any], message: str) -> None:
    raw = copy.deepcopy(RAW)
    raw["datasets"]["pendulum-replay"]["settings"] |= wrong
    with pytest.raises(PipelineError, match=re.escape(message)):
        params.parse(raw)


@pytest.mark.parametrize("source", ["replay", "d4rl", "icu-sepsis", "propofol"])
def test_a_source_without_owners_has_no_other_unit_than_the_trajectory(source: str) -> None:
    """The statement would speak of persons while trajectories are sampled, clipped and counted."""
    key = f"datasets.{ONE_OF_EACH_SOURCE[source]}.unit"
    assert refusal(changed(key, "person")).startswith(f"{key}: found 'person'; input should be 'trajectory'")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "csv-log"}, None),
        ({"dataset": "csv-log", "policy.starts": "reset"}, "found 'reset', while datasets.csv-log.environment is null"),
        (
            {"policy.starts": "public", "partition.public_fraction": 0},
            "found 'public', while partition.public_fraction",
        ),
        ({"policy.starts": "released"}, "found 'released', while privacy.statistics.starts is false"),
        ({"policy.starts": "released", "privacy.statistics.starts": True}, None),
        ({"policy.starts": "released", "dynamics.variant": "mopo"}, None),
    ],
)
def test_where_rollouts_begin_is_settled_before_anything_is_paid_for(
    changes: dict[str, Any], message: str | None
) -> None:
    raw = copy.deepcopy(RAW)
    raw["datasets"]["csv-log"]["settings"]["policy"] = {"starts": changes.get("policy.starts", "public")}
    for key, value in changes.items():
        *path, last = key.split(".")
        block = raw
        for part in path:
            block = block[part]
        block[last] = value
    if message is None:
        params.parse(raw)
    else:
        assert message in refusal(raw)
