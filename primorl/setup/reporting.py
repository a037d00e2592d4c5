"""What is said of a training while it runs: a progress bar and MLflow metrics, of released things only."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from primorl.project.progress import progress_bar
from primorl.tracking import StageRun
from primorl.training.policy_network import Network
from primorl.training.public_evaluation import PublicEvaluation
from primorl.training.setup import TrainingSetup

_ACCOUNTING_SHARE = 200  # ε so far may take one part in so many of the time


class TrainingReport:
    """Called after every round. Shows the public loss, and logs it with ε so far.

    ε is computed at evaluations, but never for more than a 200th of the time, and after the last round.

    Args:
        run: the stage's MLflow run.
        setup: of the training.
        stage: name of the stage.
        started: rounds that an earlier run began.
        between: called before the first round and after every round.
    """

    def __init__(
        self,
        run: StageRun,
        setup: TrainingSetup,
        stage: str,
        started: int = 0,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._setup, self._started, self._between = run, setup, started, between
        self._bar = progress_bar(setup.plan.rounds, stage, "round")
        self._due = 0.0

    def __enter__(self) -> Self:
        self._bar.__enter__()
        self._bar.update(self._started)
        self._between()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def __call__(self, started: int, evaluation: PublicEvaluation | None) -> None:
        """Report a round.

        Args:
            started: rounds spent so far.
            evaluation: of the released weights, where this round had one.
        """
        plan = self._setup.plan
        self._between()
        self._bar.update()
        if evaluation is not None:
            log_evaluation(self._run, self._setup.architecture, evaluation)
            self._bar.set_postfix(public_loss=f"{evaluation.loss:.3f}", refresh=False)
        began = time.monotonic()
        if started < plan.rounds and (evaluation is None or began < self._due):
            return
        spent = plan.spent(started)
        if spent is not None:
            self._run.metric("epsilon_so_far", spent.epsilon_pld, started)
        self._due = began + _ACCOUNTING_SHARE * (time.monotonic() - began)


def log_evaluation(run: StageRun, architecture: Network, evaluation: PublicEvaluation) -> None:
    """Log the public loss and each target's error."""
    run.metric("public_loss", evaluation.loss, evaluation.round)
    for name, error in zip(architecture.target_names, evaluation.error, strict=True):
        run.metric(f"public_error.{name}", error, evaluation.round)
