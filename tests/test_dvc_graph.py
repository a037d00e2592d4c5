"""What dvc.yaml must say: private data has one door, and every stage names what its results depend on."""

import ast
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from primorl.config.params import Params

ROOT = Path(__file__).resolve().parent.parent
STAGES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
RAW: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))

PRIVATE = (
    "data/raw",
    "data/trajectories",
    "data/partitions/private",
    "data/partitions/units.bin",
    "data/partitions/public_units.bin",
    "models/mopo",
)
BEFORE_THE_SPLIT = {"collect", "ingest", "partition"}
DOORS = {"train_model", "optimize_mopo"}
RELEASED = (
    "models/dynamics",
    "models/policy",
    "data/partitions/public",
    "data/partitions/manifest.json",
    "metrics/seconds",
)
# These change how a stage runs, speaks and is recorded, not what it computes: whole rooms, and a few modules.
EDGES = (
    "primorl.config",
    "primorl.project",
    "primorl.tracking",
    "primorl.privacy.ledger",
    "primorl.setup.accounts",
    "primorl.setup.charges",
    "primorl.setup.compute",
    "pipeline.runner",
    "primorl.setup.launcher",
)
CODE = ("pipeline/", "primorl/")
EDGE_PARAMS = {"compute", "tracking", "ledger"}


def outputs(stage: str) -> dict[str, dict[str, Any]]:
    everything = [*STAGES[stage].get("outs", []), *STAGES[stage].get("metrics", []), *STAGES[stage].get("plots", [])]
    return {
        name: flags
        for output in everything
        for name, flags in ({output: {}} if isinstance(output, str) else output).items()
    }


def touches(path: str, other: str) -> bool:
    """One of the two is the other, or lies in it."""
    a, b = PurePosixPath(path), PurePosixPath(other)
    return a.is_relative_to(b) or b.is_relative_to(a)


def within(path: str, folders: list[str] | tuple[str, ...]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def data_deps(stage: str) -> list[str]:
    return [dep for dep in STAGES[stage].get("deps", []) if not dep.startswith(CODE)]


def test_the_stages_are_the_ones_this_file_knows() -> None:
    assert set(STAGES) == BEFORE_THE_SPLIT | DOORS | {"optimize_policy", "evaluate"}


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
    """DVC's run cache passes over a stage with an output that persists: swapping a dataset back would recompute it."""
    for output, flags in outputs(stage).items():
        assert "persist" not in flags, f"{stage}: {output}"
        private = any(touches(output, place) for place in PRIVATE)
        assert (flags.get("push") is False) == private, f"{stage}: {output}: push"


def test_every_data_dependency_is_an_output_of_another_stage() -> None:
    made = {output: stage for stage in STAGES for output in outputs(stage)}
    for stage in STAGES:
        for dep in data_deps(stage):
            if dep in ("data/withdrawals", "data/consent"):
                continue  # the user's: who is to be left out, and who is public
            assert dep in made, f"{stage} depends on {dep}, which no stage makes"
            assert made[dep] != stage


def test_git_sees_no_output() -> None:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines() if line]
    for stage in STAGES:
        for output in outputs(stage):
            assert within(output, ignored), f"{output} is not in .gitignore"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_runs_its_own_module_and_depends_on_it(stage: str) -> None:
    assert STAGES[stage]["cmd"] == f"python -m pipeline.{stage}"
    assert f"pipeline/{stage}.py" in STAGES[stage]["deps"]


@pytest.mark.parametrize("stage", STAGES)
def test_dependencies_on_code_exist(stage: str) -> None:
    for dep in STAGES[stage]["deps"]:
        if dep.startswith(CODE):
            assert (ROOT / dep).exists(), f"{stage} depends on {dep}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_all_the_code_it_runs(stage: str) -> None:
    for module in reached(f"pipeline.{stage}"):
        file = source(module)
        assert file is not None
        path = file.relative_to(ROOT).as_posix()
        assert within(path, STAGES[stage]["deps"]), f"{stage} runs {path}, which is not among its deps"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_no_code_that_it_does_not_run(stage: str) -> None:
    files = [file.relative_to(ROOT).as_posix() for module in reached(f"pipeline.{stage}") if (file := source(module))]
    for dep in STAGES[stage]["deps"]:
        if dep.startswith("primorl/") and dep != "primorl/simulators":  # environments are built by their ids
            assert any(within(file, [dep]) for file in files), f"{stage} depends on {dep} and runs nothing of it"


def test_editing_the_private_engine_does_not_train_the_policy_again() -> None:
    for stage in ("optimize_policy", "evaluate"):
        assert not any(touches(dep, "primorl/training") for dep in STAGES[stage]["deps"])


@pytest.mark.parametrize("stage", STAGES)
def test_the_params_a_stage_lists_exist(stage: str) -> None:
    for dataset in RAW["datasets"]:
        for key in STAGES[stage].get("params", []):
            value = RAW
            for part in key.replace("${dataset}", dataset).split("."):
                assert part in value, f"{stage} lists {key}"
                value = value[part]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_the_params_it_reads(stage: str) -> None:
    listed = STAGES[stage].get("params", [])
    modules = [
        f"pipeline.{stage}",
        *(m for m in reached(f"pipeline.{stage}") if m.startswith(("pipeline.", "primorl.setup."))),
    ]
    for read in {chain for module in modules for chain in params_read(module)}:
        if read == "dataset" and any("${dataset}" in key for key in listed):
            continue  # another dataset changes the names of the listed keys
        assert any(f"{read}.".startswith(f"{key}.") or key.startswith(f"{read}.") for key in listed), (
            f"{stage} reads {read}, which is not among its params"
        )


def test_the_analysis_sees_what_a_stage_reads() -> None:
    assert {"dataset", "seed", "evaluation", "dynamics.variant", "datasets.${dataset}.environment"} <= params_read(
        "pipeline.evaluate"
    )
    assert {"primorl.evaluation.returns", "primorl.policy.exported"} <= reached("pipeline.evaluate")


@cache
def reached(module: str) -> frozenset[str]:
    """The project's modules that importing ``module`` runs, except the edges and itself."""
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
    return module == "primorl" or any(f"{module}.".startswith(f"{room}.") for room in EDGES)


def source(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


@cache
def tree(module: str) -> ast.Module:
    file = source(module)
    assert file is not None, module
    return ast.parse(file.read_text(encoding="utf-8"))


def idle(module: str) -> bool:
    """Whether a module does nothing but document itself."""
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree(module).body)


def params_read(module: str) -> set[str]:
    """Keys of params.yaml that a module reads as attributes of a name ``params``."""
    return {chain for node in ast.walk(tree(module)) if (chain := attribute_chain(node))}


def attribute_chain(node: ast.AST) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not (isinstance(node, ast.Name) and node.id == "params" and parts):
        return None
    if parts[0] == "chosen":
        parts[:1] = ["datasets", "${dataset}"]
    elif parts[0] not in Params.model_fields or parts[0] in EDGE_PARAMS:
        return None
    return ".".join(part for part in parts if part not in ("model_dump", "of"))
