"""The card says what the files say, in words, and lets no file put markup into it."""

import math
from html.parser import HTMLParser
from typing import Any

import pytest

from primorl.release.card import Card, is_inert
from primorl.release.card_content import make_card

STATEMENT: dict[str, Any] = {
    "private": True,
    "epsilon": 0.49983,
    "delta": 1e-5,
    "unit": "trajectory",
    "neighboring_relation": "add_or_remove_one",
    "accountant": {"name": "an.Accountant", "version": "0.6.0"},
    "epsilon_rdp": 0.5512,
    "sampling_probability": 0.1,
    "noise_multiplier": 9.4,
    "clipping_norm": 0.35,
    "clipping": "flat",
    "rounds": 150,
    "queries": [],
    "termination": "none",
    "units": 2952,
    "public_assumptions": ["the number of private units, 2952"],
    "dataset_fingerprint": "d473" * 16,
    "void": [],
    "charge": "5f0c1d2e",
}
MODEL = {"members": 3}
POLICY = {
    "environment": "Pendulum-v1",
    "observation_size": 3,
    "action_size": 1,
    "discrete_actions": False,
    "variant": "private",
}
SUMMARY = {
    "dataset": "pendulum-replay",
    "env_id": "Pendulum-v1",
    "return_mean": -141.8,
    "return_ci95": [-159.7, -123.8],
    "normalized_score": 905.5,
    "episodes": 100,
}
RECORD = {"stage": "train_model", "epsilon": 0.49983, "delta": 1e-5, "state": "committed", "same_version": True}
LEDGER: dict[str, Any] = {
    "charges": 4,
    "epsilon": 1.0712,
    "delta": 1e-5,
    "records": [
        RECORD | {"day": "2026-11-20"},
        RECORD | {"day": "2026-11-22"},
        RECORD | {"day": "2026-11-21"},
        RECORD | {"day": "2026-11-23", "epsilon": 0.25, "state": "aborted", "same_version": False},
    ],
}
NAMED = {"observation_names": ["age"], "action_names": ["dose"]}
EVIL = (
    '<script>alert(1)</script>"><img src=x onerror=alert(1)> `x` [a](javascript:alert(1)) | ε, exactly | 0.1 | \n# *b*'
)


def card(
    statement: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    ledger: dict[str, Any] | None = None,
) -> Card:
    return make_card(
        STATEMENT | (statement or {}),
        MODEL,
        POLICY | (policy or {}),
        SUMMARY | (summary or {}),
        LEDGER | (ledger or {}),
    )


def points(made: Card, heading: str) -> str:
    (section,) = [section for section in made.sections if section.heading.startswith(heading)]
    return "\n".join((*section.points, *(f"{name}: {value}" for name, value in section.rows)))


def test_it_puts_the_statement_into_plain_words() -> None:
    made = card()
    assert made.verdict == "ε = 0.5, δ = 1e-05 per trajectory"
    meaning = points(made, "What the numbers mean")
    assert "factor of at most 1.65" in meaning  # e^0.49983 = 1.6484…, rounded up
    assert "at most 62.3% sure" in meaning  # 1.6484 / 2.6484 = 62.24…%, rounded up
    assert "about 1 in 100,000" in meaning
    assert "any one private trajectory was in the data" in points(made, "What is protected")
    assert points(made, "What was taken as public") == "the number of private units, 2952"
    assert points(made, "What is void") == "Nothing."
    assert "Mean return in Pendulum-v1: -141.8, 95% interval -159.7 to -123.8, over 100 episodes." in points(
        made, "How"
    )
    assert "with two in the data, odds change by a factor of at most 2.72" in points(made, "What it must not")


def test_of_several_seeds_it_speaks_of_the_policy_that_leaves() -> None:
    """It was not picked for its return."""
    made = card(summary={"seeds": [4, 7]})
    assert "the first of 2 trained alike with different seeds, and not chosen as the best" in points(made, "How")
    assert "trained alike" not in points(card(), "How")


def test_it_names_columns_and_actions_where_the_data_do() -> None:
    named = card(policy={"observation_names": ["age", "meal=snack", "dose"], "action_names": ["insulin"]})
    assert "The measurements, in this order: age, meal=snack, dose." in points(named, "What this is")
    assert "The control values, in this order: insulin." in points(named, "What this is")
    discrete = card(policy={"discrete_actions": True, "action_size": 2, "action_names": ["wait", "treat"]})
    assert "The actions, numbered from 0: wait, treat." in points(discrete, "What this is")
    generated = {"observation_names": [f"observation_{i}" for i in range(3)], "action_names": ["action_0"]}
    for unnamed in (card(), card(policy=generated)):
        assert "in this order" not in points(unnamed, "What this is")


def test_it_says_how_many_units_are_not_protected() -> None:
    """Those that were declared public; never guessed where the statement does not say."""
    heading = "What is protected"
    some = points(card({"public_units": 1048}), heading)
    assert "Not protected: 1,048 trajectories that are declared public, beside the private ones." in some
    one = points(card({"public_units": 1, "unit": "patient"}), heading)
    assert "Not protected: 1 patient that is declared public, beside the private ones." in one
    assert "Declared public: no trajectory." in points(card({"public_units": 0}), heading)
    assert "public" not in points(card(), heading)


def test_it_says_what_all_runs_spent_together() -> None:
    """Runs of equal cost share a line; a failed one counts, and one on another version is said to be."""
    assert points(card(), "What was spent") == (
        "4 runs used these data, this one included. For somebody who sees the results of all of them the bound is "
        "ε = 1.08 at δ = 1e-05: odds change by a factor of at most 2.92.\n"
        "3 × train_model: ε = 0.5, δ = 1e-05 each; done; 2026-11-20 to 2026-11-22\n"
        "1 × train_model: ε = 0.25, δ = 1e-05 each; failed, counted all the same, on another version that shares data "
        "with this one; 2026-11-23"
    )
    unbounded = points(card(ledger={"epsilon": None}), "What was spent")
    assert "one without a guarantee among them" in unbounded
    assert "would promise nothing" in unbounded


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.49983, 1.0, 3.14159, 6.9, 12.3456, 19.99])
def test_words_never_promise_more_than_the_statement(epsilon: float) -> None:
    meaning = points(card({"epsilon": epsilon}), "What the numbers mean")
    factor = float(meaning.partition("a factor of at most ")[2].split(" ")[0].replace(",", ""))
    assert math.exp(epsilon) <= factor <= 1.011 * math.exp(epsilon)
    certainty = card({"epsilon": epsilon}).certainty
    assert certainty is not None
    assert 100 / (1 + math.exp(-epsilon)) <= certainty <= 100 / (1 + math.exp(-epsilon)) + 0.1001


@pytest.mark.parametrize("epsilon", [22.3, 800.0])
def test_a_large_epsilon_is_called_next_to_no_protection(epsilon: float) -> None:
    meaning = points(card({"epsilon": epsilon}), "What the numbers mean")
    assert "next to no protection" in meaning
    assert "practically certain" in meaning


def test_what_is_void_or_unprotected_looks_so() -> None:
    """No green, no bars, no bound: the reasons instead."""
    for made in (
        card({"void": ["noise is seeded"]}),
        card({"private": False, "epsilon": None, "epsilon_rdp": None, "clipping_norm": None, "void": ["no noise"]}),
    ):
        assert not made.sound
        assert '<header class="void">' in made.html()
        assert 'class="bar"' not in made.html()
        assert "The statement must not be relied on" in made.markdown()
    assert "ε = 0.5" not in made.markdown().replace("ε = 0.5, δ = 1e-05 each", "")
    assert '<header class="sound">' in card().html()


def test_both_forms_state_the_exact_epsilon() -> None:
    for made in (card(), card(policy={"variant": EVIL}, summary={"dataset": EVIL})):
        assert "| ε, exactly | 0.49983 |" in made.markdown().splitlines()
        assert "<tr><th>ε, exactly</th><td>0.49983</td></tr>" in made.html()


class Tags(HTMLParser):
    """Every tag with its attributes, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile() -> Card:
    """Every text that comes from a file is an attack."""
    return card(
        dict.fromkeys(("unit", "neighboring_relation", "dataset_fingerprint", "charge", "clipping"), EVIL)
        | {"accountant": {"name": EVIL, "version": EVIL}, "public_assumptions": [EVIL], "void": [EVIL]},
        {"environment": EVIL, "variant": EVIL, "observation_names": [EVIL], "action_names": [EVIL]},
        {"dataset": EVIL, "env_id": EVIL},
        {"records": [RECORD | {"stage": EVIL, "day": EVIL}]},
    )


def test_a_hostile_name_is_text_in_the_page() -> None:
    """The same tags as in a harmless card; nothing that runs or is fetched; the browser is told so as well."""
    page, plain = Tags(), Tags()
    page.feed(hostile().html())
    plain.feed(card({"void": ["x"]}, NAMED, ledger={"records": [RECORD | {"day": "2026-11-20"}]}).html())
    assert page.tags == plain.tags
    assert "alert(1)" in page.text
    names = {name for _, attributes in page.tags for name, _ in attributes}
    assert names <= {"lang", "charset", "name", "content", "http-equiv", "class", "style"}
    assert {"script", "link", "img", "iframe", "a"}.isdisjoint(tag for tag, _ in page.tags)
    assert "url(" not in hostile().html()
    assert "default-src 'none'" in hostile().html()


def test_a_hostile_name_is_text_in_markdown() -> None:
    text, plain = (
        hostile().markdown(),
        card({"void": ["x"]}, NAMED, ledger={"records": [RECORD | {"day": "2026-11-20"}]}),
    )
    assert "<" not in text
    assert "\\[a\\](javascript:alert(1)) \\|" in text
    assert "[a]" not in text
    assert [line[:2] for line in text.splitlines()] == [line[:2] for line in plain.markdown().splitlines()]


@pytest.mark.parametrize(
    "planted",
    [
        "<script>1</script>",
        "<SCRIPT>1</SCRIPT>",
        "<img src=x onerror=1>",
        "<p onclick=1>",
        '<p class="x">',
        "<svg/onload=1>",
        "<a href=x>y</a>",
        '<i style="width:1%;background:url(//x)">',
        "<!-- -->",
        "< script>",
        "<",
        '<meta http-equiv="refresh" content="0;url=//x">',
    ],
)
def test_markup_of_a_strangers_own_is_seen(planted: str) -> None:
    """Our cards are inert, hostile names or not; a card with anything else in it is not."""
    for made in (card(), hostile()):
        assert is_inert(made.html())
        assert is_inert(made.markdown())
        assert not is_inert(made.html().replace("<main>", f"<main>{planted}"))
        assert not is_inert(made.markdown() + planted)
    assert not is_inert(card().html().replace("default-src 'none'", "default-src *"))
    assert not is_inert(card().markdown() + "[x](//y)")


@pytest.mark.parametrize(
    "planted", ["\\\\[click me\\\\](https://evil.example/x)", "see https://evil.example", "WWW.evil.example", "[a](b)"]
)
def test_a_strangers_card_with_a_link_in_disguise_is_not_inert(planted: str) -> None:
    """Two backslashes escape each other and leave a live bracket; bare addresses become links in many readers."""
    assert not is_inert(f"# Model card\n\n{planted}\n")
    assert is_inert("# Model card\n\n\\[not a link\\]\n")


def test_without_a_simulator_nothing_is_called_measured() -> None:
    """What the model says of a policy is no measurement, and the card says so where the return would stand."""
    unmeasured = {
        "env_id": None,
        "return_mean": None,
        "return_ci95": None,
        "normalized_score": None,
        "episodes": None,
        "model_value": -3.14159,
        "model_value_range": [-4.0, -2.5],
        "model_value_members": 3,
        "model_value_rollouts": 100,
        "model_value_horizon": 48,
        "model_value_note": "a guess",
    }
    made = card(policy={"environment": None, "discrete_actions": True, "action_size": 4}, summary=unmeasured)
    value = points(made, "How well it performs")
    assert value.startswith("This was not measured")
    assert "-3.142" in value
    assert "-4 to -2.5" in value
    assert "That is a guess." in value
    assert "answers with one of 4 actions" in points(made, "What this is")
    everything = made.markdown()
    assert "None" not in everything
    assert "it was measured" not in everything
    assert "95%" not in value
