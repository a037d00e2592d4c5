"""Planted bugs of what is said: groups, attacks, the card and rounding."""

from tests.mutations.planted_bugs.bug import Bug

_FIGURES = "tests/privacy/accounting/test_figures.py"
_GROUPS = "tests/privacy/accounting/test_groups.py"
_CARD = "tests/release/test_card.py"
_PRINTED = "tests/test_printed_numbers.py"

WORDS = [
    Bug(
        "words-group-is-k-epsilon",
        "words",
        "primorl/privacy/accounting/figures.py",
        "finite(compose([grouped(event, units)], delta).epsilon_pld)",
        "finite(units * compose([event], delta).epsilon_pld)",
        "k units of one person are said to cost kε at the same δ",
        (_FIGURES,),
    ),
    Bug(
        "words-group-moves-by-one",
        "words",
        "primorl/privacy/accounting/groups.py",
        "tuple(map(float, counts[kept])),",
        "tuple(map(float, np.minimum(counts[kept], 1))),",
        "several units of one person in a round are accounted as one",
        (_GROUPS,),
    ),
    Bug(
        "words-group-asked-once",
        "words",
        "primorl/privacy/accounting/groups.py",
        "return dp_event.GaussianDpEvent(event.noise_multiplier / units)",
        "return event",
        "queries are charged to a group as to one unit",
        (_GROUPS,),
    ),
    Bug(
        "words-group-one-direction",
        "words",
        "primorl/privacy/accounting/groups.py",
        "for power in (order, 1 - order)",
        "for power in (1 - order,)",
        "RDP of a group looks from one side only",
        (_GROUPS,),
    ),
    Bug(
        "words-attack-without-delta",
        "words",
        "primorl/privacy/accounting/figures.py",
        "delta + math.exp(epsilon) * rate,",
        "math.exp(epsilon) * rate,",
        "an attack is said to be bounded by e^ε alone",
        (_FIGURES,),
    ),
    Bug(
        "words-profile-too-low",
        "words",
        "primorl/privacy/accounting/figures.py",
        "np.clip(found, _LEAST_DELTA, 1.0)",
        "np.clip(found / 2, _LEAST_DELTA, 1.0)",
        "every δ of the profile is half of what it is",
        (_FIGURES,),
    ),
    Bug(
        "words-belief-stays",
        "words",
        "primorl/release/card_meaning.py",
        "posterior(prior, rate, power)",
        "posterior(prior, rate, rate)",
        "the card says that nobody learns anything",
        (_CARD,),
    ),
    Bug(
        "words-curve-of-guessing",
        "words",
        "primorl/release/card_meaning.py",
        "(rate, true_positive_rate(profile, rate))",
        "(rate, rate)",
        "the card draws blind guessing as the best attack",
        (_CARD,),
    ),
    Bug(
        "words-rounded-down",
        "words",
        "primorl/privacy/accounting/rounding.py",
        'return _written(_rounded(value, digits, ROUND_CEILING), digits) if value else "0"',
        'return _written(_rounded(value, digits, ROUND_FLOOR), digits) if value else "0"',
        "printed ε are rounded down",
        (_PRINTED,),
    ),
    Bug(
        "words-left-rounded-up",
        "words",
        "primorl/privacy/accounting/rounding.py",
        "left.normalize(Context(prec=digits, rounding=ROUND_FLOOR))",
        "left.normalize(Context(prec=digits, rounding=ROUND_CEILING))",
        "more is said to be left than there is",
        (_PRINTED,),
    ),
    Bug(
        "words-ledger-rounds-to-nearest",
        "words",
        "primorl/commands/ledger.py",
        'f"  spent: ε {at_most(total.epsilon, 4)} at δ',
        'f"  spent: ε {total.epsilon:.4g} at δ',
        "`primorl ledger show` rounds what is spent to the nearest number",
        (_PRINTED,),
    ),
]
