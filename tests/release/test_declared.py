"""Texts of people go from the dataset's file into the bundle; an edit of one is charged to nobody."""

from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
import yaml

from pipeline import clone_behaviour, evaluate_private, train_model
from primorl.config import params
from primorl.dynamics.config import PublicLosses
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.release import bundle
from primorl.release.card import render
from primorl.release.contents import CARDS, DECLARED, EVALUATION
from primorl.setup.accounts import project_ledger
from tests.pipeline.tiny_policy import RememberingRun
from tests.release.bundles import made, relist
from tests.release.released_project import write_as_good
from tests.trajectories.builders import snapshot

TEXTS = {"owner": "Ward 3", "purpose": "research on dosing", "contact": "x@hospital.example", "licence": "CC BY 4.0"}


def declare(card: object) -> None:
    file = Path("datasets/pendulum-replay.yaml")
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    file.write_text(yaml.safe_dump(content | {"card": card}), encoding="utf-8")


def charges() -> int:
    with closing(project_ledger(params.load())) as ledger:
        return len(ledger.charges())


def test_the_bundle_says_what_was_declared_and_checks(project: Path) -> None:
    """Twin: without the texts there is no such file, and the card says that they are not stated."""
    declare(TEXTS)
    folder = made("with")
    assert read_json(folder / DECLARED) == TEXTS | {"format": 1}
    for name in CARDS:
        card = (folder / name).read_text(encoding="utf-8")
        assert all(text in card for text in TEXTS.values())
        assert "not stated" not in card.replace("ε if a unit is exchanged", "")
    assert bundle.check(folder, void_ok=False).private
    for nothing in (None, {}):
        declare(nothing)
        bare = made("without")
        assert not (bare / DECLARED).exists()
        assert "licence of the data | not stated" in (bare / CARDS[0]).read_text(encoding="utf-8")


def test_an_edit_of_a_text_is_charged_to_nobody(project: Path) -> None:
    """All that charges finds what was paid for; the twin changes how much noise there is, and is charged."""
    before, models = charges(), snapshot(Path("models"))
    declare(TEXTS)
    for stage in (train_model, clone_behaviour, evaluate_private):
        run_again(stage)
    assert charges() == before
    assert snapshot(Path("models")) == models
    declare(TEXTS | {"contact": "y@hospital.example"})
    run_again(train_model)
    assert charges() == before

    settings = Path("params.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(settings)
    content["privacy"]["noise_multiplier"] = 5.0
    Path("params.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    run_again(train_model)
    assert charges() == before + 1


def run_again(stage: object) -> None:
    """A few rounds on a few units make no model that is better than a constant: it is taken for one."""
    run = RememberingRun()
    run.pipeline = RememberingRun()  # type: ignore[attr-defined]
    with (
        mock.patch.object(PublicLosses, "diverged", False),
        mock.patch.object(train_model, "write_model", write_as_good),
    ):
        stage.body(params.load(), run)  # type: ignore[attr-defined]


def test_a_strangers_text_is_shown_as_text_and_an_empty_file_is_refused(project: Path) -> None:
    """Nothing in a bundle shows who wrote a text: only a signature does."""
    declare(TEXTS)
    folder = made("received")
    write_json(folder / DECLARED, {"format": 1, "owner": "<script>alert(1)</script>"})
    for name, text in render(folder).items():
        (folder / name).write_text(text, encoding="utf-8")
    relist(folder)
    assert bundle.check(folder, void_ok=False).private
    assert "<script" not in (folder / "card.html").read_text(encoding="utf-8")
    write_json(folder / DECLARED, {"format": 1, "owner": "see https://evil.example"})
    for name, text in render(folder).items():
        (folder / name).write_text(text, encoding="utf-8")
    relist(folder)
    with pytest.raises(PipelineError, match="holds markup that is not ours"):
        bundle.check(folder, void_ok=False)
    for wrong in ({}, {"owner": ""}, {"owner": "a\nb"}, {"boss": "me"}, {"owner": 7}):
        write_json(folder / DECLARED, {"format": 1} | wrong)
        relist(folder)
        with pytest.raises(PipelineError, match=r"declared\.json"):
            bundle.check(folder, void_ok=False)


def test_a_path_of_this_machine_does_not_leave_and_the_refusal_names_the_file_to_mend(project: Path) -> None:
    declare(TEXTS | {"contact": "see /home/jane/notes.txt"})
    with pytest.raises(PipelineError, match=r"datasets/pendulum-replay\.yaml: card: holds a path"):
        made()


@pytest.mark.parametrize(
    "card",
    [{"boss": "me"}, {"owner": 7}, {"owner": " "}, {"owner": "a\u202eb"}, {"licence": "https://x.example"}, ["x"]],
)
def test_what_is_no_text_is_refused_in_one_line_before_anything_is_written(project: Path, card: object) -> None:
    declare(card)
    with pytest.raises(PipelineError, match=r"datasets/pendulum-replay\.yaml: card") as refused:
        params.load()
    assert "\n" not in str(refused.value)
    with pytest.raises(PipelineError, match=r"datasets/pendulum-replay\.yaml: card") as again:
        params.declared_texts("pendulum-replay")
    assert "\n" not in str(again.value)


def test_lines_that_yaml_folds_are_one(project: Path) -> None:
    declare({"purpose": "research\n  on dosing\n"})
    assert params.load().chosen.card.stated == {"purpose": "research on dosing"}
    assert params.declared_texts("pendulum-replay") == {"purpose": "research on dosing"}
    assert params.declared_texts("gone") == {}


def test_what_the_public_trajectories_earn_leaves_with_the_bundle(released: Path) -> None:
    """The card has it beside the policy's return."""
    found = read_json(released / EVALUATION)
    assert found["public_trajectories"] > 1
    assert f"today's practice, in the {found['public_trajectories']} public" in (released / CARDS[0]).read_text("utf-8")
