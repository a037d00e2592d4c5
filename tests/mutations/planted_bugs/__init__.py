"""The bugs that `tests.mutations` plants: one small replacement in the source each."""

from tests.mutations.planted_bugs.account import ACCOUNTS
from tests.mutations.planted_bugs.accounting import ACCOUNTING, STATEMENTS
from tests.mutations.planted_bugs.audits import AUDITS
from tests.mutations.planted_bugs.behaviour import BEHAVIOUR
from tests.mutations.planted_bugs.binding import BINDING
from tests.mutations.planted_bugs.bug import Bug
from tests.mutations.planted_bugs.cloning import CLONING
from tests.mutations.planted_bugs.closed import CLOSED
from tests.mutations.planted_bugs.collecting import COLLECTING
from tests.mutations.planted_bugs.data_flow import DATA_FLOW
from tests.mutations.planted_bugs.dptd import DPTD
from tests.mutations.planted_bugs.engine import INDEPENDENCE
from tests.mutations.planted_bugs.evaluation_queries import EVALUATION_QUERIES
from tests.mutations.planted_bugs.fitting import FITTING
from tests.mutations.planted_bugs.language import LANGUAGE
from tests.mutations.planted_bugs.mechanism import CLIP, DENOMINATOR, NOISE, SAMPLING
from tests.mutations.planted_bugs.near_clone import NEAR_CLONE
from tests.mutations.planted_bugs.new_project import NEW_PROJECT
from tests.mutations.planted_bugs.online_stage import ONLINE_STAGE
from tests.mutations.planted_bugs.online_tasks import ONLINE_TASKS
from tests.mutations.planted_bugs.online_updates import ONLINE_UPDATES
from tests.mutations.planted_bugs.paper import PAPER
from tests.mutations.planted_bugs.payment import CRASHES, PAYMENT
from tests.mutations.planted_bugs.payments import PAYMENTS
from tests.mutations.planted_bugs.public_checks import PUBLIC_CHECKS
from tests.mutations.planted_bugs.recommendation import RECOMMENDATION
from tests.mutations.planted_bugs.release import PROCESSES, RELEASE
from tests.mutations.planted_bugs.report import REPORT
from tests.mutations.planted_bugs.selection import SELECTION
from tests.mutations.planted_bugs.sweeps import SWEEPS
from tests.mutations.planted_bugs.trained_evaluation import TRAINED_EVALUATION
from tests.mutations.planted_bugs.upgrades import UPGRADES
from tests.mutations.planted_bugs.use import USE
from tests.mutations.planted_bugs.weights import WEIGHTS
from tests.mutations.planted_bugs.words import WORDS
from tests.mutations.planted_bugs.zoo import ZOO

__all__ = ["BUGS", "Bug"]

BUGS: tuple[Bug, ...] = (
    *NOISE,
    *CLIP,
    *SAMPLING,
    *DENOMINATOR,
    *ACCOUNTING,
    *DATA_FLOW,
    *STATEMENTS,
    *PAYMENT,
    *CRASHES,
    *PAYMENTS,
    *CLOSED,
    *RELEASE,
    *PROCESSES,
    *WORDS,
    *ACCOUNTS,
    *BINDING,
    *INDEPENDENCE,
    *AUDITS,
    *BEHAVIOUR,
    *CLONING,
    *NEAR_CLONE,
    *WEIGHTS,
    *EVALUATION_QUERIES,
    *SELECTION,
    *SWEEPS,
    *DPTD,
    *TRAINED_EVALUATION,
    *ZOO,
    *RECOMMENDATION,
    *FITTING,
    *UPGRADES,
    *PUBLIC_CHECKS,
    *LANGUAGE,
    *ONLINE_UPDATES,
    *ONLINE_STAGE,
    *ONLINE_TASKS,
    *PAPER,
    *COLLECTING,
    *USE,
    *NEW_PROJECT,
    *REPORT,
)
