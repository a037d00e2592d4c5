"""A finished run: its files, read once and compared with each other.

Reads released and public things only.

The stage `evaluate` reads a run before there is a summary; the report, releases and everything
after it read the summary too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from primorl.base import PipelineError
from primorl.base.files import (
    BEHAVIOUR,
    CURVES,
    MANIFEST,
    MODEL,
    POLICY,
    PRIVATE_EVALUATION,
    PUBLIC,
    SUMMARY,
    file_sha256,
)
from primorl.config.params import Params
from primorl.data.storage.rows import NEWER, UnitStore, data_changed
from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.problem import PublicTrajectories
from primorl.evaluate.private.results import PrivateEvaluation
from primorl.evaluate.recommendation import recommend
from primorl.evaluate.summary import Summary, repeat
from primorl.model.architecture import Variant
from primorl.policy.config import PolicyConfig
from primorl.privacy.composition import check_held, check_parts, list_held_by_clone, verify
from primorl.privacy.statement import FILE, Statement
from primorl.work.data import check_labels, open_public

_REMEDY = "run `dvc repro`"


@dataclass(frozen=True)
class VerifiedRun:
    """A finished run, verified.

    Attributes:
        manifest: of the partitions.
        public: the public split; it may be empty.
        model: statement of the model.
        clone: statement of the clone; None: none was made.
        policy: statement of the policy.
        config: ``config.json`` of the policy.
        answers: of the private units.
        results: content of ``metrics/summary.json``; None: the run is not evaluated yet.
        newer_data: whether the partitions are of newer data than the run.
    """

    manifest: Manifest
    public: UnitStore
    model: Statement
    clone: Statement | None
    policy: Statement
    config: PolicyConfig
    answers: PrivateEvaluation
    results: Summary | None
    newer_data: bool = False

    @classmethod
    def read(
        cls,
        params: Params,
        variant: Variant | None = None,
        *,
        allow_newer_data: bool = False,
    ) -> "VerifiedRun":
        """Read a run in the working directory, and compare its files with each other.

        Args:
            params: name the ledger, which knows the units that must not be public.
            variant: of a run that is not evaluated yet; None: read the summary, which has it.
            allow_newer_data: read a run also after people joined, left or withdrew.

        Raises:
            PipelineError: a file is missing or broken; a statement is contradicted by its parts or
                by the accountant; or files are of different data, splits, models, policies or
                answers. One line.
        """
        results = Summary.read(SUMMARY) if variant is None else None
        manifest, model = Manifest.load(MANIFEST), Statement.read(MODEL)
        run = cls(
            manifest=manifest,
            public=open_public(params),
            model=model,
            clone=Statement.read(BEHAVIOUR) if (BEHAVIOUR / FILE).exists() else None,
            policy=Statement.read(POLICY),
            config=PolicyConfig.read(POLICY),
            answers=PrivateEvaluation.read(PRIVATE_EVALUATION),
            results=results,
            newer_data=allow_newer_data and data_changed(),
        )
        if variant is not None and run.config.variant != variant:
            found = f"a policy of variant {run.config.variant!r}, params.yaml asks for {variant!r}"
            raise PipelineError(f"{POLICY / 'config.json'}: found {found}; {_REMEDY}")
        run._check_other_runs()
        run._check_statements()
        run._check_data()
        if params.dataset == manifest.info.dataset:
            check_labels(params, manifest.info.spaces)
        return run

    @property
    def evaluated(self) -> Summary:
        """The summary of an evaluated run."""
        assert self.results is not None, "the run is not evaluated yet"
        return self.results

    @property
    def statements(self) -> Mapping[Path, Statement]:
        """Statements of model, clone and policy, by folder."""
        clone = {} if self.clone is None else {BEHAVIOUR: self.clone}
        return {MODEL: self.model, **clone, POLICY: self.policy}

    @property
    def public_returns(self) -> npt.NDArray[np.float64]:
        """Returns of the public trajectories; empty: there are none."""
        if self.public.units == 0:
            return np.zeros(0)
        returns: npt.NDArray[np.float64] = PublicTrajectories.of(self.public).reward.sum(1).numpy()
        return returns

    def _check_other_runs(self) -> None:
        """Refuse a summary or answers about other files than those that are here."""
        self.answers.refuse_other_files(PRIVATE_EVALUATION, MODEL, POLICY, BEHAVIOUR)
        found = self.results
        if found is None:
            return
        if (stale := found.other_files(MODEL, POLICY)) is not None:
            raise PipelineError(f"{SUMMARY}: {stale}")
        if CURVES.exists() and file_sha256(CURVES) != found.curve_sha256:
            raise PipelineError(f"{CURVES}: not that of {SUMMARY}; run `dvc repro evaluate`")
        repeated = repeat(self.policy, self.answers)
        repeated["recommendation"] = recommend(self.answers) if found.env_id is None else None
        for key, value in repeated.items():
            if getattr(found, key) != value:
                other = f"not what {POLICY / FILE} or {PRIVATE_EVALUATION} says"
                raise PipelineError(f"{SUMMARY}: {key}: {other}; run `dvc repro evaluate`")

    def _check_statements(self) -> None:
        """Refuse statements that their parts or the accountant contradict."""
        if self.policy.private:
            # Where a clone is made, policies are trained near it, whatever their own file says.
            near_clone = self.clone is not None or self.config.clone_error is not None
            clone = {str(BEHAVIOUR): self.clone} if near_clone else {}
            check_parts(POLICY / FILE, self.policy, {str(MODEL): self.model, **clone})
            if self.clone is not None:
                check_held(BEHAVIOUR / FILE, self.clone, list_held_by_clone(self.model))
            for folder, each in self.statements.items():
                if each.private:
                    verify(folder / FILE, each, curves=folder == POLICY)
        for statement in self.answers.statements.values():
            if statement.private:
                verify(PRIVATE_EVALUATION, statement, curves=False)

    def _check_data(self) -> None:
        """Refuse files that speak of other data, another unit, another split or other numbers of
        units.
        """
        info, units = self.manifest.info, self.manifest.private_units
        about = {"dataset_fingerprint": info.dataset_fingerprint, "unit": info.unit, "units": units}
        public: dict[str, object] = {"public_units": self.manifest.public_units}
        if self.newer_data:
            about, public = {key: getattr(self.model, key) for key in about}, {}
        for folder in (MODEL, POLICY):
            own = self.statements[folder]
            told = own.public_units is not None
            _refuse_other(folder / FILE, own, about | (public if told else {}))
        _refuse_other(PUBLIC, self.public, {"units": self.manifest.public_units})
        _refuse_other(PRIVATE_EVALUATION, self.answers, {"horizon": info.horizon})
        if self.results is not None:
            _refuse_other(SUMMARY, self.results, {"dataset": info.dataset})


def _refuse_other(file: Path, found: object, declared: Mapping[str, object]) -> None:
    """Refuse a file that has another value for a key than the manifest."""
    for key, value in declared.items():
        here = getattr(found, key)
        if here != value and key == "dataset_fingerprint":
            raise PipelineError(f"{file}: {NEWER}")
        if here != value:
            found = f"found {here!r}, allowed is {value!r}, as in {MANIFEST}"
            raise PipelineError(f"{file}: {key}: {found}: other data or another split; {_REMEDY}")
