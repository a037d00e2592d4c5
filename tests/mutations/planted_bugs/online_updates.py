"""Planted bugs of the online updates and of the mechanism of a cohort."""

from tests.mutations.planted_bugs.bug import Bug

_COHORT = "tests/online/test_cohort.py"
_DPPG = "tests/online/test_dppg.py"
_REGRESSIONS = "tests/online/test_regressions.py"
_SENSITIVITY = "tests/online/test_sensitivity.py"

ONLINE_UPDATES = [
    Bug(
        "online-no-clip",
        "online updates",
        "primorl/online/mechanism.py",
        "clipped = clip.finish(rows.detach().to(torch.float64) / scale)",
        "clipped = (rows.detach().to(torch.float64) / scale).nan_to_num()",
        "contributions enter the noise without a clip",
        (_SENSITIVITY,),
    ),
    Bug(
        "online-realised-users",
        "online updates",
        "primorl/online/mechanism.py",
        "return unit * scale",
        "return unit * scale * self.users / users",
        "a noisy sum is divided by the users who came",
        (_COHORT,),
    ),
    Bug(
        "online-releases-not-counted",
        "online updates",
        "primorl/online/mechanism.py",
        "self._left -= 1",
        "self._left -= 0",
        "an update may take more releases than were paid for",
        (_COHORT,),
    ),
    Bug(
        "online-releases-not-paid",
        "online updates",
        "primorl/online/mechanism.py",
        "rounds=releases * appearances,",
        "rounds=appearances,",
        "only one of an update's releases is accounted",
        (_COHORT,),
    ),
    Bug(
        "online-whole-epsilon-each",
        "online updates",
        "primorl/online/mechanism.py",
        "self.epsilon / self.choices",
        "self.epsilon",
        "every choice of one user costs what all are stated to cost",
        (_COHORT,),
    ),
    Bug(
        "online-last-step-unclipped",
        "online updates",
        "primorl/online/dppg.py",
        "within(torch.where(counts > 0, moved, deltas), bound)",
        "torch.where(counts > 0, within(deltas, bound) + moved - deltas, deltas)",
        "a local update is clipped before each step, not after",
        (_DPPG,),
    ),
    Bug(
        "online-empty-user-moves",
        "online updates",
        "primorl/online/dppg.py",
        "within(torch.where(counts > 0, moved, deltas), bound)",
        "within(moved, bound)",
        "an empty user contributes where Adam's moments point",
        (_SENSITIVITY,),
    ),
    Bug(
        "online-moments-of-users",
        "online updates",
        "primorl/online/adam.py",
        "self.second + (1 - _SECOND_DECAY) * gradient.square()",
        "self.second + (1 - _SECOND_DECAY) * gradient.square().mean(0)",
        "Adam's moments are made of all users' gradients",
        (_SENSITIVITY,),
    ),
    Bug(
        "online-normalised-over-cohort",
        "online updates",
        "primorl/online/returns.py",
        'scaled = normalised if self.guarantee == "strict" else normalised_over_cohort',
        "scaled = normalised_over_cohort",
        "advantages are normalised over the cohort",
        (_SENSITIVITY,),
    ),
    Bug(
        "online-shared-baseline",
        "online updates",
        "primorl/online/advantages.py",
        "here.mT @ here / counts.unsqueeze(-1) + penalty",
        "(here.mT @ here / counts.unsqueeze(-1)).mean(0) + penalty",
        "the baseline is fitted to the states of all users",
        (_SENSITIVITY,),
    ),
    Bug(
        "online-critic-in-silence",
        "online updates",
        "primorl/online/dppg.py",
        'return None if self.guarantee == "strict" else f"{CARRIED}, and {COUPLED}"',
        "return None",
        "a carried critic leaves the statement as it is",
        (_SENSITIVITY,),
    ),
    Bug(
        "online-no-ball",
        "online updates",
        "primorl/online/natural_gradient.py",
        "direction = within(direction + self.step_size * step, self.ball)",
        "direction = direction + self.step_size * step",
        "directions of least squares leave the ball",
        (_REGRESSIONS,),
    ),
]
