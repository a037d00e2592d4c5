"""From params.yaml to an online run, and its paid learning."""

import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from dp_accounting import dp_event
from torch import Tensor

from primorl.config.params import Params, plain
from primorl.online.learning import OnlineState, Update, learn
from primorl.online.mechanism import online_plan
from primorl.online.network import PolicyNetwork
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import DeterministicPolicy, Names
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.privacy.ledger.charges import Payment, pay_or_resume, spent_on_dataset
from primorl.privacy.ledger.history import Request
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256
from primorl.project.git import git_commit
from primorl.project.paths import POLICY
from primorl.project.progress import progress_bar
from primorl.setup import accounts
from primorl.setup.accounts import digest
from primorl.setup.arrivals import Arrivals
from primorl.setup.compute import ALONE, chosen_device
from primorl.setup.online_updates import update_of
from primorl.setup.simulated_users import SimulatedUsers
from primorl.simulators.batches import EnvironmentBatch, batch
from primorl.tracking import StageRun

STAGE = "online"
STANDARD_DEVIATION = 1.0
"""Of the first actions in a box, before they are squashed into its bounds."""
_POINTS = 20  # of the curve
_MOST_NOISE = 0.4  # at 0.6, good policies got worse (docs/online-results.md)
_EPISODES, _LONGEST = 64, 200  # public episodes with random actions, and their steps
_PUBLIC = 2**32 - 1
_KEY = "params.yaml: online"
_STRICT = {"guarantee": "strict"}  # a setting that is gone, and part of what was paid for


@dataclass(frozen=True)
class Start:
    """The policy that a run begins with.

    Attributes:
        network: its shape.
        parameters: ``[d]``.
        statement: of an offline policy; None: it is new.
        sha256: of the offline policy's file.
        names: of observations and actions.
    """

    network: PolicyNetwork
    parameters: Tensor
    statement: Statement | None
    sha256: str | None
    names: Names | None


@dataclass(frozen=True)
class OnlineRun:
    """Everything that an online run needs.

    Attributes:
        start: the policy to begin with.
        update: that every cohort makes.
        plan: the mechanism.
        arrivals: who is met when.
        users: how they are met.
        steps: T.
    """

    start: Start
    update: Update
    plan: Plan
    arrivals: Arrivals
    users: SimulatedUsers
    steps: int

    @property
    def noise(self) -> float:
        """Norm of the noise in one release over the largest norm of a mean, z √d / m."""
        return self.plan.noise_multiplier * math.sqrt(self.start.network.parameters) / (self.plan.denominator or 1)


def online_run(params: Params) -> OnlineRun:
    """The run that params.yaml describes. Meets nobody.

    Raises:
        PipelineError: the choices fit neither each other nor the environment or the offline policy, or no noise is
            enough for ε.
    """
    asked, environment = params.online, params.chosen.environment
    if environment is None:
        raise PipelineError(
            f"datasets/{params.dataset}.yaml: environment: found null, and users of the stage online act in one; name "
            f"a simulator, or set {_KEY}.users and arrivals to null"
        )
    arrivals = Arrivals.of(params)
    if arrivals.turned_away:
        print(
            f"{STAGE}: {arrivals.turned_away} arrivals are not met: they came more than online.appearances times, "
            "twice to one cohort, or after the last full cohort",
            file=sys.stderr,
        )
    environments = batch(environment)
    limit = environments.step_limit or params.chosen.horizon or 0
    steps = asked.steps or limit * asked.episodes
    if not steps:
        raise PipelineError(
            f"{_KEY}.steps: found null, and neither {environment} nor datasets/{params.dataset}.yaml (horizon) limits "
            "an episode; give a number"
        )
    users = SimulatedUsers(environments, steps, asked.episodes, params.seed)
    begin = _from_offline(params, users) if asked.start == "policy" else _from_scratch(params, users)
    update = update_of(params.online, params.policy.discount)
    run = OnlineRun(begin, update, _plan(params, update, arrivals), arrivals, users, steps)
    if run.noise > _MOST_NOISE:
        needed = math.ceil(asked.cohort * run.noise / _MOST_NOISE)
        print(
            f"warning: {_KEY}.cohort: found {asked.cohort}, at which the noise of an update is {run.noise:.2g} times "
            f"as large as the largest mean of {begin.network.parameters} parameters, so the policy may get worse; "
            f"{needed} or more suit this ε, or a smaller network",
            file=sys.stderr,
        )
    return run


def _from_offline(params: Params, users: SimulatedUsers) -> Start:
    """The offline policy, which must be of the environment's spaces."""
    config, policy = PolicyConfig.read(POLICY), DeterministicPolicy.load(POLICY)
    network, needed = PolicyNetwork.of(policy), users.batch
    found = (policy.observation_size, policy.action_size, policy.discrete_actions)
    if found != (needed.observation_size, len(needed.action_low), needed.discrete_actions):
        raise PipelineError(
            f"{POLICY}: found a policy of {found[0]} observations and {found[1]} actions, {params.chosen.environment} "
            f"has {needed.observation_size} and {len(needed.action_low)}; run `dvc repro`"
        )
    names, statement = (config.observation_names, config.action_names), Statement.read(POLICY)
    if statement.delta not in (None, params.privacy.delta):
        raise PipelineError(
            f"params.yaml: privacy.delta: found {params.privacy.delta!r}, and {POLICY}/privacy.json is at "
            f"{statement.delta!r}: use the δ that the offline policy was made with"
        )
    return Start(
        network,
        network.parameters_of(policy, STANDARD_DEVIATION),
        statement,
        file_sha256(POLICY / "policy.safetensors"),
        (names[0], names[1]) if names[0] and names[1] else None,
    )


def _from_scratch(params: Params, users: SimulatedUsers) -> Start:
    """A new network. Its observations are standardised by what is public of the environment."""
    environments = users.batch
    mean, scale = _observation_scales(environments, params.seed)
    network = PolicyNetwork(
        hidden=params.online.hidden,
        observation_mean=mean,
        observation_scale=scale,
        action_low=torch.from_numpy(environments.action_low),
        action_high=torch.from_numpy(environments.action_high),
        discrete_actions=environments.discrete_actions,
    )
    return Start(network, network.initial(params.seed, STANDARD_DEVIATION), None, None, None)


def _observation_scales(environments: EnvironmentBatch, seed: int) -> tuple[Tensor, Tensor]:
    """Mean and three standard deviations of observations, ``[S]`` each, over public episodes with random actions.

    These are simulated for this and belong to no user.
    """
    stream = np.random.SeedSequence([seed, _PUBLIC])  # another one than the users'
    random = np.random.default_rng(stream)
    seen = [environments.reset(_EPISODES, int(stream.generate_state(1)[0]))]
    for _ in range(min(environments.step_limit or _LONGEST, _LONGEST)):
        if environments.discrete_actions:
            actions: npt.NDArray[Any] = random.integers(len(environments.action_low), size=_EPISODES)
        else:
            actions = random.uniform(
                environments.action_low, environments.action_high, (_EPISODES, len(environments.action_low))
            )
        after, _, terminated, truncated = environments.step(actions)
        over = terminated | truncated
        seen.append(environments.restart(over) if over.any() else after)
    states = np.concatenate(seen)
    return torch.from_numpy(states.mean(0)), torch.from_numpy(3 * states.std(0) + 1e-3)


def _plan(params: Params, update: Update, arrivals: Arrivals) -> Plan:
    """The mechanism whose ε is what params.yaml asks for."""
    asked, delta = params.online, params.privacy.delta
    multiplier = 0.0
    if asked.target_epsilon is not None:
        try:
            multiplier = solve_noise_multiplier(asked.target_epsilon, delta, 1.0, update.releases * asked.appearances)
        except ValueError as wrong:
            raise PipelineError(f"{_KEY}.target_epsilon: {wrong}; raise it") from None
    return online_plan(
        users=arrivals.people,
        unit=arrivals.version.unit,
        cohort=asked.cohort,
        noise_multiplier=multiplier,
        releases=update.releases,
        appearances=asked.appearances,
        delta=delta,
    )


@dataclass(frozen=True)
class PaidOnline:
    """A finished run and its ledger entry.

    Attributes:
        state: released.
        charge: id of the charge that paid for it.
        spent: on the same people so far, this charge included.
        commit: records in the ledger that all is well; takes the SHA-256 of every file that was written, by name.
    """

    state: OnlineState
    charge: str
    spent: SpentOnDataset
    commit: Callable[[Mapping[str, str]], None]


@contextmanager
def paid_online(params: Params, run: OnlineRun, log: StageRun) -> Iterator[PaidOnline]:
    """Pay for all users, meet them, and learn. The block writes the policy and commits the charge.

    What was paid for under the same `identity` is resumed or restored at no cost, whatever code made it. A run that
    was killed goes on with the users after those whom it had met, or may have met.

    Raises:
        PipelineError: the budget does not allow it.
    """
    cohorts = run.arrivals.cohorts
    every = max(1, len(cohorts) // _POINTS)
    about = run.start.sha256 or ""
    begin = OnlineState.begin(run.update.begin(run.start.network, run.start.parameters), len(cohorts), every, about)
    request = Request(
        version=run.arrivals.version,
        dataset=params.dataset,
        stage=STAGE,
        identity=identity(params, run),
        event=run.plan.event if run.plan.is_private else dp_event.NonPrivateDpEvent(),
        delta=params.privacy.delta,
        git_commit=git_commit(),
        mlflow_run=log.run_id,
    )
    budget = accounts.budget(params, run.arrivals.people)
    with (
        closing(accounts.project_ledger(params)) as ledger,
        pay_or_resume(
            ledger, request, budget, accounts.checkpoints(), begin if run.plan.is_private else None, OnlineState.restore
        ) as payment,
    ):
        log.tag("charge", payment.charge.id)
        state = _learn(params, run, payment, begin)
        spent = spent_on_dataset(ledger, run.arrivals.version, params.privacy.budget.delta)

        def commit(made: Mapping[str, str]) -> None:
            ledger.commit(payment.charge.id, made)

        yield PaidOnline(state, payment.charge.id, spent, commit)


def _learn(params: Params, run: OnlineRun, payment: Payment[OnlineState], begin: OnlineState) -> OnlineState:
    state = payment.state or begin
    if state.about != begin.about:
        raise PipelineError(
            f"{POLICY}: charge {payment.charge.id} of {payment.charge.time} paid for learning that began with another "
            "offline policy of the same settings (an edit of code, or another machine); bring that policy back, or set "
            "online.draw in params.yaml to a new number to pay for another run"
        )
    if payment.finished:
        print(
            f"{STAGE}: charge {payment.charge.id} of {payment.charge.time} has paid for exactly this run: it is "
            "restored, and nobody is met. To pay for another draw of the noise, set online.draw to a new number",
            file=sys.stderr,
        )
        return state.ended()
    if state.started:
        print(
            f"{STAGE}: resumed after {state.started} of {state.cohorts} cohorts; nobody is met again", file=sys.stderr
        )
    with progress_bar(state.cohorts, STAGE, "cohort") as bar:
        bar.update(state.started)
        return learn(
            run.update,
            run.start.network,
            run.plan,
            run.users,
            run.arrivals.cohorts,
            state,
            save_checkpoint=payment.save_checkpoint,
            on_update=lambda now: bar.update(),
            device=chosen_device(params.compute, ALONE),
        )


def identity(params: Params, run: OnlineRun) -> str:
    """A digest of everything that determines the result but chance and code. Equal digests are one piece of paid work.

    Of the offline policy it holds which charges paid for it, not its bytes, which an edit of code may change.
    """
    offline = run.start.statement
    content = {
        "people": hashlib.sha256(run.arrivals.version.members).hexdigest(),
        "fingerprint": run.arrivals.version.fingerprint,
        "environment": params.chosen.environment,
        "online": plain(params.online),
        "steps": run.steps,
        "update": [run.update.name, asdict(run.update) | _STRICT],  # type: ignore[call-overload]
        "noise_multiplier": run.plan.noise_multiplier,
        "delta": params.privacy.delta,
        "seed": params.seed,
        "start": None if offline is None else [offline.charge, [each.charge for each in offline.mechanisms]],
    }
    return digest(content)
