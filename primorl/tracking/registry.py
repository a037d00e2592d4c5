"""Private policies in MLflow's registry: a version a run, tagged with its guarantee, and two aliases.

``latest-private`` is the newest version. ``champion`` is the best of those within ``privacy.budget``, judged as the
newest of these was. Policies without a guarantee are not registered: a registry is where policies are fetched from.

The tag ``epsilon`` is that of the version. Where a simulator judges, this is the policy alone, and the choice of the
champion reads all versions: a user of it knows something of each, up to ``spent_on_dataset`` of the newest. Where the
private units judge, it is all that was charged on them when they had answered: the choice among versions that are
within a budget is then within it as well, because the account of the newest one counts the others.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import primorl.tracking
from primorl.config.params import Params
from primorl.evaluate.wording import worth
from primorl.policy.loaded import read_policy
from primorl.privacy.statement import Statement
from primorl.tracking.store import Log, one_at_a_time

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

CHAMPION, LATEST = "champion", "latest-private"
SERVED = Path(primorl.tracking.__file__).with_name("served.py")
_FILES = ("policy.safetensors", "config.json", "privacy.json")
_ARTIFACT = "policy"
_ASKED = "private units"
_DESCRIPTION = (
    "Private policies learned from `{dataset}`. Each version states its ε, δ and unit in its tags and in its "
    "`privacy.json`. The alias `champion` is the best one within the budget, `latest-private` the newest."
)
CHOSEN = (
    "which version is the champion in MLflow: the answers of the private units have a say in it, and this ε is of the "
    "weights alone; the version's tag epsilon counts everything that was charged on these units by then"
)
"""What the statement of a version takes for granted where the private units judged it."""


def register(
    run: Log, folder: Path, summary: Mapping[str, Any], params: Params, fingerprint: str, description: str
) -> None:
    """Register the policy in ``folder`` as a new version, and set the aliases anew.

    A policy of the same weights, data and guarantee that is there already has its tags and description replaced: it was
    evaluated again. Of a void policy, and of one that its run advises against, no version is made; those of the same
    weights and data are tagged so and lose their aliases. A store that fails costs one warning, see
    `primorl.tracking.store.Store`.

    Args:
        run: the pipeline's run, which made it.
        folder: ``models/policy``.
        summary: the content of ``metrics/summary.json``. Without a guarantee, it says why it is void.
        params: have the budget.
        fingerprint: keyed, of the dataset.
        description: in Markdown.
    """
    tags = _tags(summary, params, fingerprint)
    with tempfile.TemporaryDirectory() as place:
        files = Path(place) / _ARTIFACT
        files.mkdir()
        for name in _FILES:
            shutil.copyfile(folder / name, files / name)
        if tags.get("judged_by") == _ASKED:
            description = f"{description}\nTaken for granted: {CHOSEN}.\n"
            own = Statement.read(files)
            replace(own, public_assumptions=(*own.public_assumptions, CHOSEN)).write(files)
        run.flush()  # a registry that fails shall cost nothing that was measured
        run.send(lambda client: _register(client, run.run_id, files, tags, description, params))


def _tags(summary: Mapping[str, Any], params: Params, fingerprint: str) -> dict[str, str]:
    """Describe the first policy of a run; unknown facts have no tag."""
    (value, judge), spent, advice = judged(summary), summary["spent_on_dataset"], summary.get("recommendation")
    tags = {key: summary[key] for key in ("epsilon", "delta", "unit", "units", "dataset", "policy_sha256")}
    tags |= {"epsilon_of_weights": tags["epsilon"], "delta_of_weights": tags["delta"]}
    if judge == _ASKED:
        tags |= {"epsilon": spent["epsilon"], "delta": spent["delta"]}
    tags |= {"spent_on_dataset": spent["epsilon"], "dataset_fingerprint": fingerprint, "value": value}
    tags |= {"judged_by": judge, "judged_in": None if judge is None else _where(summary, params)}
    tags |= {"recommendation": None if advice is None else advice["answer"]}
    tags |= {"void": "; ".join(summary["void"]) or None}
    return {key: str(found) for key, found in tags.items() if found is not None}


def judged(summary: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Return the value of the first policy of a run, and its judge.

    The mean return in the simulator (of its seed, if there are several); without one, the lower end of the interval
    that the private units gave; without either, nothing.
    """
    own = (summary.get("by_seed") or [summary])[0]
    if own["return_mean"] is not None:
        return own["return_mean"], "simulator"
    asked = worth(summary.get("private_evaluation") or ())
    return (asked["ci95"][0], _ASKED) if asked is not None and asked["ci95"] is not None else (None, None)


def _where(summary: Mapping[str, Any], params: Params) -> str:
    """Name the setting of a value: values in other settings do not compare."""
    horizon = "" if params.chosen.horizon is None else f", at most {params.chosen.horizon} steps"
    if summary["env_id"] is not None:
        return f"{summary['env_id']}{horizon}"
    asked, private = worth(summary["private_evaluation"]), params.evaluation.private
    assert asked is not None
    return f"{asked['estimator']}, discount {private.discount:g}, return_bounds {private.return_bounds}{horizon}"


def _register(
    client: "MlflowClient", run_id: str, files: Path, tags: dict[str, str], description: str, params: Params
) -> None:
    name, budget = tags["dataset"], params.privacy.budget
    wanted = f"name = '{name}'"  # the name of a dataset has no quotes
    with one_at_a_time():  # two runs that end together must not both set aliases from the same list
        own = [f"tags.{key} = '{tags[key]}'" for key in ("policy_sha256", "dataset_fingerprint")]
        same = client.search_model_versions(" and ".join([wanted, *own]))
        again = [each for each in same if _stated(each.tags) == _stated(tags)]
        if unwanted := {key: tags[key] for key in ("void", "recommendation") if _unwanted(tags, key)}:
            for each in same:
                for key, found in unwanted.items():
                    client.set_model_version_tag(name, each.version, key, found)
        elif again:
            known = max(again, key=_number)
            for key in known.tags.keys() - tags.keys():
                client.delete_model_version_tag(name, known.version, key)
            for key, found in tags.items():
                client.set_model_version_tag(name, known.version, key, found)
            client.update_model_version(name, known.version, description)
        else:
            with _as_default(client):
                _create(client, run_id, files, tags, description)
        listed = sorted(client.search_model_versions(wanted), key=_number)
        sound = [each for each in listed if not any(_unwanted(each.tags, key) for key in ("void", "recommendation"))]
        for alias, chosen in ((LATEST, sound[-1:]), (CHAMPION, champion(sound, budget.epsilon, budget.delta))):
            if chosen:
                client.set_registered_model_alias(name, alias, str(chosen[0].version))
            elif listed:
                client.delete_registered_model_alias(name, alias)  # no error where there is none


def _unwanted(tags: Mapping[str, str], key: str) -> bool:
    """Whether a tag says not to use a version: its statement is void, or its run advised against the policy."""
    return key in tags and not (key == "recommendation" and tags[key] == "trial")


def _number(known: "ModelVersion") -> int:
    return int(known.version)


def _stated(tags: Mapping[str, str]) -> tuple[str | bool | None, ...]:
    """Return the privacy statement in a version."""
    epsilon, delta = (tags.get(f"{key}_of_weights", tags.get(key)) for key in ("epsilon", "delta"))  # earlier versions
    return (epsilon, delta, tags.get("unit"), tags.get("judged_by") == _ASKED)


def champion(versions: Sequence["ModelVersion"], budget: float | None, delta: float) -> Sequence["ModelVersion"]:
    """Find the best version within a budget, of equal ones the older; empty: there is none.

    Compares versions of the newest one's unit that were judged as the newest within the budget was: at the same δ, by
    the same judge in the same place and, where it was the private units, on the same data. So what private units say of
    a version beyond the budget has no say. A policy that the recommendation of its run advises against is no champion.

    Args:
        versions: that are not void, oldest first.
        budget: the most ε; None: there is no bound.
        delta: the largest δ of an ε within a budget.
    """
    own = [each for each in versions if "unit" in each.tags]  # anybody may register a version by hand
    within = [
        each
        for each in own
        if each.tags["unit"] == own[-1].tags["unit"]
        and {"value", "epsilon", "delta"} <= each.tags.keys()
        and (budget is None or (float(each.tags["epsilon"]) <= budget and float(each.tags["delta"]) <= delta))
    ]
    compared = [each for each in within if _judged_in(each) == _judged_in(within[-1])]
    compared = [each for each in compared if not _unwanted(each.tags, "recommendation")]
    return sorted(compared, key=lambda each: -float(each.tags["value"]))[:1]


def _judged_in(known: "ModelVersion") -> list[str]:
    """List the tags that versions must share to be compared by their values."""
    keys = ["delta", "judged_by", "judged_in"]
    if known.tags["judged_by"] == _ASKED:
        keys.append("dataset_fingerprint")
    return [known.tags[key] for key in keys]


@contextmanager
def _as_default(client: "MlflowClient") -> Iterator[None]:
    """Within, MLflow's functions that ask no client find the client's store: `models:/...` is looked up by such."""
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(client.tracking_uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)


def _create(client: "MlflowClient", run_id: str, files: Path, tags: dict[str, str], description: str) -> None:
    from mlflow.entities import LoggedModelOutput
    from mlflow.exceptions import MlflowException

    saved, name = files.with_name("model"), tags["dataset"]
    _save(files, saved)
    experiment = client.get_run(run_id).info.experiment_id
    logged = client.create_logged_model(experiment, name=_ARTIFACT, source_run_id=run_id, tags=tags)
    client.log_model_artifacts(logged.model_id, str(saved))
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, 0)])
    with suppress(MlflowException):  # it is there
        client.create_registered_model(name, description=_DESCRIPTION.format(dataset=name))
    source = f"models:/{logged.model_id}"
    client.create_model_version(
        name, source, run_id, tags, description=description, await_creation_for=0, model_id=logged.model_id
    )


def _save(files: Path, place: Path) -> None:
    """Write an MLflow model: code, the policy's files, signature, example and requirements.

    The signature has columns by name where the log names them; else the output alone. `ServedPolicy` checks columns,
    types and width itself. MLflow quotes values in its errors where it converts them, so it converts none: columns are
    of any type, and there is no signature of an array, which would have a type.
    """
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    policy = read_policy(files)
    names, given = policy.observation_names, None
    example: Any = policy.observation_mean[None].astype(np.float64)
    if names and names != tuple(f"observation_{index}" for index in range(len(names))):  # somebody gave them
        given = Schema.from_json(json.dumps([{"type": "any", "name": name, "required": False} for name in names]))
        example = {name: [float(value)] for name, value in zip(names, example[0], strict=True)}
    out = np.dtype("int64") if policy.discrete_actions else np.dtype("float32")
    shape = (-1,) if policy.discrete_actions else (-1, policy.action_size)
    model = Model()
    with redirect_stderr(StringIO()):  # bars, and warnings that it wants type hints; it shows these past all filters
        mlflow.pyfunc.save_model(
            str(place),
            mlflow_model=model,
            python_model=str(SERVED),
            artifacts={"policy": str(files)},
            signature=ModelSignature(given, Schema([TensorSpec(out, shape)])),
            input_example=example,
            pip_requirements=[f"primorl=={version('primorl')}", f"mlflow=={version('mlflow')}"],
        )
    # Two absolute paths of this machine become those in the model's folder, which is all that MLflow reads.
    flavor = model.flavors["python_function"]
    flavor["model_code_path"] = SERVED.name
    for artifact in flavor["artifacts"].values():
        artifact["uri"] = artifact["path"]
    model.save(str(place / "MLmodel"))
