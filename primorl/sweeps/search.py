"""A search of Optuna whose study lies in the ledger's database."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
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
from primorl.sweeps.trial import Row, read_row, trial_folder

if TYPE_CHECKING:
    import optuna

_OWNER = "owner"
_WAIT_SECONDS = 60


class Study:
    """Trials that Optuna chooses, for the one command of this machine that runs the search.

    A trial that a killed command of this machine left open is put into the queue again, so it is asked for first.

    Attributes:
        finished: the trials that have a value and a row, oldest first, each once.
        left: number of trials that are still to be asked for.
    """

    def __init__(self, sweep: Sweep, search: Search, params: Params) -> None:
        """Open the sweep's study in the database of ``params.ledger``, or create it."""
        self._search, self._settings = search, sweep.content.settings
        self._study = _open(study_name(sweep, search, params), search, params)
        finished, elsewhere = {}, 0
        for begun in self._study.get_trials(deepcopy=False):
            if begun.state.name == "COMPLETE":
                trial = self._trial(begun.params)
                row = read_row(trial_folder(sweep.name, trial))
                if row is not None and row.finished:
                    finished[trial.name] = trial
            elif begun.state.name == "RUNNING":
                if begun.user_attrs.get(_OWNER, HOST).startswith(HOST):
                    self._requeue(begun)
                else:
                    elsewhere += 1
        self.finished = list(finished.values())
        self.left = max(0, search.trials - len(finished) - elsewhere)

    def ask(self) -> Iterator[Trial]:
        """Ask Optuna for the trials that are left, each at the moment that it is wanted."""
        space = _distributions(self._search)
        while self.left > 0:
            self.left -= 1
            asked = self._study.ask(space)
            asked.set_user_attr(_OWNER, mark(psutil.Process()))
            yield self._trial(asked.params, asked.number)

    def tell(self, trial: Trial, row: Row) -> None:
        """Tell Optuna the trial's value, or that it has none."""
        from optuna.trial import TrialState

        assert trial.number is not None
        value = row.summary.get(self._search.metric)
        self._study.tell(trial.number, value, TrialState.FAIL if value is None else TrialState.COMPLETE)

    def _trial(self, chosen: Mapping[str, Any], number: int | None = None) -> Trial:
        space = self._search.space
        own = {key: value if isinstance(space[key], Between) else json.loads(value) for key, value in chosen.items()}
        return Trial({**self._settings, **own}, number=number)

    def _requeue(self, begun: "optuna.trial.FrozenTrial") -> None:
        from optuna.trial import TrialState

        self._study.tell(begun.number, state=TrialState.FAIL)
        if begun.params.keys() == self._search.space.keys():  # or it was killed while it was asked for
            self._study.enqueue_trial(begun.params)


def study_name(sweep: Sweep, search: Search, params: Params) -> str:
    """Name the study: an edited search begins one of its own, more trials of the same search go on with its study."""
    space = {key: asdict(where) for key, where in search.space.items()}
    compared = [sweep.content.settings, search.metric, search.direction, space, params.dataset]
    return f"{sweep.name}-{hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:8]}"


def _open(name: str, search: Search, params: Params) -> "optuna.Study":
    try:
        import optuna
    except ImportError:
        raise PipelineError("search: needs optuna; run `pip install 'primorl[sweep]'`") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    project_ledger(params).close()  # it makes the database's file, with access for its owner only
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
