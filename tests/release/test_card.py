"""The card says what the files say, in words, and lets no file put markup into it."""

import math
from html.parser import HTMLParser
from typing import Any

import pytest

from primorl.release.card import model_card, practice
from primorl.release.document import Document, Section, is_inert
from tests.statements import PRIVATE

STATEMENT: dict[str, Any] = PRIVATE | {
    "epsilon": 0.49983,
    "epsilon_rdp": 0.5512,
    "noise_multiplier": 9.4,
    "units": 2952,
    "public_assumptions": ["the number of private units, 2952"],
    "epsilon_replace_one": 1.0467,
    "profile": [
        {"epsilon": e, "delta": d} for e, d in ((0.0, 0.055847), (0.25, 0.0024499), (0.49983, 1e-5))
    ],
    "groups": [
        {"units": 2, "epsilon": 1.06857},
        {"units": 4, "epsilon": 2.30596},
        {"units": 8, "epsilon": None},
    ],
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
SUMMARY: dict[str, Any] = {"dataset": "pendulum-replay", "env_id": "Pendulum-v1", "episodes": 100}
SUMMARY |= {"return_mean": -141.8, "return_ci95": [-159.7, -123.8], "normalized_score": 905.5}
RECORD = {
    "stage": "train_model",
    "epsilon": 0.49983,
    "delta": 1e-5,
    "state": "committed",
    "same_version": True,
}
OTHER = {"day": "2026-11-23", "epsilon": 0.25, "state": "aborted", "same_version": False}
RECORDS = [*(RECORD | {"day": f"2026-11-{day}"} for day in (20, 22, 21)), RECORD | OTHER]
LEDGER: dict[str, Any] = {"charges": 4, "epsilon": 1.0712, "delta": 1e-5, "records": RECORDS}
EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(1)> `x` [a](javascript:alert(1)) | ε, exactly | 0.1 | \n# *b*'
STATED = {
    "owner": "Ward 3",
    "purpose": "research",
    "contact": "x@hospital.example",
    "licence": "none",
}
PUBLIC = {
    "public_return_mean": -700.5,
    "public_return_ci95": [-800.0, -601.0],
    "public_trajectories": 1053,
}
IN_MODEL = {
    **dict.fromkeys(("env_id", "return_mean", "return_ci95", "normalized_score", "episodes")),
    "model_value": -3.14159,
    "model_value_range": [-4.0, -2.5],
    "model_value_members": 3,
    "model_value_rollouts": 100,
    "model_value_horizon": 48,
    "model_value_note": "a guess",
}
TODAY: dict[str, Any] = {
    "estimator": "behaviour",
    "of": "behaviour",
    "what": "mean return",
    "value": -3.5,
}
TODAY |= {"ci95": [-4.0, -3.0], "epsilon": 0.2, "delta": 1e-5}

CHARGED = TODAY | {"estimator": "charged", "of": "policy"}

ASKED = {"unit": "trajectory", "private_evaluation": [TODAY]}


def card(
    statement: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    ledger: dict[str, Any] | None = None,
    **others: Any,
) -> Document:
    return model_card(
        STATEMENT | (statement or {}),
        MODEL,
        POLICY | (policy or {}),
        SUMMARY | (summary or {}),
        LEDGER | (ledger or {}),
        **others,
    )


def text(section: Section) -> str:
    return "\n".join((*section.points, *(f"{name}: {value}" for name, value in section.rows)))


def points(made: Document, heading: str) -> str:
    found = [
        text(each) for each in (*made.sections, *made.appendix) if each.heading.startswith(heading)
    ]
    assert found, heading
    return "\n".join(found)


def test_it_says_what_the_files_say_in_words_and_rounds_nothing_down() -> None:
    made = card({"trajectories_per_person": 1200, "public_units": 1048}, summary={"seeds": [4, 7]})
    assert made.verdict == "ε = 0.5, δ = 1e-05 per trajectory"
    assert made.success == 52.8  # (1 + 0.055847) / 2 = 52.79…%
    for heading, said in (
        (
            "What an attack",
            "of 100 that were not in the data, it names 1: of 100 that were, it finds at most 1.45; ",
        ),
        (
            "What an attack",
            "1.44% (from 1%), 13.9% (from 10%), 59.1% (from 50%)",
        ),  # 1.4448 / 2.4448 = 59.097…%
        (
            "What an attack",
            "at the same δ, ε is 0.5 for one trajectory, 1.07 for 2, 2.31 for 4, ∞ for 8.",
        ),
        ("What an attack", "nobody has more than 1,200 trajectories in the data"),
        ("Who is protected", "1,048 trajectories are public and not protected."),
        ("What was taken as public", "the number of private trajectories, 2952"),
        ("How well", "-141.8, 95% interval -159.7 to -123.8, over 100 episodes"),
        (
            "How well",
            "the first of 2 trained alike with different seeds, and not chosen as the best",
        ),
        ("What was spent", "4 charges on these data, those of this release included"),
        ("What was spent", "ε = 1.08 at δ = 1e-05"),
        (
            "What was spent",
            "3 × train_model: ε = 0.5, δ = 1e-05 each; done; 2026-11-20 to 2026-11-22",
        ),
        ("What was spent", "failed, counted all the same, on another version that shares data"),
    ):
        assert said in points(made, heading)
    assert "would promise nothing" in points(card(ledger={"epsilon": None}), "What was spent")


def test_no_card_confuses_the_profile_with_one_point_of_it() -> None:
    """ε and δ alone say neither how odds change nor how often a bound fails, and k units have no guarantee of kε."""
    for made in (
        card(),
        card({"groups": [], "attacks": [], "profile": []}),
        card({"epsilon": 22.3}),
    ):
        for false in ("odds", "may fail", "probability of about", "e^ε"):
            assert false not in made.markdown()
    assert "several trajectories is protected less." in points(
        card({"groups": []}), "What an attack"
    )
    assert "under several patient ids is protected less" in points(
        card({"unit": "patient"}), "What an attack"
    )
    assert "next to no protection" in points(card({"epsilon": 22.3}), "What an attack")


def test_the_drawn_curve_is_never_below_the_profile() -> None:
    """Each point is the least of the lines that the profile's points allow; a card without a profile draws none."""
    profile = [(point["epsilon"], point["delta"]) for point in STATEMENT["profile"]]
    for rate, power in card().curve:
        allowed = [(d + math.exp(e) * rate, 1 - math.exp(-e) * (1 - d - rate)) for e, d in profile]
        assert power == pytest.approx(min(1.0, *(min(pair) for pair in allowed)))
        assert rate <= power <= 1
    bare = card({"profile": []})
    assert (bare.curve, bare.success, "<svg" in bare.html()) == ((), None, False)


def test_what_is_void_or_unprotected_looks_so() -> None:
    """No green, no bars, no bound: the reasons instead."""
    bare = {
        "private": False,
        "epsilon": None,
        "epsilon_rdp": None,
        "clipping_norm": None,
        "void": ["no noise"],
    }
    for made in (card({"void": ["noise is seeded"]}), card(bare)):
        assert not made.sound
        page = made.html()
        assert ('<header class="void">' in page, 'class="bar"' in page, "<svg" in page) == (
            True,
            False,
            False,
        )
        assert "The statement must not be relied on" in made.markdown()
    assert "ε = 0.5" not in made.markdown().replace("ε = 0.5, δ = 1e-05 each", "")


def test_only_figures_of_one_kind_are_compared() -> None:
    """A value in the model with nothing; a discounted interval with none that is not; unknown practice with nothing."""
    today = SUMMARY | PUBLIC
    measured = SUMMARY | {"return_mean": 5.0, "return_ci95": [4.0, 6.0]}
    for section, said in (
        (practice(today), "The policy's interval lies above today's."),
        (
            practice(today | {"return_mean": -900.0, "return_ci95": [-950.0, -850.0]}),
            "interval lies below today's.",
        ),
        (
            practice(today | {"return_ci95": [-650.0, -570.0]}),
            "that one is better than the other is not shown",
        ),
        (practice(measured | ASKED), "The policy's interval lies above today's."),
        (practice(SUMMARY), "Today's practice is not known"),
        (practice(IN_MODEL | ASKED), "they do not show that it is better"),
        (practice(measured | ASKED, 0.95), "so the two are not compared"),
        (
            practice(
                IN_MODEL | PUBLIC | {"unit": "trajectory", "private_evaluation": [CHARGED]}, 0.95
            ),
            "are not compared",
        ),
    ):
        assert said in text(section)
    made = card(
        policy={"environment": None, "discrete_actions": True, "action_size": 4}, summary=IN_MODEL
    )
    assert points(made, "How well it performs").startswith("This was not measured")


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


def with_texts(text: str) -> Document:
    """A card in which every text that comes from a file is this one."""
    return card(
        dict.fromkeys(
            ("unit", "neighboring_relation", "dataset_fingerprint", "charge", "clipping"), text
        )
        | {
            "accountant": {"name": text, "version": text},
            "public_assumptions": [text],
            "void": [text],
        },
        {"environment": text, "variant": text, "observation_names": [text], "action_names": [text]},
        {"dataset": text, "env_id": text} | PUBLIC,
        {"records": [RECORD | {"stage": text, "day": text}]},
        declared=dict.fromkeys(STATED, text),
        digests=[(text, text)],
    )


def test_a_hostile_text_is_text_in_both_forms() -> None:
    """The same tags and lines as in a harmless card; nothing that runs or is fetched; the exact ε stands once."""
    hostile, plain = Tags(), Tags()
    hostile.feed(with_texts(EVIL).html())
    plain.feed(with_texts("harmless").html())
    assert hostile.tags == plain.tags
    assert "alert(1)" in hostile.text
    names = {name for _, attributes in hostile.tags for name, _ in attributes}
    assert names <= {"lang", "charset", "name", "content", "http-equiv", "class", "style"} | {
        "viewbox",
        "d",
        "x",
        "y",
    }
    assert {"script", "link", "img", "iframe", "a"}.isdisjoint(tag for tag, _ in hostile.tags)
    assert "url(" not in with_texts(EVIL).html()
    assert "default-src 'none'" in with_texts(EVIL).html()
    markdown, harmless = with_texts(EVIL).markdown(), with_texts("harmless").markdown()
    assert "<" not in markdown
    assert "\\[a\\](javascript:alert(1)) \\|" in markdown
    assert "[a]" not in markdown
    assert [line[:2] for line in markdown.splitlines()] == [
        line[:2] for line in harmless.splitlines()
    ]
    for made in (card(), with_texts(EVIL)):
        assert "| ε of the model | 0.4999 |" in made.markdown().splitlines()
        assert "<tr><th>ε of the model</th><td>0.4999</td></tr>" in made.html()


PLANTED = """<script>1</script> | <SCRIPT>1</SCRIPT> | <img src=x onerror=1> | <p onclick=1> | <p class="x"> | <use> | <
| <svg/onload=1> | <svg viewBox="0 0 300 300" onload="1"> | <path class="bound" d="M1 1" onclick="1"/> | <a href=x>y</a>
| <path class="bound" d="M1 1 url(//x)"/> | <text class="end" x="1" y="1" onclick="1"> | <!-- --> | < script>
| <i style="width:1%;background:url(//x)"> | <meta http-equiv="refresh" content="0;url=//x">"""
LINKS = (
    "\\\\[x\\\\](https://evil.example/x)",
    "see https://evil.example",
    "WWW.evil.example",
    "[a](b)",
    "[x](//y)",
)


def test_markup_of_a_strangers_own_is_seen() -> None:
    """Our cards are inert, hostile names or not; a card with anything else in it is not.

    Two backslashes escape each other and leave a live bracket; bare addresses become links in many readers.
    """
    for made in (card(), with_texts(EVIL)):
        page, markdown = made.html(), made.markdown()
        assert is_inert(page)
        assert is_inert(markdown)
        for planted in PLANTED.split("|"):
            assert not is_inert(page.replace("<main>", f"<main>{planted}"))
            assert not is_inert(markdown + planted)
        for link in LINKS:
            assert not is_inert(markdown + link)
    assert not is_inert(page.replace("default-src 'none'", "default-src *"))
    assert is_inert("# Model card\n\n\\[not a link\\]\n")
