"""A search of Optuna whose study lies in the ledger's database."""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import psutil

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.project.files import HOST, waited_for
from primorl.project.processes import is_alive, mark
from primorl.sweeps.file import Between, Search, Sweep
from primorl.sweeps.folders import sweep_folder
from primorl.sweeps.rows import Row
from primorl.sweeps.trials import Trial

if TYPE_CHECKING:
    import optuna

_TRIAL, _OWNER = "trial", "owner"
_LOCK = "search.lock"
_WAIT_SECONDS = 60


class Study:
    """Trials that Optuna chooses. Several processes, also of several machines, may ask the same study.

    A trial that a killed process of this machine left open is put into the queue again, so it is asked for first.

    Args:
        sweep: a sweep with a search; its name is the study's.
        params: name the ledger's database.
        finished: the row of a trial that finished; None: there is none.
    """

    def __init__(self, sweep: Sweep, params: Params, finished: Callable[[Trial], Row | None]) -> None:
        assert sweep.content.search is not None
        self._sweep, self._search, self._finished = sweep, sweep.content.search, finished
        self._study = _study(study_name(sweep, params), self._search, params)
        self._numbers: dict[str, list[int]] = {}
        self._requeue()
        self._left = max(0, self._search.trials - len(self.trials()))

    @property
    def left(self) -> int:
        """Trials that are still to be asked for."""
        return self._left

    def trials(self) -> list[Trial]:
        """All that have a value and whose row is there, oldest first, each once."""
        from optuna.trial import TrialState

        complete = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        found = {trial.name: trial for trial in (self._trial(one.params) for one in complete)}
        return [trial for trial in found.values() if self._finished(trial) is not None]

    def ask(self) -> Trial | None:
        """The next trial; None: all of them were asked for, here or by another command."""
        if self._left == 0:
            return None
        with waited_for(sweep_folder(self._sweep.name) / _LOCK):
            if len(self.trials()) + self._running() >= self._search.trials:
                return None
            asked = self._study.ask(_distributions(self._search))
            asked.set_user_attr(_OWNER, mark(psutil.Process()))
        self._left -= 1
        trial = self._trial(asked.params)
        asked.set_user_attr(_TRIAL, trial.name)
        self._numbers.setdefault(trial.name, []).append(asked.number)
        return trial

    def tell(self, trial: Trial, row: Row) -> None:
        """Tell Optuna the trial's value, or that it has none."""
        number = self._numbers[trial.name].pop()
        self._tell(number, row)

    def _tell(self, number: int, row: Row) -> None:
        from optuna.trial import TrialState

        value = row.summary.get(self._search.metric) if row.finished else None
        if value is None:
            self._study.tell(number, state=TrialState.FAIL)
        else:
            self._study.tell(number, value)

    def _trial(self, chosen: Mapping[str, Any]) -> Trial:
        space = self._search.space
        own = {key: value if isinstance(space[key], Between) else json.loads(value) for key, value in chosen.items()}
        return Trial({**self._sweep.content.settings, **own})

    def _running(self) -> int:
        """Trials that living processes, of any machine, have asked for."""
        from optuna.trial import TrialState

        begun = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        owners = [str(one.user_attrs.get(_OWNER, "")) for one in begun]
        return sum(owner.partition(":")[0] != HOST or is_alive(owner) for owner in owners)

    def _requeue(self) -> None:
        """Close what killed processes left open: with their row where there is one, else to be asked for again."""
        from optuna.trial import TrialState

        space = self._search.space
        for left in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            owner = str(left.user_attrs.get(_OWNER, ""))
            if owner.partition(":")[0] != HOST or is_alive(owner):
                continue
            whole = left.params.keys() == space.keys()  # or killed while it was being asked for
            row = self._finished(self._trial(left.params)) if whole else None
            if row is not None:
                self._tell(left.number, row)
                continue
            self._study.tell(left.number, state=TrialState.FAIL)
            if whole:
                self._study.enqueue_trial(left.params)


def study_name(sweep: Sweep, params: Params) -> str:
    """The sweep's name, and a digest of what makes values comparable: an edited search begins a study of its own.

    More trials of the same search go on with its study.
    """
    search = sweep.content.search
    assert search is not None
    space = {key: asdict(where) for key, where in search.space.items()}
    compared = [sweep.content.settings, search.metric, search.direction, space, params.dataset]
    return f"{sweep.name}-{hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:8]}"


def _study(name: str, search: Search, params: Params) -> "optuna.Study":
    """Open the study, or create it.

    Raises:
        PipelineError: optuna is not installed, or the database cannot be used.
    """
    try:
        import optuna
    except ImportError:
        raise PipelineError(
            "search: needs optuna, which is not installed; run `pip install 'primorl[sweep]'`"
        ) from None
    from contextlib import closing

    from sqlalchemy.exc import SQLAlchemyError

    from primorl.setup.accounts import ledger_url, project_ledger

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with closing(project_ledger(params)):  # it makes the database's file, with access for its owner only
        pass
    url = ledger_url(params)
    wait = {"connect_args": {"timeout": _WAIT_SECONDS}} if url.startswith("sqlite") else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(constant_liar=True)  # workers do not all look at the same place
        study = optuna.create_study(
            storage=optuna.storages.RDBStorage(url, engine_kwargs=wait),
            study_name=name,
            sampler=sampler,
            direction=search.direction,
            load_if_exists=True,
        )
    except (SQLAlchemyError, RuntimeError) as broken:
        raise PipelineError(
            f"ledger.url: the study {name!r} cannot be kept in the ledger's database ({type(broken).__name__})"
        ) from None
    return study


def _distributions(search: Search) -> "dict[str, optuna.distributions.BaseDistribution]":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, where in search.space.items():
        if not isinstance(where, Between):
            found[key] = CategoricalDistribution([json.dumps(choice) for choice in where.choices])
        elif isinstance(where.low, int) and isinstance(where.high, int):
            found[key] = IntDistribution(where.low, where.high, log=where.log)
        else:
            found[key] = FloatDistribution(float(where.low), float(where.high), log=where.log)
    return found
