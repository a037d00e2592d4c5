"""Check dvc.yaml: only stages that pay read private data, and every stage names what its results
depend on.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import grimp
import pytest
import yaml

from primorl.config.params import BLOCKS, Params
from primorl.work.desk import ALLOWED_STAGES
from primorl.work.jobs import RunPlan
from tests.projects import ROOT


@cache
def content(file: str) -> Any:
    return yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))


STAGES: dict[str, dict[str, Any]] = content("dvc.yaml")["stages"]
DATASET, PLAN = "datasets/${dataset}.yaml", "data/plan.json"
PRIVATE = (
    *("data/raw", "data/trajectories", "data/partitions/private"),
    *("data/partitions/units.bin", "data/partitions/public_units.bin"),
)
KEYED = ("data/partitions/units.bin", "data/partitions/public_units.bin")
"""Keyed digests of ids and rows: whose work a job is."""
BEFORE_THE_SPLIT = {"collect", "ingest", "partition"}
# `online` meets people instead of reading the partition; select is no stage
PAYING = {*ALLOWED_STAGES, "online"} - {"select"}
RELEASED = (
    *("models/dynamics", "models/behaviour", "models/policy"),
    *("data/partitions/public", "data/partitions/manifest.json", "plots/curves.csv"),
    *("metrics/stages", "metrics/summary.json", "metrics/private_evaluation.json"),
)
# These change how a stage runs, speaks and is recorded, not what it computes: whole rooms, and a
# few modules.
EDGES = (
    "primorl.config",
    "primorl.base",
    "primorl.tracking",
    "primorl.privacy.ledger",
    "pipeline.runner",
    *("primorl.work.data", "primorl.work.desk"),
    "primorl.work.bill",  # which foretells
)
BY_FILE = ("primorl.stages.", "primorl.run")
"""A module a stage: an edit of one must not run another again."""
CODE, PAID = ("pipeline/", "primorl/"), ("primorl.work.", "primorl.stages.")
READ = {field.name for field in fields(Params)} - {
    "compute",
    "tracking",
    "ledger",
    "origins",
    "online",
}
RECIPE = {*BLOCKS}
PLANNED = {
    "dynamics.variant": "model.variant",
    "privacy.delta": "model.mechanism.delta",
    "policy": "policy",
}
"""Keys whose values the stages after `plan` follow in its file."""
METHODS = {"of", "entropy_of"}


def outputs(stage: str) -> dict[str, dict[str, Any]]:
    entries = [
        entry for kind in ("outs", "metrics", "plots") for entry in STAGES[stage].get(kind, [])
    ]
    return dict(
        item
        for entry in entries
        for item in ({entry: {}} if isinstance(entry, str) else entry).items()
    )


def listed(stage: str) -> Iterator[tuple[str, str]]:
    for entry in STAGES[stage].get("params", []):
        for file, keys in ({"params.yaml": [entry]} if isinstance(entry, str) else entry).items():
            yield from ((file, key) for key in keys or ())  # none: the whole file


def follows(stage: str, file: str, key: str) -> bool:
    return file in STAGES[stage]["deps"] or any(
        other == file
        and (not key or f"{key}.".startswith(f"{mine}.") or mine.startswith(f"{key}."))
        for other, mine in listed(stage)
    )


def within(path: str, folders: Collection[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def is_private(path: str) -> bool:
    return within(path, PRIVATE) or any(within(private, [path]) for private in PRIVATE)


def test_only_the_doors_depend_on_private_data_and_private_outputs_stay_off_remotes() -> None:
    made = {output: stage for stage in STAGES for output in outputs(stage)}
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    ignored = [line.strip("/") for line in lines if line]
    others = {"plan", "optimize_policy", "evaluate", "report"}
    assert set(STAGES) == BEFORE_THE_SPLIT | PAYING | others
    for stage in STAGES:
        for dep in STAGES[stage].get("deps", []):
            if dep.startswith(CODE) or dep == DATASET:
                continue
            if dep not in ("data/withdrawals", "data/consent"):  # the user's
                assert made[dep] != stage
            if stage == "plan" and dep in KEYED:
                continue
            if stage not in BEFORE_THE_SPLIT | PAYING:
                assert within(dep, RELEASED), f"{stage} depends on {dep}, which nothing released"
                assert not is_private(dep), f"{stage} depends on {dep}"
        for output, flags in outputs(stage).items():
            assert within(output, ignored), f"{output} is not in .gitignore"
            assert "persist" not in flags, f"{stage}: {output}"
            assert (flags.get("push") is False) == is_private(output), f"{stage}: {output}: push"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_the_rooms_whose_code_it_runs_and_on_no_other(stage: str) -> None:
    assert STAGES[stage]["cmd"] == f"python -m pipeline.{stage}"
    found = {dep for dep in STAGES[stage]["deps"] if dep.startswith(CODE)}
    simulators = {"primorl/simulators"}  # environments are built by their ids
    assert found - simulators == code(stage) - simulators


def test_an_edit_makes_no_more_stages_run_again_than_it_must() -> None:
    deps = [dep for stage in STAGES.values() for dep in stage["deps"]]
    assert sum(dep.endswith(".py") for dep in deps) <= 20
    for stage in ("optimize_policy", "evaluate"):
        for paid in ("primorl/engine", "primorl/stages/training.py"):
            assert not any(
                within(dep, [paid]) or within(paid, [dep]) for dep in STAGES[stage]["deps"]
            )
    assert [stage for stage in STAGES if follows(stage, DATASET, "card")] == ["report"]
    assert [stage for stage in STAGES if DATASET in STAGES[stage]["deps"]] == ["report"]
    for stage in ("optimize_policy", "evaluate"):
        assert follows(stage, PLAN, "model.variant")
        assert not follows(stage, "params.yaml", "dynamics.learning_rate")
        assert not follows(stage, PLAN, "model.local.learning_rate")


def test_the_params_that_stages_list_exist_for_every_dataset() -> None:
    for dataset in (each.stem for each in (ROOT / "datasets").glob("*.yaml")):
        for file, key in {each for stage in STAGES for each in listed(stage)}:
            if file == "data/plan.json":  # which a stage makes
                assert key.partition(".")[0] in {field.name for field in fields(RunPlan)}
                continue
            value = content(file.replace("${dataset}", dataset))
            for part in key.split("."):
                assert part in value, f"{key} of {file}"
                value = value[part]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_follows_the_params_it_reads_and_the_recipe_for_them(
    stage: str,
) -> None:
    modules = {f"pipeline.{stage}"} | {
        m for m in reached(f"pipeline.{stage}") if m.startswith(("pipeline.", *PAID))
    }
    for file, key in {read for module in modules for read in params_read(module)}:
        if key == "dataset" and any(file == DATASET for file, _ in listed(stage)):
            continue  # another dataset is another file
        planned = next(
            (PLANNED[mine] for mine in PLANNED if f"{key}.".startswith(f"{mine}.")), None
        )
        followed = follows(stage, file, key) or (planned and follows(stage, PLAN, planned))
        assert followed, f"{stage} reads {key} of {file}"
    blocks = {key.partition(".")[0] for file, key in listed(stage) if file == "params.yaml"}
    if blocks & RECIPE:
        assert follows(stage, DATASET, "recipe"), f"{stage}: {blocks & RECIPE} of the recipe"


def test_the_analysis_sees_what_a_stage_reads() -> None:
    keys = {("params.yaml", "evaluation"), ("params.yaml", "dynamics.variant")}
    assert keys | {(DATASET, "environment")} <= params_read("pipeline.evaluate")
    assert "primorl.policy.exported" in reached("pipeline.evaluate")


def code(stage: str) -> set[str]:
    rooms = {room(module) for module in reached(f"pipeline.{stage}")}
    outer = {
        one for one in rooms if not any(one != other and within(one, [other]) for other in rooms)
    }
    return outer | {f"pipeline/{stage}.py"}


def room(module: str) -> str:
    file = source(module).relative_to(ROOT)
    return file.as_posix() if module.startswith(BY_FILE) else "/".join(file.parent.parts[:3])


@cache
def graph() -> grimp.ImportGraph:
    """Imports, without `EDGES` and what the two packages themselves hand out."""
    found = grimp.build_graph("primorl", "pipeline", cache_dir=None)
    for package in ("primorl", "pipeline"):
        for name in found.find_modules_directly_imported_by(package):
            found.remove_import(importer=package, imported=name)
    for room in EDGES:
        found.remove_module(room)
    return found


def reached(module: str) -> set[str]:
    return graph().find_upstream_modules(module) - {"primorl", "pipeline"}


def source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(source(module).read_text(encoding="utf-8"))


@cache
def params_read(module: str) -> frozenset[tuple[str, str]]:
    found = set()
    nodes = [node for node in ast.walk(tree(module)) if isinstance(node, ast.Attribute)]
    texts = {ast.unparse(node) for node in nodes}
    for text in texts:
        if any(longer.startswith(f"{text}.") for longer in texts):
            continue
        name, *parts = text.split(".")
        if name != "params" or not "".join(parts).isidentifier():
            continue
        key = ".".join(part for part in parts if part not in METHODS)
        if parts[0] == "chosen":
            found.add((DATASET, "".join(parts[1:2])))
        elif parts[0] in READ and not f"{key}.".startswith(
            "privacy.budget."
        ):  # what may be spent, not what is trained
            found.add(("params.yaml", key))
    return frozenset(found)


if __name__ == "__main__":
    for each in STAGES:
        print(each, *sorted(code(each)), sep="\n      - ")
