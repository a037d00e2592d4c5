"""Online learning as paid work: users, their cohorts, the run of online.yaml, and its outputs."""

import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from primorl.base import PipelineError, say
from primorl.base.files import (
    ONLINE,
    POLICY,
    file_sha256,
)
from primorl.base.reporting import RunContent, StageLog, progress_bar
from primorl.config.params import Params, plain
from primorl.data.identity.membership import (
    id_digests,
    population_digest,
    project_secret,
)
from primorl.evaluate.returns import in_environment
from primorl.evaluate.summary import Estimate, OnlineSummary
from primorl.online.learning import (
    ONE_USER,
    PARAMETERS,
    OnlineState,
    SimulatedUsers,
    learn,
    online_mechanism,
)
from primorl.online.network import PolicyNetwork
from primorl.online.updates import DPPG
from primorl.policy import exported
from primorl.policy.config import DISCOUNT, PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.ledger.history import Request, Version
from primorl.privacy.mechanism.mechanism import Mechanism
from primorl.privacy.statement import OnlineProtocol, Statement
from primorl.simulators.environments import GymBatch
from primorl.work.desk import Paid
from primorl.work.jobs import digest, solve_noise

STAGE = "online"
STANDARD_DEVIATION = 1.0
"""Of the first actions in a box, before they are squashed into its bounds."""
_POINTS = 20  # of the curve
_MOST_NOISE = 0.4  # at 0.6, good policies got worse (docs/online.md)
_OWN_STEPS: Any = {"local_learning_rate": 1.0, "epochs": 4, "minibatches": 1, "decay": 0.97}
"""Of a user, as they were measured (benchmarks/results.md)."""
_KEY = "online.yaml"
_LABEL = b"primorl arrivals fingerprint 1\0"  # the secret keys other things as well


# ---- users


def cohorts_of(params: Params) -> tuple[range, ...]:
    """Put the users, by number, into cohorts in their order; those left over are not met.

    Raises:
        PipelineError: nothing simulates them, or they do not fill one cohort.
    """
    if params.chosen.environment is None:
        raise PipelineError(
            f"datasets/{params.dataset}.yaml: environment: found null, which online "
            f"learning needs; name one, or set {_KEY}: users to null"
        )
    users, size = params.online.users or 0, params.online.cohort
    if users < size:
        raise PipelineError(
            f"{_KEY}: cohort: found {size}, and {users} users come; allowed is at most their number"
        )
    return tuple(range(end - size, end) for end in range(size, users + 1, size))


def simulated_people(params: Params, count: int) -> Version:
    """Return so many simulated users as the ledger knows them: the same ones for the same seed.

    They are nobody in the log.
    """
    secret = project_secret()
    population = f"{params.chosen.population or params.dataset}, online"
    ids = [f"simulated {params.seed} {number}" for number in range(count)]
    content = "\0".join((population, *ids)).encode()
    return Version(
        hmac.new(secret, _LABEL + content, hashlib.sha256).hexdigest(),
        ONE_USER,
        count,
        id_digests(secret, population, sorted(ids)),
        population=population_digest(secret, population),
    )


# ---- the run


@dataclass(frozen=True)
class OnlineRun:
    """Everything that an online run needs.

    Attributes:
        params: the settings.
        network: the offline policy, of which the last layer is learned.
        config: its sizes and names.
        offline: its statement.
        update: that every cohort makes.
        mechanism: of the run.
        cohorts: numbers of the users that each cohort meets.
        people: the users, as the ledger knows them.
        users: how they are met.
        steps: T.
    """

    params: Params
    network: PolicyNetwork
    config: PolicyConfig
    offline: Statement
    update: DPPG
    mechanism: Mechanism
    cohorts: tuple[range, ...]
    people: Version
    users: SimulatedUsers
    steps: int


def online_run(params: Params) -> OnlineRun:
    """Prepare the run that params.yaml describes. Meets no user.

    Raises:
        PipelineError: the choices fit neither each other nor the environment or the offline policy,
            or no noise is enough for ε.
    """
    asked, cohorts = params.online, cohorts_of(params)
    environment = str(params.chosen.environment)
    people = simulated_people(params, len(cohorts) * asked.cohort)
    environments = GymBatch(environment)
    limit = environments.step_limit or params.chosen.horizon or 0
    steps = asked.steps or limit * asked.episodes
    if not steps:
        raise PipelineError(
            f"{_KEY}: steps: found null, and {environment} has no limit; give a number"
        )
    users = SimulatedUsers(environments, steps, asked.episodes, params.seed)
    network = PolicyNetwork.load(POLICY)
    config, offline = PolicyConfig.read(POLICY), Statement.read(POLICY)
    _check_policy(network, offline, environments, params)
    norm, discount = asked.clipping_norm, params.policy.discount or DISCOUNT
    update = DPPG(
        learning_rate=asked.learning_rate, clipping_norm=norm, discount=discount, **_OWN_STEPS
    )
    delta, multiplier = params.privacy.delta, 0.0
    if asked.target_epsilon is not None:
        key = f"{_KEY}: target_epsilon"
        multiplier = solve_noise(asked.target_epsilon, delta, 1.0, update.releases, key=key)
    mechanism = online_mechanism(
        users=people.units,
        cohort=asked.cohort,
        noise_multiplier=multiplier,
        releases=update.releases,
        delta=delta,
    )
    _warn_of_noise(asked.cohort, mechanism, network)
    return OnlineRun(
        params, network, config, offline, update, mechanism, cohorts, people, users, steps
    )


def _check_policy(
    policy: DeterministicPolicy, offline: Statement, environments: GymBatch, params: Params
) -> None:
    """Refuse an offline policy of other sizes than the environment's, or of another δ."""
    sizes = policy.observation_size, policy.action_size, policy.discrete_actions
    environments.refuse_sizes(*sizes)
    if offline.delta not in (None, params.privacy.delta):
        raise PipelineError(
            f"params.yaml: privacy.delta: found {params.privacy.delta!r}, allowed: "
            f"{offline.delta!r}, as in {POLICY}"
        )


def _warn_of_noise(cohort: int, mechanism: Mechanism, network: PolicyNetwork) -> None:
    """Say that the policy may get worse, where the noise is large."""
    # Norm of the noise in one release over the largest norm of a mean, z √d / m.
    noise = mechanism.noise_multiplier * math.sqrt(network.parameters) / cohort
    if noise > _MOST_NOISE:
        needed = math.ceil(cohort * noise / _MOST_NOISE)
        say(
            f"warning: {_KEY}: cohort: found {cohort}, at which the noise of an update is "
            f"{noise:.2g} times the largest mean of {network.parameters} parameters, so the policy "
            f"may get worse; {needed} or more suit this ε, or a smaller network"
        )


def begin(run: OnlineRun) -> OnlineState:
    """Return the state before the first cohort."""
    cohorts, offline = len(run.cohorts), file_sha256(POLICY / "policy.safetensors")
    first = {PARAMETERS: run.network.initial(STANDARD_DEVIATION)}
    return OnlineState.begin(first, cohorts, max(1, cohorts // _POINTS), offline)


def learn_for(paid: Paid[OnlineState], run: OnlineRun, device: torch.device) -> OnlineState:
    """Meet the users that a charge has left, and learn; or restore what an earlier run learned.

    A run that was killed goes on with the users after those that it met, or may have met.
    """
    state = paid.state
    if paid.finished:
        return state.end()
    paid.check_event(run.mechanism)
    with progress_bar(state.cohorts, STAGE, "cohort") as bar:
        bar.update(state.started)
        return learn(
            run.update,
            run.network.to(device),
            run.mechanism,
            run.users,
            run.cohorts,
            state,
            save_checkpoint=paid.save,
            on_update=lambda now: bar.update(),
        )


def request_charge(run: OnlineRun) -> Request:
    """Request the charge of a run.

    Its identity is a digest of everything that determines the result but chance and code. Of the
    offline policy it holds which charges paid for it, not its bytes, which an edit of code may
    change.
    """
    params, offline = run.params, run.offline
    content: dict[str, Any] = {
        "people": hashlib.sha256(run.people.members).hexdigest(),
        "fingerprint": run.people.fingerprint,
        "environment": params.chosen.environment,
        "online": plain(params.online),
        "steps": run.steps,
        "update": [run.update.name, asdict(run.update)],
        "noise_multiplier": run.mechanism.noise_multiplier,
        "delta": params.privacy.delta,
        "seed": params.seed,
        "start": [offline.charge, [each.charge for each in offline.mechanisms]],
    }
    event, delta = run.mechanism.event, run.mechanism.delta
    return Request(run.people, params.dataset, STAGE, digest(content), event, delta)


def evaluate_online(
    run: OnlineRun, state: OnlineState, policies: list[DeterministicPolicy]
) -> tuple[dict[int, Estimate], Estimate, Estimate]:
    """Measure the policies of an online run in the environment.

    Returns:
        By the number of users who were met before, the return of each policy over few episodes; and
        those of the first and the last policy over many.
    """
    asked, dataset = run.params.evaluation, run.params.chosen
    world: Any = {"environment": dataset.environment, "seed": asked.seed}
    world["horizon"] = dataset.horizon
    every, ends = map(DeterministicPolicy.stack, (policies, [policies[0], policies[-1]]))
    curve = in_environment(every, asked.epoch_episodes, **world)
    before, after = in_environment(ends, asked.episodes, **world)
    if after.high < before.low:
        say(
            f"warning: {ONLINE}: the policy got worse: return {after.mean:.4g}, before "
            f"{before.mean:.4g}; a larger cohort or a smaller learning_rate in online.yaml may help"
        )
    users = [number * run.params.online.cohort for number in state.kept_after]
    return dict(zip(users, curve, strict=True)), before, after


def write_policies(folder: Path, run: OnlineRun, policies: list[DeterministicPolicy]) -> None:
    """Write the policies of an online run, the last of which is used."""
    exported.save(
        folder,
        policies,
        variant=run.params.dynamics.variant,
        environment=str(run.params.chosen.environment),
        policy="models/online",
        observation_names=run.config.observation_names,
        action_names=run.config.action_names,
    )


def summarise_online(
    run: OnlineRun, statement: Statement, before: Estimate, after: Estimate, seconds: float
) -> OnlineSummary:
    """Make the content of ``metrics/online.json`` of a run whose policies are written.

    Args:
        run: as it was prepared.
        statement: of it and of the offline policy.
        before: return of the first policy.
        after: of the last.
        seconds: that it took.
    """
    params = run.params
    return OnlineSummary(
        met=True,
        env_id=str(params.chosen.environment),
        algorithm=run.update.name,
        private=statement.sound,
        epsilon=statement.mechanisms[-1].epsilon if statement.sound else None,
        epsilon_in_all=statement.epsilon if statement.sound else None,
        delta=run.mechanism.delta,
        unit=run.mechanism.unit,
        users=run.people.units,
        cohort=params.online.cohort,
        cohorts=len(run.cohorts),
        void=statement.void,
        return_before=before.mean,
        return_before_ci95=(before.low, before.high),
        return_mean=after.mean,
        return_ci95=(after.low, after.high),
        episodes=params.evaluation.episodes,
        policy_sha256=file_sha256(ONLINE / "policy.safetensors"),
        seconds=round(seconds, 3),
    )


def list_content(summary: OnlineSummary, curve: Mapping[int, Estimate]) -> RunContent:
    """List what MLflow gets of an online run."""
    log = StageLog()
    for count, each in curve.items():
        log.metric("return", each.mean, count)
        log.metric("return_low", each.low, count)
        log.metric("return_high", each.high, count)
    if summary.epsilon is not None:
        log.metric("epsilon_user", summary.epsilon)
    return RunContent({}, {"void": "; ".join(summary.void)}, log.metrics)


def users_statement(run: OnlineRun) -> Statement:
    """Make the statement for one user, before payment."""
    cohort = run.params.online.cohort
    assumptions = [
        f"how many users come, {run.people.units}, in which order, and that {cohort} "
        "make one update",
        f"that one user takes at most {run.steps} steps and is in one cohort",
        "observation and action sizes, the environment and its declared spaces",
        "the wall time of the run",
    ]
    statement = run.mechanism.statement(
        dataset_fingerprint=run.people.fingerprint, public_assumptions=assumptions
    )
    protocol = OnlineProtocol(
        algorithm=run.update.name,
        users=run.people.units,
        cohort=cohort,
        cohorts=len(run.cohorts),
        releases=run.update.releases,
    )
    return replace(statement, online=protocol)
