"""The card says what the files say, in words, and lets no file put markup into it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primorl.evaluate.description import find_today
from primorl.privacy.statement import Statement
from primorl.release.card import write_card, write_meaning, write_practice
from primorl.release.contents import Bundle, Declared, LedgerStatement, ReleasedResult
from tests.statements import OF_MODEL, OF_POLICY, PRIVATE, record_of

OF_ROUNDS: dict[str, Any] = PRIVATE | {
    "epsilon": 0.49983,
    "epsilon_rdp": 0.5512,
    "noise_multiplier": 9.4,
    "epsilon_replace_one": 1.0467,
    "profile": [{"epsilon": 0.0, "delta": 0.055847}, {"epsilon": 0.49983, "delta": 1e-5}],
    "groups": [{"units": 2, "epsilon": 1.06857}, {"units": 8, "epsilon": None}],
    "attacks": [{"false_positive_rate": 0.01, "true_positive_rate": 0.01444780}],
}
STATEMENT = record_of(Statement, OF_ROUNDS)
SUMMARY: dict[str, Any] = {"dataset": "pendulum-replay", "env_id": "Pendulum-v1", "episodes": 100}
SUMMARY |= {"return_mean": -141.8, "return_ci95": [-159.7, -123.8], "normalized_score": 905.5}
SUMMARY |= dict.fromkeys(("policy_sha256", "model_sha256"), "a" * 64)
RECORD: dict[str, Any] = {"stage": "train_model", "epsilon": 0.49983, "delta": 1e-5}
RECORD |= {"day": "2026-11-20", "state": "committed", "same_version": True, "same_unit": True}
RECORD |= {"id": "5f0c1d2e", "event": {}, "unit": "trajectory"}
OTHER = {"id": "6a1c1d2e", "epsilon": 0.25, "state": "reserved", "same_version": False}
SHARED = ("accountant", "neighboring_relation", "unit", "dataset_fingerprint")
SPENT: dict[str, Any] = {key: PRIVATE[key] for key in SHARED}
SPENT |= {"charges": 3, "epsilon": 1.0712, "delta": 1e-5}
SPENT |= {"records": [RECORD, RECORD, RECORD | OTHER]}
SPENT |= {"budget": 2.0, "budget_changes": ["raised from ε 1 to ε 2 on 2026-11-20"]}
BUNDLE = Bundle(
    folder=Path("out"),
    names=frozenset(),
    declared=None,
    model=OF_MODEL,
    policy=OF_POLICY,
    of_model=STATEMENT,
    of_policy=STATEMENT,
    ledger=record_of(LedgerStatement, SPENT),
    evaluation=record_of(ReleasedResult, SUMMARY),
    clone=None,
    answers=None,
)
EVIL = (
    '<script>alert(1)</script>"><img src=x onerror=alert(1)> `x` '
    "[a](javascript:alert(1)) | b | \n# *b*"
)
PUBLIC = {"public_return_mean": -700.5, "public_return_ci95": [-800.0, -601.0]}
PUBLIC |= {"public_trajectories": 1053}


def card(
    statement: Any = (), policy: Any = (), summary: Any = (), ledger: Any = (), declared: Any = None
) -> str:
    """With other values of these keys, which need not be allowed in files."""
    changed = replace(
        BUNDLE,
        of_model=replace(STATEMENT, **dict(statement)),
        policy=replace(OF_POLICY, **dict(policy)),
        evaluation=replace(BUNDLE.evaluation, **dict(summary)),
        ledger=replace(BUNDLE.ledger, **dict(ledger)),
        declared=None if declared is None else Declared(**declared),
    )
    return write_card(changed, [("file", "0" * 64)])


def test_it_says_what_the_files_say_and_rounds_nothing_down() -> None:
    made = card({"public_units": 1048})
    for said in (
        "**ε = 0.5, δ = 1e-05 per trajectory. Together with all other results about them, and "
        "where this one was picked among these: ε = 1.08**",
        "52.8%",  # (1 + 0.055847) / 2
        "| 1 in 100 who were not in the data | 1.45 in 100 who were | from 1% to 1.44%, from 10% ",
        "ε is 0.5 with one, 1.07 with 2, ∞ with 8.",
        "1,048 trajectories are public",
        "-141.8, 95% interval -159.7 to -123.8",
        "3 charges on these data",
        "| spent on these trajectories by 2026-11-20 | ε = 1.08 at δ = 1e-05, in 3 charges |",
        "| budget of these trajectories | ε = 2 at δ = 1e-05; 0.928 is left; raised from ε 1 to "
        "ε 2 on 2026-11-20 |",
    ):
        assert said in made
    alone = replace(STATEMENT, groups=())
    points = write_meaning(alone, STATEMENT, "it").points
    (said,) = (point for point in points if "several" in point)
    assert said.endswith(
        "δ = 1e-05 and counting the model alone, ε is 0.5 with one, 1.07 with 2, ∞ with 8."
    )
    unbounded = card(ledger={"epsilon": None})
    assert "would promise nothing" in unbounded
    assert "where this one was picked among these: no bound**" in unbounded
    made = card(declared={"left_out": "0.1% of patients elsewhere"})
    assert "known beforehand: 0.1% of patients elsewhere." in made


def test_what_is_void_or_unprotected_looks_so() -> None:
    nothing = dict.fromkeys(("epsilon", "epsilon_rdp", "clipping_norm"))
    bare = nothing | {"private": False, "void": ["no noise"]}
    for made in (card({"void": ["noise is seeded"]}), card(bare)):
        assert "The statement must not be relied on" in made
    assert "ε = 0.5" not in made


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (PUBLIC, "The policy's interval lies above today's."),
        (PUBLIC | {"return_ci95": [-650.0, -570.0]}, "is not shown"),
    ],
)
def test_intervals_of_policy_and_practice_are_compared(summary: dict[str, Any], said: str) -> None:
    result = record_of(ReleasedResult, SUMMARY | summary)
    today = find_today(result, (), "trajectories")
    assert said in "\n".join(write_practice(result, (), today, believed=True).points)


def with_texts(text: str) -> str:
    """A card in which every text that comes from a file is this one."""
    own = ("unit", "neighboring_relation", "dataset_fingerprint", "charge", "clipping")
    named = {"observation_names": [text], "action_names": [text]}
    return card(
        dict.fromkeys(own, text)
        | {
            "accountant": {"name": text, "version": text},
            "public_assumptions": [text],
            "void": [text],
        },
        {"environment": text, "variant": text} | named,
        {"dataset": text, "env_id": text} | PUBLIC,
        {"records": [replace(BUNDLE.ledger.records[0], stage=text, day=text)]},
        dict.fromkeys(("owner", "purpose", "contact", "licence"), text) | {"labels": {text: text}},
    )


def test_a_hostile_text_is_text_and_no_address_becomes_a_link() -> None:
    """As many lines as in a harmless card; no markup."""
    hostile, plain = with_texts(EVIL), with_texts("harmless")
    assert "<" not in hostile
    assert "\\[a\\](javascript:alert(1)) \\|" in hostile
    starts = [[line[:2] for line in each.splitlines()] for each in (hostile, plain)]
    assert starts[0] == starts[1]
    for address in ("see https://evil.example", "WWW.evil.example"):
        with pytest.raises(ValueError, match="address"):
            with_texts(address)
