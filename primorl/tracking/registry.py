"""Private policies in MLflow's registry: a version a run, tagged with what it promises, and two aliases.

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
from dataclasses import dataclass, replace
from importlib.metadata import version
from io import StringIO
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

import primorl.tracking
from primorl.config.params import Params
from primorl.evaluation.wording import worth
from primorl.policy.loaded import Policy, load_policy
from primorl.privacy.statement import Statement
from primorl.tracking.store import Log, one_at_a_time

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models import ModelSignature
    from mlflow.tracking import MlflowClient

CHAMPION, LATEST = "champion", "latest-private"
FILES = ("policy.safetensors", "config.json", "privacy.json")
SERVED = Path(primorl.tracking.__file__).with_name("served.py")
_ARTIFACT = "policy"
_WEIGHTS, _EPSILON = ("policy_sha256", "dataset_fingerprint"), ("epsilon", "delta")
_JUDGED = (*_EPSILON, "unit", "dataset_fingerprint", "value", "judged_by", "judged_in")
_ASKED = "private units"
_OF_WEIGHTS = "{}_of_weights"
_DESCRIPTION = (
    "Private policies learned from `{dataset}`. Each version states its ε, δ and unit in its tags and in its "
    "`privacy.json`. The alias `champion` is the best one within the budget, `latest-private` the newest."
)
CHOSEN = (
    "which version is the champion in MLflow: the answers of the private units have a say in it, and this ε is of the "
    "weights alone; the version's tag epsilon counts everything that was charged on these units by then"
)
"""What the statement of a version takes for granted where the private units judged it."""


@dataclass(frozen=True)
class Entry:
    """A version of a registered policy.

    Attributes:
        name: of the registered model: the dataset's.
        tags: of the version.
        budget: the most ε of a champion, None: there is no bound; and the δ that it is at.
        description: in Markdown.
    """

    name: str
    tags: Mapping[str, str]
    budget: tuple[float | None, float]
    description: str

    @classmethod
    def of(cls, summary: Mapping[str, Any], params: Params, fingerprint: str, *, description: str) -> "Entry":
        """What a version says of the first policy of a run.

        Args:
            summary: the content of ``metrics/summary.json``. Without a guarantee, it says why it is void.
            params: have the budget.
            fingerprint: keyed, of the dataset.
            description: in Markdown.
        """
        (value, kind), budget, spent = judged(summary), params.privacy.budget, summary["spent_on_dataset"]
        tags = {key: summary[key] for key in ("epsilon", "delta", "unit", "units", "dataset", "policy_sha256")}
        tags |= {"spent_on_dataset": spent["epsilon"], "dataset_fingerprint": fingerprint}
        if kind == _ASKED:
            tags |= {_OF_WEIGHTS.format(key): summary[key] for key in _EPSILON}
            tags |= {key: spent[key] for key in _EPSILON}
            description = f"{description}\nTaken for granted: {CHOSEN}.\n"
        advice = summary.get("recommendation")
        tags |= {"value": value, "judged_by": kind, "judged_in": None if kind is None else _where(summary, params)}
        tags |= {"recommendation": None if advice is None else advice["answer"]}
        tags |= {"void": "; ".join(summary["void"]) or None}
        kept = {key: str(found) for key, found in tags.items() if found is not None}
        return cls(summary["dataset"], kept, (budget.epsilon, budget.delta), description)


def judged(summary: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """What the first policy of a run is worth, and who says so.

    The mean return in the simulator (of its seed, if there are several); without one, the lower end of the interval
    that the private units gave; without either, nothing.
    """
    own = (summary.get("by_seed") or [summary])[0]
    if own["return_mean"] is not None:
        return own["return_mean"], "simulator"
    asked = worth(summary.get("private_evaluation") or ())
    return (asked["ci95"][0], _ASKED) if asked is not None and asked["ci95"] is not None else (None, None)


def register(run: Log, folder: Path, entry: Entry) -> None:
    """Register the policy in ``folder`` as a new version, and set the aliases anew.

    A policy of the same weights, data and guarantee that is there already has its tags and description replaced: it was
    evaluated again. Of a void policy no version is made; those of the same weights and data are tagged void. A store
    that fails costs one warning, see `primorl.tracking.store.Store`.

    Args:
        run: the pipeline's run, which made it.
        folder: ``models/policy``.
        entry: what the version says.
    """
    with tempfile.TemporaryDirectory() as place:
        files, saved = Path(place) / _ARTIFACT, Path(place) / "model"
        files.mkdir()
        for name in FILES:
            shutil.copyfile(folder / name, files / name)
        if entry.tags.get("judged_by") == _ASKED:
            own = Statement.read(files)
            replace(own, public_assumptions=(*own.public_assumptions, CHOSEN)).write(files)
        run.flush()  # a registry that fails shall cost nothing that was measured
        run.send(lambda client: _registered(client, run.run_id, files, saved, entry))


def _registered(client: "MlflowClient", run_id: str, files: Path, saved: Path, entry: Entry) -> None:
    with one_at_a_time():  # two runs that end together must not both set aliases from the same list
        known = _versions(client, entry.name)
        same = [each for each in known if all(each.tags.get(key) == entry.tags[key] for key in _WEIGHTS)]
        if "void" in entry.tags:
            for each in same:
                client.set_model_version_tag(entry.name, each.version, "void", entry.tags["void"])
        elif same := [each for each in same if _stated(each.tags) == _stated(entry.tags)]:
            _replace_tags(client, max(same, key=lambda each: int(each.version)), entry)
        else:
            _save(load_policy(files), files, saved)
            with _as_default(client):
                _version(client, client.get_run(run_id), saved, entry, new=not known)
        _set_aliases(client, entry)


def _stated(tags: Mapping[str, str]) -> tuple[str | None, ...]:
    """What the privacy statement in a version says: ε, δ and unit of the weights, and whether `CHOSEN` stands there."""
    of_weights = (tags.get(_OF_WEIGHTS.format(key), tags.get(key)) for key in _EPSILON)
    return (*of_weights, tags.get("unit"), CHOSEN if tags.get("judged_by") == _ASKED else None)


def _set_aliases(client: "MlflowClient", entry: Entry) -> None:
    listed = _versions(client, entry.name)
    sound = [each for each in listed if "void" not in each.tags]
    latest = str(max(int(each.version) for each in sound)) if sound else None
    for alias, number in ((LATEST, latest), (CHAMPION, champion(sound, *entry.budget))):
        if number is not None:
            client.set_registered_model_alias(entry.name, alias, number)
        elif listed:
            client.delete_registered_model_alias(entry.name, alias)  # no error where there is none


def _replace_tags(client: "MlflowClient", version: "ModelVersion", entry: Entry) -> None:
    for key in version.tags.keys() - entry.tags.keys():
        client.delete_model_version_tag(entry.name, version.version, key)
    for key, found in entry.tags.items():
        client.set_model_version_tag(entry.name, version.version, key, found)
    client.update_model_version(entry.name, version.version, entry.description)


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


def _version(client: "MlflowClient", run: "Run", saved: Path, entry: Entry, *, new: bool) -> "ModelVersion":
    from mlflow.entities import LoggedModelOutput
    from mlflow.exceptions import MlflowException

    run_id = run.info.run_id
    logged = client.create_logged_model(
        run.info.experiment_id, name=_ARTIFACT, source_run_id=run_id, tags=dict(entry.tags), model_type=_ARTIFACT
    )
    client.log_model_artifacts(logged.model_id, str(saved))
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, 0)])
    if new:
        with suppress(MlflowException):  # another run may have made it just now
            client.create_registered_model(entry.name, description=_DESCRIPTION.format(dataset=entry.name))
    return client.create_model_version(
        entry.name,
        f"models:/{logged.model_id}",
        run_id,
        tags=dict(entry.tags),
        description=entry.description,
        await_creation_for=0,
        model_id=logged.model_id,
    )


def champion(versions: Sequence["ModelVersion"], budget: float | None, delta: float) -> str | None:
    """The best version within a budget; of equal ones the older. None: there is none.

    Compares versions of the newest one's unit that were judged as the newest within the budget was: at the same δ, by
    the same judge in the same place and, where it was the private units, on the same data. So what private units say of
    a version beyond the budget has no say. A policy that the recommendation of its run advises against is no champion.

    Args:
        versions: that are not void.
        budget: the most ε; None: there is no bound.
        delta: the largest δ of an ε within a budget.
    """
    known = sorted((each for each in versions if "unit" in each.tags), key=lambda each: int(each.version))
    within = []
    for each in known:
        if not each.tags.keys() >= set(_JUDGED) or each.tags["unit"] != known[-1].tags["unit"]:
            continue
        if budget is None or (float(each.tags["epsilon"]) <= budget and float(each.tags["delta"]) <= delta):
            within.append(each)
    best, most = None, -inf
    for each in within:
        value, advice = float(each.tags["value"]), each.tags.get("recommendation", "trial")
        if advice == "trial" and isfinite(value) and value > most and _judged_in(each) == _judged_in(within[-1]):
            best, most = str(each.version), value
    return best


def _judged_in(version: "ModelVersion") -> list[str]:
    """The tags that versions must share to be compared by their values."""
    keys = ["delta", "judged_by", "judged_in"]
    if version.tags["judged_by"] == _ASKED:
        keys.append("dataset_fingerprint")
    return [version.tags[key] for key in keys]


def _where(summary: Mapping[str, Any], params: Params) -> str:
    """What a value is a return in: values of other ones do not compare."""
    horizon = "" if params.chosen.horizon is None else f", at most {params.chosen.horizon} steps"
    if summary["env_id"] is not None:
        return f"{summary['env_id']}{horizon}"
    asked, private = worth(summary["private_evaluation"]), params.evaluation.private
    assert asked is not None
    return f"{asked['estimator']}, discount {private.discount:g}, return_bounds {private.return_bounds}{horizon}"


def _versions(client: "MlflowClient", name: str) -> list["ModelVersion"]:
    return list(client.search_model_versions(f"name = '{name}'"))  # the name of a dataset has no quotes


def _save(policy: Policy, files: Path, place: Path) -> None:
    """Write an MLflow model: code, the policy's files, signature, example and requirements."""
    import mlflow.pyfunc

    example = policy.observation_mean[None].astype(np.float64)
    with redirect_stderr(StringIO()):  # bars, and warnings that it wants type hints; it shows these past all filters
        mlflow.pyfunc.save_model(
            str(place),
            python_model=str(SERVED),
            artifacts={"policy": str(files)},
            signature=_signature(policy),
            input_example=_named(policy, example),
            pip_requirements=[f"primorl=={version('primorl')}", f"mlflow=={version('mlflow')}"],
        )
    _forget_paths(place / "MLmodel")


def _forget_paths(file: Path) -> None:
    """Make the two absolute paths that MLflow writes down those in the model's folder, which is all that it reads."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    flavor = content["flavors"]["python_function"]
    flavor["model_code_path"] = SERVED.name
    for artifact in flavor["artifacts"].values():
        artifact["uri"] = artifact["path"]
    file.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")


def _signature(policy: Policy) -> "ModelSignature":
    """Columns by name where the log names them; else the output alone.

    `ServedPolicy` checks columns, types and width itself. MLflow quotes values in its errors where it converts them, so
    it converts none: columns are of any type, and there is no signature of an array, which would have a type.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    out = np.dtype("int64") if policy.discrete_actions else np.dtype("float32")
    shape = (-1,) if policy.discrete_actions else (-1, policy.action_size)
    columns = [{"type": "any", "name": name, "required": False} for name in _columns(policy)]
    given = Schema.from_json(json.dumps(columns)) if columns else None
    return ModelSignature(given, Schema([TensorSpec(out, shape)]))


def _named(policy: Policy, rows: Any) -> Any:
    names = _columns(policy)
    return {name: [float(value)] for name, value in zip(names, rows[0], strict=True)} if names else rows


def _columns(policy: Policy) -> tuple[str, ...]:
    """Names of the observation's dimensions, if somebody gave them."""
    names = policy.observation_names
    return () if names == tuple(f"observation_{index}" for index in range(policy.observation_size)) else names
