"""A search of Optuna whose study lies in the ledger's database."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import psutil
from sqlalchemy.exc import SQLAlchemyError

from primorl.config.params import Params
from primorl.project.errors import PipelineError
from primorl.project.files import HOST
from primorl.project.processes import mark
from primorl.setup.accounts import ledger_url, project_ledger
from primorl.sweeps.file import Between, Search, Sweep, Trial
from primorl.sweeps.folders import trial_folder
from primorl.sweeps.rows import Row, read_row

if TYPE_CHECKING:
    import optuna

_OWNER = "owner"
_WAIT_SECONDS = 60


class Study:
    """Trials that Optuna chooses, for the one command of this machine that runs the search.

    A trial that a killed command of this machine left open is put into the queue again, so it is asked for first.

    Attributes:
        left: number of trials that are still to be asked for.
    """

    def __init__(self, sweep: Sweep, params: Params) -> None:
        """Open the sweep's study in the database of ``params.ledger``, or create it.

        Raises:
            PipelineError: optuna is not installed, or the database cannot be used.
        """
        assert sweep.content.search is not None
        self._sweep, self._search = sweep, sweep.content.search
        self._study = _open(study_name(sweep, params), self._search, params)
        self._numbers: dict[str, list[int]] = {}
        elsewhere = self._requeue()
        self.left = max(0, self._search.trials - len(self.trials()) - elsewhere)

    def trials(self) -> list[Trial]:
        """List the trials that have a value and whose row is there, oldest first, each once."""
        from optuna.trial import TrialState

        found = {}
        for one in self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            trial = self._trial(one.params)
            row = read_row(trial_folder(self._sweep.name, trial))
            if row is not None and row.finished:
                found[trial.name] = trial
        return list(found.values())

    def ask(self) -> Trial | None:
        """Return the next trial; None: there is none left."""
        if self.left == 0:
            return None
        self.left -= 1
        asked = self._study.ask(_distributions(self._search))
        asked.set_user_attr(_OWNER, mark(psutil.Process()))
        trial = self._trial(asked.params)
        self._numbers.setdefault(trial.name, []).append(asked.number)
        return trial

    def tell(self, trial: Trial, row: Row) -> None:
        """Tell Optuna the trial's value, or that it has none."""
        from optuna.trial import TrialState

        number = self._numbers[trial.name].pop()
        value = row.summary.get(self._search.metric) if row.finished else None
        if value is None:
            self._study.tell(number, state=TrialState.FAIL)
        else:
            self._study.tell(number, value)

    def _trial(self, chosen: Mapping[str, Any]) -> Trial:
        space = self._search.space
        own = {key: value if isinstance(space[key], Between) else json.loads(value) for key, value in chosen.items()}
        return Trial({**self._sweep.content.settings, **own})

    def _requeue(self) -> int:
        """Queue the trials again that killed commands of this machine left open; count those of other machines."""
        from optuna.trial import TrialState

        elsewhere = 0
        for begun in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if not str(begun.user_attrs.get(_OWNER, HOST)).startswith(HOST):
                elsewhere += 1
                continue
            self._study.tell(begun.number, state=TrialState.FAIL)
            if begun.params.keys() == self._search.space.keys():  # or it was killed while it was asked for
                self._study.enqueue_trial(begun.params)
        return elsewhere


def study_name(sweep: Sweep, params: Params) -> str:
    """Name the study: an edited search begins one of its own, more trials of the same search go on with its study."""
    search = sweep.content.search
    assert search is not None
    space = {key: asdict(where) for key, where in search.space.items()}
    compared = [sweep.content.settings, search.metric, search.direction, space, params.dataset]
    return f"{sweep.name}-{hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:8]}"


def _open(name: str, search: Search, params: Params) -> "optuna.Study":
    try:
        import optuna
    except ImportError:
        raise PipelineError(
            "search: needs optuna, which is not installed; run `pip install 'primorl[sweep]'`"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with closing(project_ledger(params)):  # it makes the database's file, with access for its owner only
        pass
    url = ledger_url(params)
    wait = {"connect_args": {"timeout": _WAIT_SECONDS}} if url.startswith("sqlite") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(constant_liar=True)  # workers do not all look at the same place
    try:
        return optuna.create_study(
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
