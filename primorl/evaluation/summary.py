"""``metrics/summary.json``: what a run of the pipeline came to. This class is the file's only writer and reader."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.project.records import Hexadecimal, Line, read_record, record, to_json, write_record
from primorl.project.values import Within

Variant = Literal["private", "no_privacy", "no_clip", "mopo"]
STATED = ("private", "epsilon", "epsilon_rdp", "delta", "unit", "units", "void", "spent_on_dataset")
"""Keys that the summary repeats from the privacy statement."""

_Epsilon = Annotated[float, Within(ge=0)]
_Count = Annotated[int, Within(ge=1)]


@record
class SeedSummary:
    """The result of one seed of several."""

    seed: Annotated[int, "The seed."]
    return_mean: Annotated[float | None, "Mean return of its episodes."]
    return_ci95: Annotated[tuple[float, float] | None, "95% interval."]
    normalized_score: Annotated[float | None, "Score of the mean."]
    model_value: Annotated[float | None, "Value in the released model, where no environment is named."] = None
    model_value_range: Annotated[tuple[float, float] | None, "Smallest and largest over the members."] = None
    policy_sha256: Annotated[Hexadecimal, "SHA-256 of its policy."]


@record
class Summary:
    """The result of a run, with what its privacy statement says."""

    FORMAT: ClassVar[int] = 2

    dataset: Annotated[Line, "`dataset` of params.yaml."]
    env_id: Annotated[Line | None, "Id of the environment; `null`: no simulator."]
    variant: Annotated[Variant, "`dynamics.variant` of params.yaml."]
    private: Annotated[bool, "See privacy.json, also for the next seven keys."]
    epsilon: _Epsilon | None
    epsilon_rdp: _Epsilon | None
    delta: Annotated[float, Within(gt=0, lt=1)] | None
    unit: Line
    units: _Count
    void: tuple[Line, ...]
    spent_on_dataset: SpentOnDataset | None
    seed: Annotated[int, "`seed` of params.yaml."]
    return_mean: Annotated[float | None, "Mean return in the environment; `null`: not measured."]
    return_ci95: Annotated[tuple[float, float] | None, "95% interval of the mean."]
    normalized_score: Annotated[float | None, "Score of the mean; `null`: no scale was declared."]
    episodes: Annotated[_Count | None, "Episodes of the final policy."]
    model_value: Annotated[float | None, "Value in the released model, where no environment is named."] = None
    model_value_range: Annotated[tuple[float, float] | None, "Smallest and largest over the members."] = None
    model_value_members: Annotated[_Count | None, "Members of the model."] = None
    model_value_rollouts: Annotated[_Count | None, "Rollouts in each member."] = None
    model_value_horizon: Annotated[_Count | None, "Steps of a rollout."] = None
    model_value_note: Annotated[Line | None, "What the value is not."] = None
    seeds: Annotated[tuple[int, ...] | None, "The seeds, where params.yaml lists them."] = None
    by_seed: Annotated[tuple[SeedSummary, ...] | None, "The result of each seed."] = None
    policy_sha256: Annotated[Hexadecimal, "SHA-256 of the policy that was evaluated."]
    seconds: Annotated[dict[str, float], "Wall seconds of each stage."]

    @classmethod
    def of(cls, statement: Statement, **found: Any) -> "Summary":
        """The summary of what was found, with what the statement says."""
        return cls(**{key: getattr(statement, key) for key in STATED}, **found)

    def to_json(self) -> dict[str, Any]:
        """The content of ``metrics/summary.json``."""
        return to_json(self)

    def write(self, path: Path) -> None:
        """Write the file, atomically."""
        write_record(path, self)

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Read the file.

        Raises:
            PipelineError: missing, of another format version, or not as declared. One line.
        """
        return read_record(path, cls, "run `dvc repro evaluate`")
