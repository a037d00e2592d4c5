"""Privacy statements to write beside a model or policy."""

from primorl.privacy.accounting.epsilon import Training, event_to_json
from primorl.privacy.accounting.figures import figures
from primorl.privacy.statement import (
    NO_ROUNDS,
    RELATION_NAME,
    Accountant,
    AttackPoint,
    GroupPoint,
    ProfilePoint,
    SpentOnDataset,
    Statement,
    our_accountant,
)

_EVENT = Training(0.1, 4.083, 150).event
_FIGURES = figures(_EVENT, 1e-5)

OF_TRAINING = Statement(
    private=True,
    epsilon=1.19,
    delta=1e-5,
    unit="trajectory",
    neighboring_relation="zero_out_one",
    accountant=Accountant(name="dp_accounting.pld.PLDAccountant", version="0.1"),
    epsilon_rdp=1.31,
    event=event_to_json(_EVENT),
    sampling_probability=0.1,
    noise_multiplier=4.083,
    clipping_norm=0.35,
    rounds=150,
    queries=(),
    units=2970,
    public_assumptions=("the number of private units, 2970",),
    dataset_fingerprint="d473" * 16,
    void=(),
    clipping="flat",
    termination="none",
    epsilon_replace_one=_FIGURES.epsilon_replace_one,
    profile=tuple(ProfilePoint(epsilon=e, delta=d) for e, d in _FIGURES.profile),
    groups=tuple(GroupPoint(units=k, epsilon=e) for k, e in _FIGURES.groups),
    attacks=tuple(
        AttackPoint(false_positive_rate=a, true_positive_rate=b) for a, b in _FIGURES.attacks
    ),
    charge="5f0c1d2e",
    spent_on_dataset=SpentOnDataset(epsilon=2.5, delta=1e-5, charges=3),
)
PRIVATE = OF_TRAINING.to_json()


def no_guarantee(reason: str) -> Statement:
    """State that something was made from private data without any mechanism."""
    nothing = dict.fromkeys(("epsilon", "delta", "epsilon_rdp"))
    return Statement(
        private=False,
        **nothing,
        unit="trajectory",
        units=9,
        neighboring_relation=RELATION_NAME,
        accountant=our_accountant(),
        event={"type": "NonPrivateDpEvent"},
        **NO_ROUNDS,
        public_assumptions=(),
        dataset_fingerprint="d473" * 16,
        void=(reason,),
    )


_UNKNOWN = SpentOnDataset(epsilon=None, delta=1e-5, charges=1)
NOT_PRIVATE = no_guarantee("no noise is added").with_payment("feedbeef", _UNKNOWN).to_json()
