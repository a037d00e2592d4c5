"""What dvc.yaml must say: private data has one door, and every stage names what its results depend on."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from primorl.config.params import Params, names
from primorl.config.suggestions import leaves

ROOT = Path(__file__).resolve().parent.parent
STAGES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
DATASET = "datasets/${dataset}.yaml"
DEFAULTS = "datasets/defaults.yaml"

PRIVATE = (
    "data/raw",
    "data/trajectories",
    "data/partitions/private",
    "data/partitions/units.bin",
    "data/partitions/public_units.bin",
    "models/mopo",
)
BEFORE_THE_SPLIT = {"collect", "ingest", "partition"}
DOORS = {"train_model", "clone_behaviour", "optimize_mopo", "evaluate_private", "online"}
"""`online` meets people instead of reading the partition."""
RELEASED = (
    "models/dynamics",
    "models/behaviour",
    "models/policy",
    "data/partitions/public",
    "data/partitions/manifest.json",
    "metrics/seconds",
    "metrics/summary.json",
    "metrics/private_evaluation.json",
    "plots/curves.csv",
)
# These change how a stage runs, speaks and is recorded, not what it computes: whole rooms, and a few modules.
EDGES = (
    "primorl.config",
    "primorl.project",
    "primorl.tracking",
    "primorl.privacy.ledger",
    "primorl.setup.accounts",
    "primorl.setup.compute",
    "primorl.setup.compute",
    "primorl.setup.next_charges",  # refuses
    "primorl.setup.public_checks",  # refuses and warns
    "pipeline.runner",
)
BY_FILE = ("primorl.setup.policy_fitting", "primorl.setup.policy_results")
"""Beside paid work, in the same room, and no part of it: an edit of paid work must not train a policy again."""
CODE = ("pipeline/", "primorl/")
EDGE_PARAMS = {"compute", "tracking", "ledger", "origins"}
EDGE_KEYS = ("privacy.budget",)  # what may be spent, not what is trained
ALONE = ("privacy.budget.", "privacy.draw.", "evaluation.private.draw.", "dynamics.variant.", "partition.public.")
METHODS = {"of", "entropy_of"}


def outputs(stage: str) -> dict[str, dict[str, Any]]:
    everything = [*STAGES[stage].get("outs", []), *STAGES[stage].get("metrics", []), *STAGES[stage].get("plots", [])]
    return {
        name: flags
        for output in everything
        for name, flags in ({output: {}} if isinstance(output, str) else output).items()
    }


def listed(stage: str) -> Iterator[tuple[str, str]]:
    for entry in STAGES[stage].get("params", []):
        for file, keys in ({"params.yaml": [entry]} if isinstance(entry, str) else entry).items():
            yield from ((file, key) for key in keys)


def follows(stage: str, file: str, key: str) -> bool:
    return file in STAGES[stage]["deps"] or any(
        other == file and (not key or f"{key}.".startswith(f"{mine}.") or mine.startswith(f"{key}."))
        for other, mine in listed(stage)
    )


def touches(path: str, other: str) -> bool:
    a, b = PurePosixPath(path), PurePosixPath(other)
    return a.is_relative_to(b) or b.is_relative_to(a)


def within(path: str, folders: list[str] | tuple[str, ...]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def data_deps(stage: str) -> list[str]:
    return [dep for dep in STAGES[stage].get("deps", []) if not dep.startswith(CODE) and dep != DATASET]


def test_the_stages_are_the_ones_this_file_knows() -> None:
    assert set(STAGES) == BEFORE_THE_SPLIT | DOORS | {"optimize_policy", "evaluate", "report"}


@pytest.mark.parametrize("stage", sorted(set(STAGES) - BEFORE_THE_SPLIT - DOORS))
def test_only_the_doors_depend_on_private_data(stage: str) -> None:
    for dep in data_deps(stage):
        if stage == "evaluate" and dep == "models/mopo":  # the non-private baseline's policy, and said to be
            continue
        assert not any(touches(dep, private) for private in PRIVATE), f"{stage} depends on {dep}"
        assert within(dep, RELEASED), f"{stage} depends on {dep}, which nothing released"


def test_evaluation_reads_only_released_things() -> None:
    assert [dep for dep in data_deps("evaluate") if not within(dep, RELEASED)] == ["models/mopo"]


@pytest.mark.parametrize("stage", STAGES)
def test_private_outputs_stay_off_remotes_and_every_run_can_come_back(stage: str) -> None:
    for output, flags in outputs(stage).items():
        assert "persist" not in flags, f"{stage}: {output}"
        private = any(touches(output, place) for place in PRIVATE)
        assert (flags.get("push") is False) == private, f"{stage}: {output}: push"


def test_every_data_dependency_is_an_output_of_another_stage() -> None:
    made = {output: stage for stage in STAGES for output in outputs(stage)}
    for stage in STAGES:
        for dep in data_deps(stage):
            if dep in ("data/withdrawals", "data/consent", "data/arrivals"):
                continue  # the user's: who is to be left out, who is public, and who comes online
            assert dep in made, f"{stage} depends on {dep}, which no stage makes"
            assert made[dep] != stage


def test_git_sees_no_output() -> None:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines() if line]
    for stage in STAGES:
        for output in outputs(stage):
            assert within(output, ignored), f"{output} is not in .gitignore"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_the_rooms_whose_code_it_runs_and_on_no_other(stage: str) -> None:
    assert STAGES[stage]["cmd"] == f"python -m pipeline.{stage}"
    listed = {dep for dep in STAGES[stage]["deps"] if dep.startswith(CODE)}
    simulators = {"primorl/simulators"}  # environments are built by their ids
    assert listed - simulators == code(stage) - simulators


def test_few_files_of_code_are_named() -> None:
    named = [dep for stage in STAGES.values() for dep in stage["deps"] if dep.endswith(".py")]
    assert len(named) <= 20


def test_editing_the_private_engine_does_not_train_the_policy_again() -> None:
    for stage in ("optimize_policy", "evaluate"):
        for paid in ("primorl/training", "primorl/setup/paid_training.py"):
            assert not any(touches(dep, paid) for dep in STAGES[stage]["deps"])


def test_the_params_that_stages_list_exist_for_every_dataset() -> None:
    for dataset in names(ROOT / "datasets"):
        for file, key in {each for stage in STAGES for each in listed(stage)}:
            value = settings_of(file.replace("${dataset}", dataset))
            for part in key.split("."):
                assert part in value, f"{key} of {file}"
                value = value[part]


@cache
def settings_of(file: str) -> Any:
    return yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_the_params_it_reads(stage: str) -> None:
    modules = [
        f"pipeline.{stage}",
        *(m for m in reached(f"pipeline.{stage}") if m.startswith(("pipeline.", "primorl.setup."))),
    ]
    for file, key in {read for module in modules for read in params_read(module)}:
        if key == "dataset" and any(file == DATASET for file, _ in listed(stage)):
            continue  # another dataset is another file
        assert follows(stage, file, key), f"{stage} reads {key} of {file}, which is not among its params"


def test_an_edit_of_the_cards_texts_makes_the_report_again_and_nothing_else() -> None:
    assert [stage for stage in STAGES if follows(stage, DATASET, "card")] == ["report"]
    assert [stage for stage in STAGES if DATASET in STAGES[stage]["deps"]] == ["report"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_follows_what_may_be_suggested_for_what_it_reads(stage: str) -> None:
    for file, key in listed(stage):
        if file == "params.yaml" and any(f"{leaf}.".startswith(f"{key}.") for leaf in suggestible()):
            assert follows(stage, DATASET, f"suggested.{key}"), f"{stage} does not follow suggestions for {key}"
            assert follows(stage, DEFAULTS, key), f"{stage} does not follow the default of {key}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_follows_no_suggestion_that_it_does_not_read(stage: str) -> None:
    for file, key in listed(stage):
        block = key.removeprefix("suggested.") if file == DATASET and key.startswith("suggested.") else key
        if file == DEFAULTS or block != key:
            own = {name for where, name in listed(stage) if where == "params.yaml"}
            assert any(name == block or name.startswith(f"{block}.") for name in own), f"{stage} follows {key}"


def test_a_stage_that_reads_the_variant_alone_does_not_follow_how_a_model_is_trained() -> None:
    assert "dynamics.variant" not in suggestible()
    for stage in ("optimize_policy", "optimize_mopo", "evaluate"):
        assert follows(stage, "params.yaml", "dynamics.variant")
        assert not follows(stage, DATASET, "suggested.dynamics.learning_rate")
        assert not follows(stage, "params.yaml", "dynamics.learning_rate")


def suggestible() -> set[str]:
    return {key for key in leaves() if not f"{key}.".startswith(ALONE)}


def test_the_analysis_sees_what_a_stage_reads() -> None:
    assert {
        ("params.yaml", "dataset"),
        ("params.yaml", "seed"),
        ("params.yaml", "evaluation"),
        ("params.yaml", "dynamics.variant"),
        (DATASET, "environment"),
    } <= params_read("primorl.setup.policy_results")
    assert {"primorl.evaluation.returns", "primorl.policy.exported"} <= reached("pipeline.evaluate")


def code(stage: str) -> set[str]:
    rooms = {room(module) for module in reached(f"pipeline.{stage}")}
    outer = {one for one in rooms if not any(one != other and within(one, [other]) for other in rooms)}
    return outer | {f"pipeline/{stage}.py"}


def room(module: str) -> str:
    if module in BY_FILE:
        return f"{module.replace('.', '/')}.py"
    parts = module.split(".")
    file = source(module)
    assert file is not None
    depth = len(parts) if file.name == "__init__.py" else len(parts) - 1
    return "/".join(parts[: min(depth, 3)])


@cache
def reached(module: str) -> frozenset[str]:
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for name in imported(waiting.pop()) - seen - {module}:
            seen.add(name)
            waiting.append(name)
    return frozenset(seen)


@cache
def imported(module: str) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{module}: a relative import"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    packages = {parent for name in names for parent in (name.rpartition(".")[0],) if parent}
    return frozenset(
        name
        for name in names | packages
        if name.partition(".")[0] in ("pipeline", "primorl") and source(name) and not idle(name) and not edge(name)
    )


def edge(module: str) -> bool:
    return module in ("primorl", "pipeline") or any(f"{module}.".startswith(f"{room}.") for room in EDGES)


def source(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


@cache
def tree(module: str) -> ast.Module:
    file = source(module)
    assert file is not None, module
    return ast.parse(file.read_text(encoding="utf-8"))


def idle(module: str) -> bool:
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree(module).body)


def params_read(module: str) -> set[tuple[str, str]]:
    return {chain for node in ast.walk(tree(module)) if (chain := attribute_chain(node))}


def attribute_chain(node: ast.AST) -> tuple[str, str] | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not (isinstance(node, ast.Name) and node.id == "params" and parts):
        return None
    if parts[0] == "chosen":
        return DATASET, "".join(parts[1:2])
    if parts[0] not in {field.name for field in fields(Params)} or parts[0] in EDGE_PARAMS:
        return None
    key = ".".join(part for part in parts if part not in METHODS)
    return None if f"{key}.".startswith(tuple(f"{edge}." for edge in EDGE_KEYS)) else ("params.yaml", key)


if __name__ == "__main__":
    for each in STAGES:
        print(each, *sorted(code(each)), sep="\n      - ")
