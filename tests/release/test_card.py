"""The card says what the files say, in words, and lets no file put markup into it."""

import math
from html.parser import HTMLParser
from typing import Any

import pytest

from primorl.release.card import model_card
from primorl.release.document import Document as Card
from primorl.release.document import is_inert

STATEMENT: dict[str, Any] = {
    "private": True,
    "epsilon": 0.49983,
    "delta": 1e-5,
    "unit": "trajectory",
    "neighboring_relation": "zero_out_one",
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
    "epsilon_replace_one": 1.0467,
    "profile": [
        {"epsilon": 0.0, "delta": 0.055847},
        {"epsilon": 0.25, "delta": 0.0024499},
        {"epsilon": 0.49983, "delta": 1e-05},
    ],
    "groups": [{"units": 2, "epsilon": 1.06857}, {"units": 4, "epsilon": 2.30596}, {"units": 8, "epsilon": None}],
    "attacks": [
        {"false_positive_rate": 0.001, "true_positive_rate": 0.00159746},
        {"false_positive_rate": 0.01, "true_positive_rate": 0.01444780},
    ],
}
MODEL = {"members": 3}
POLICY = {
    "policy": "models/policy",
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
    return model_card(
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
    meaning = points(made, "What an attack")
    assert "of 100 that were not in the data, it names 1: of 100 that were, it finds at most 1.45; " in meaning
    assert "1.44% (from 1%), 13.9% (from 10%), 59.1% (from 50%)" in meaning  # 1.4448 / 2.4448 = 59.097…%, rounded up
    assert "at the same δ, ε is 0.5 for one trajectory, 1.07 for 2, 2.31 for 4, ∞ for 8." in meaning
    assert "nobody has more than" not in meaning
    declared = points(card({"trajectories_per_person": 1200}), "What an attack")
    assert "As declared, nobody has more than 1,200 trajectories in the data." in declared
    assert made.success == 52.8  # (1 + 0.055847) / 2 = 52.79…%, rounded up
    assert "(0, 0.056); (0.25, 0.0025); (0.5, 1e-05)" in points(made, "For the expert")
    assert "any one private trajectory was in the data" in points(made, "What is protected")
    assert points(made, "What was taken as public") == "the number of private units, 2952"
    assert points(made, "What is void") == "Nothing."
    assert "Mean return in Pendulum-v1: -141.8, 95% interval -159.7 to -123.8, over 100 episodes." in points(
        made, "How"
    )


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
        "ε = 1.08 at δ = 1e-05.\n"
        "3 × train_model: ε = 0.5, δ = 1e-05 each; done; 2026-11-20 to 2026-11-22\n"
        "1 × train_model: ε = 0.25, δ = 1e-05 each; failed, counted all the same, on another version that shares data "
        "with this one; 2026-11-23"
    )
    unbounded = points(card(ledger={"epsilon": None}), "What was spent")
    assert "one without a guarantee or without a declared bound among them" in unbounded
    assert "would promise nothing" in unbounded


def test_no_card_confuses_the_profile_with_one_point_of_it() -> None:
    """ε and δ alone say neither how odds change nor how often a bound fails, and k units have no guarantee of kε."""
    for made in (card(), card({"groups": [], "attacks": [], "profile": []}), card({"epsilon": 22.3})):
        text = made.markdown()
        for false in ("odds", "may fail", "probability of about", "e^ε"):
            assert false not in text
    assert "by how much is not stated" in points(card({"groups": []}), "What an attack")
    assert "next to no protection" in points(card({"epsilon": 22.3}), "What an attack")


def test_the_drawn_curve_is_never_below_the_profile() -> None:
    """Each point is the least of the lines that the profile's points allow; a card without a profile draws none."""
    profile = [(point["epsilon"], point["delta"]) for point in STATEMENT["profile"]]
    for rate, power in card().curve:
        allowed = [(d + math.exp(e) * rate, 1 - math.exp(-e) * (1 - d - rate)) for e, d in profile]
        assert power == pytest.approx(min(1.0, *(min(pair) for pair in allowed)))
        assert rate <= power <= 1
    assert card().html().count("<svg") == 1
    bare = card({"profile": []})
    assert (bare.curve, bare.success) == ((), None)
    assert "<svg" not in bare.html()


def test_what_is_void_or_unprotected_looks_so() -> None:
    """No green, no bars, no bound: the reasons instead."""
    for made in (
        card({"void": ["noise is seeded"]}),
        card({"private": False, "epsilon": None, "epsilon_rdp": None, "clipping_norm": None, "void": ["no noise"]}),
    ):
        assert not made.sound
        assert '<header class="void">' in made.html()
        assert 'class="bar"' not in made.html()
        assert "<svg" not in made.html()
        assert "The statement must not be relied on" in made.markdown()
    assert "ε = 0.5" not in made.markdown().replace("ε = 0.5, δ = 1e-05 each", "")
    assert '<header class="sound">' in card().html()


def test_both_forms_state_the_exact_epsilon() -> None:
    for made in (card(), card(policy={"variant": EVIL}, summary={"dataset": EVIL})):
        assert "| ε, exactly | 0.49983 |" in made.markdown().splitlines()
        assert "<tr><th>ε, exactly</th><td>0.49983</td></tr>" in made.html()


make_card = model_card


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
    assert names <= {"lang", "charset", "name", "content", "http-equiv", "class", "style"} | {"viewbox", "d", "x", "y"}
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
        '<svg viewBox="0 0 300 300" onload="1">',
        '<path class="bound" d="M1 1" onclick="1"/>',
        '<path class="bound" d="M1 1 url(//x)"/>',
        '<text class="end" x="1" y="1" onclick="1">',
        "<foreignObject>",
        "<use>",
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
