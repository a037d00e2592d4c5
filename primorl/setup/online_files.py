"""What an online run writes: the policy with its statement and cards, the summary, the curve, the figure."""

import sys
from dataclasses import replace

from primorl.config.params import Params
from primorl.evaluation.figures import draw_online
from primorl.evaluation.returns import episode_returns
from primorl.evaluation.statistics import MeanInterval
from primorl.evaluation.summary import OnlineSummary, write_online_curve
from primorl.online.learning import OnlineState
from primorl.policy import exported
from primorl.policy.config import PolicyPointer
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.statement import OnlineProtocol, Statement
from primorl.privacy.together import after_offline
from primorl.project.files import file_sha256, replaced_directory, replaced_file
from primorl.project.paths import ONLINE, ONLINE_CURVE, ONLINE_FIGURE, ONLINE_METRICS
from primorl.release.card import both_forms, online_card, user_epsilon
from primorl.release.contents import CARDS, MADE_ONLINE
from primorl.setup.online import OnlineRun
from primorl.setup.partitions import log_statement
from primorl.setup.work import Work
from primorl.tracking import StageRun


def write_nobody(params: Params) -> None:
    """Say in all outputs that nobody was met; ``models/online`` points to the offline policy."""
    with replaced_directory(ONLINE) as fresh:
        PolicyPointer(variant=params.dynamics.variant, policy="models/policy").write(fresh)
    _write_results(OnlineSummary(met=False), [], [])


def write_online(
    params: Params, run: OnlineRun, state: OnlineState, work: Work[OnlineState], log: StageRun, seconds: float
) -> None:
    """Replace the outputs by those of a finished run, log them, and commit the charge with every file's digest."""
    network, asked, episodes = run.start.network, params.online, params.evaluation.episodes
    environment = str(params.chosen.environment)
    users = [after * asked.cohort for after in state.kept_after]
    own = work.stated(users_statement(params, run))
    statement = own if run.start.statement is None else after_offline(run.start.statement, own)
    policies = [network.exported(parameters) for parameters in state.kept]

    def returns_of(policies: list[DeterministicPolicy], episodes: int) -> list[MeanInterval]:
        stacked, horizon = DeterministicPolicy.stacked(policies), params.chosen.horizon
        found = episode_returns(environment, stacked, episodes, params.evaluation.seed, horizon)
        return [MeanInterval.of(own) for own in found]

    with replaced_directory(ONLINE) as fresh:
        exported.save(
            fresh,
            policies,
            variant=params.dynamics.variant,
            environment=environment,
            policy="models/online",
            names=run.start.names,
        )
        returns = returns_of(policies, params.evaluation.epoch_episodes)
        before, after = returns_of([policies[0], policies[-1]], episodes)
        if after.high < before.low:
            print(
                f"warning: {ONLINE}: the policy is worse than the one it began with: return {after.mean:.4g}, before "
                f"{before.mean:.4g}; a larger online.cohort or a smaller online.learning_rate may help",
                file=sys.stderr,
            )
        summary = OnlineSummary(
            met=True,
            env_id=environment,
            algorithm=run.update.name,
            guarantee=asked.guarantee,
            start=asked.start,
            private=statement.sound,
            epsilon=user_epsilon(statement),
            epsilon_in_all=statement.epsilon if statement.sound else None,
            delta=own.delta,
            unit=own.unit,
            users=run.arrivals.people,
            cohort=asked.cohort,
            cohorts=state.cohorts,
            void=statement.void,
            return_before=before.mean,
            return_before_ci95=(before.low, before.high),
            return_mean=after.mean,
            return_ci95=(after.low, after.high),
            episodes=episodes,
            policy_sha256=file_sha256(fresh / MADE_ONLINE[0]),
            seconds=round(seconds, 3),
        )
        statement.write(fresh)
        for name, text in both_forms(online_card(statement, summary)).items():
            (fresh / name).write_text(text, encoding="utf-8")
        made = {file: file_sha256(fresh / file) for file in MADE_ONLINE}
    _write_results(summary, users, returns)
    log_statement(log, statement)
    log.tag("void", "; ".join(statement.void))
    for count, each in zip(users, returns, strict=True):
        log.metric("users", count, count)
        log.metric("return", each.mean, count)
        log.metric("return_low", each.low, count)
        log.metric("return_high", each.high, count)
        if summary.epsilon is not None:
            log.metric("epsilon_user", summary.epsilon, count)
    written = [ONLINE / name for name in ("config.json", "privacy.json", *CARDS)]
    for file in (*written, ONLINE_METRICS, ONLINE_CURVE, ONLINE_FIGURE):
        log.artifact(file)
    work.commit(made)


def users_statement(params: Params, run: OnlineRun) -> Statement:
    """What one user is promised, before payment."""
    asked = params.online
    assumptions = [
        f"how many users come, {run.arrivals.people}, in which order, and that {asked.cohort} make one update",
        f"that one user takes at most {run.steps} steps and is in at most {asked.appearances} cohorts",
        "observation and action sizes, the environment and its declared spaces",
        "the wall time of the run",
    ]
    statement = run.plan.statement(dataset_fingerprint=run.arrivals.version.fingerprint, public_assumptions=assumptions)
    protocol = OnlineProtocol(
        algorithm=run.update.name,
        users=run.arrivals.people,
        cohort=asked.cohort,
        cohorts=len(run.arrivals.cohorts),
        appearances=asked.appearances,
        releases=run.update.releases,
    )
    return replace(statement, online=protocol)


def _write_results(summary: OnlineSummary, users: list[int], returns: list[MeanInterval]) -> None:
    with replaced_file(ONLINE_CURVE) as fresh:
        write_online_curve(fresh, users, returns)
    with replaced_file(ONLINE_FIGURE) as fresh:
        draw_online(fresh, users, returns, summary)
    summary.write(ONLINE_METRICS)
