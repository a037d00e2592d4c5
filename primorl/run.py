"""The results of the stage `evaluate`: what its policies earn in the environment, or are worth in the released model.

Reads released and public things only.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import file_sha256
from primorl.base.paths import BEHAVIOUR, MANIFEST, MODEL, MOPO, POLICY, PRIVATE_EVALUATION
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.problem import PublicTrajectories
from primorl.evaluate.private.results import PrivateEvaluation
from primorl.evaluate.recommendation import found_in
from primorl.evaluate.returns import Evaluation, in_environment, in_model
from primorl.evaluate.summary import Summary
from primorl.model.ensemble import GaussianEnsemble
from primorl.model.starts import StartModel, asked_of_private, survival_of
from primorl.model.termination import NONE
from primorl.paid.accounts import open_public
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import seed_folders
from primorl.privacy.statement import Statement
from primorl.release.stated_figures import check_epsilon, check_with_parts

_STARTS = 4096  # drawn from the released first states


@dataclass(frozen=True)
class Evaluated:
    """The policies that are evaluated, with what is stated of them.

    Attributes:
        folder: of the policy that is used and released.
        folders: of every seed's policy.
        statement: of the policies.
        config: of the policy in ``folder``.
        answers: of the private units.
        horizon: the most steps of an episode, as the manifest declares it.
        public: the public split; it may be empty.
    """

    folder: Path
    folders: list[Path]
    statement: Statement
    config: PolicyConfig
    answers: PrivateEvaluation
    horizon: int | None
    public: UnitStore

    @classmethod
    def read(cls, params: Params) -> "Evaluated":
        """Read the policies of the variant in params.yaml, and check what is stated of them.

        Raises:
            PipelineError: a policy of another variant, a statement that its parts or the accountant contradict, or
                answers about another model, policy or clone.
        """
        folder = MOPO if params.dynamics.variant == "mopo" else POLICY
        statement, config = Statement.read(folder), PolicyConfig.read(folder)
        if config.variant != params.dynamics.variant:
            raise PipelineError(
                f"{folder / 'config.json'}: found a policy of variant {config.variant!r}, params.yaml asks for "
                f"{params.dynamics.variant!r}; run `dvc repro`"
            )
        if statement.private:
            parts = [MODEL, *([BEHAVIOUR] if (BEHAVIOUR / "privacy.json").exists() else [])]
            stated = {str(part): Statement.read(part) for part in parts}
            check_with_parts(folder, statement, stated, near_clone=config.clone_error is not None)
        answers = PrivateEvaluation.read(PRIVATE_EVALUATION)
        for own in answers.statements.values():
            if own.private:
                check_epsilon(PRIVATE_EVALUATION, own)
        answers.refuse_other_files(PRIVATE_EVALUATION, MODEL, POLICY, BEHAVIOUR)
        manifest = Manifest.load(MANIFEST)
        simulated = params.chosen.environment is not None
        return cls(
            folder=folder,
            folders=seed_folders(folder, config.seeds or [params.seed]),
            statement=statement,
            config=config,
            answers=answers,
            horizon=manifest.info.horizon if simulated else manifest.declared_horizon(),
            public=open_public(params),
        )

    def evaluate(self, params: Params) -> Evaluation:
        """Measure returns in the environment that the dataset names; without one, compute values in the model."""
        sizes, environment = params.evaluation, params.chosen.environment
        if environment is not None:
            return in_environment(
                environment,
                self.folders,
                episodes=sizes.episodes,
                epoch_episodes=sizes.epoch_episodes,
                seed=sizes.seed,
                horizon=self.horizon,
            )
        assert self.horizon is not None
        recorded, ends = self._recorded, self.config.ends
        survival = survival_of(MODEL, by_model=ends != NONE)
        if recorded is not None and not asked_of_private(MODEL):
            survival = recorded.in_rollouts(ends).survival(self.horizon)
        return in_model(
            GaussianEnsemble.load(MODEL, torch.device("cpu")).with_ends(ends),
            self.folders,
            self._first_states(sizes.seed),
            rollouts=sizes.episodes,
            epoch_rollouts=sizes.epoch_episodes,
            seed=sizes.seed,
            horizon=self.horizon,
            survival=survival,
        )

    def summarise(self, params: Params, evaluation: Evaluation, seconds: dict[str, float]) -> Summary:
        """Summarise an evaluation as ``metrics/summary.json`` has it; ``seconds`` are the stages' wall times."""
        recorded, environment = self._recorded, params.chosen.environment
        return Summary.of(
            evaluation,
            self.folders,
            score=None if params.chosen.score is None else params.chosen.score.of,
            seeds=self.config.seeds,
            model_sha256=self.config.model_sha256,
            dataset=params.dataset,
            env_id=environment,
            variant=params.dynamics.variant,
            seed=params.seed,
            seconds=seconds,
            statement=self.statement,
            answers=self.answers,
            private_evaluation_sha256=file_sha256(PRIVATE_EVALUATION) if environment is None else None,
            public_returns=np.array([]) if recorded is None else recorded.reward.sum(1).numpy(),
            recommendation=found_in(self.answers, BEHAVIOUR, environment),
        )

    @property
    def _recorded(self) -> PublicTrajectories | None:
        return PublicTrajectories.of(self.public) if self.public.units > 0 else None

    def _first_states(self, seed: int) -> Tensor:
        if self.public.units > 0 and not asked_of_private(MODEL):
            return self.public.first_observations()
        return StartModel.load(MODEL, torch.device("cpu")).sample(_STARTS, torch.Generator().manual_seed(seed))
