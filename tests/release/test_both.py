"""A bundle whose policy was made from model and clone: both are counted, whatever somebody writes instead."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.release import bundle
from primorl.release.card import promised, render
from primorl.release.contents import CLONE, LEDGER, MODEL, POLICY
from primorl.setup import clone_work
from tests.release.bundles import made, relist
from tests.release.released_project import EPISODES, inside, run_stages, tiny_params

pytestmark = pytest.mark.usefixtures("accounted_once")
Content = dict[str, Any]


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose policy was trained near a clone, with a bundle in ``out``; read only."""
    folder = tmp_path_factory.mktemp("near") / "project"
    raw = tiny_params()
    raw["behaviour"]["target_epsilon"] = 5.0
    with pytest.MonkeyPatch.context() as quick:  # accounted like the model: no sampling, no search for the noise
        quick.setattr(clone_work, "ROUNDS", 3)
        quick.setattr(clone_work, "SAMPLING_PROBABILITY", 1.0)
        quick.setattr(clone_work, "noise_for", lambda epsilon, delta: 4.0)
        run_stages(folder, raw, EPISODES)
    with inside(folder):
        made()
    return folder


@pytest.fixture
def received(near: Path, tmp_path: Path) -> Path:
    shutil.copytree(near / "out", tmp_path / "received")
    return tmp_path / "received"


def test_the_policy_states_more_than_either_mechanism(near: Path) -> None:
    """The card, the summary and the bundle's promise say the same ε: that of both."""
    model, clone, policy = (Statement.read(near / "models" / name) for name in ("dynamics", "behaviour", "policy"))
    assert model.epsilon is not None
    assert clone.epsilon is not None
    assert policy.epsilon is not None
    assert max(model.epsilon, clone.epsilon) < policy.epsilon <= model.epsilon + clone.epsilon
    assert [part.charge for part in policy.mechanisms] == [model.charge, clone.charge]
    assert read_json(near / "metrics/summary.json")["epsilon"] == policy.epsilon
    assert bundle.check(near / "out", void_ok=False) == policy
    assert f"{policy.epsilon:.4g}"[:3] in promised(near / "out")
    card = (near / "out/card.md").read_text(encoding="utf-8")
    assert "clone of the behaviour included" in promised(near / "out")
    assert "clone of the behaviour included" in card
    assert f"clone of the behaviour | ε {clone.epsilon!r}; " in card
    candidates = read_json(near / "out" / POLICY[1])["candidates"]
    assert [each["divergence"] for each in candidates] == [0.3, 1.0, 3.0]
    assert sum(each["chosen"] for each in candidates) == 1


def lie(folder: Path, change: Callable[[Content], None], name: str = POLICY[2]) -> str:
    """What the check says of an edit after cards and manifest were made again."""
    content = read_json(folder / name)
    change(content)
    write_json(folder / name, content)
    return refused_anew(folder)


def refused_anew(folder: Path) -> str:
    for card, text in render(folder).items():
        (folder / card).write_text(text, encoding="utf-8")
    relist(folder)
    with pytest.raises(PipelineError) as refused:
        bundle.check(folder, void_ok=False)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_models_statement_alone_is_too_little(received: Path) -> None:
    """The twin: without the clone, the policy's ε would be understated."""
    model = read_json(received / MODEL[2])

    def only_the_model(content: Content) -> None:
        content.clear()
        content.update(model)

    assert "mechanisms: found none, yet policy/config.json names candidates" in lie(received, only_the_model)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda all_: all_.update(epsilon=all_["mechanisms"][0]["epsilon"]), "less than the accountant makes"),
        (lambda all_: all_["event"]["events"].pop(), "event: not that of the mechanisms"),
        (lambda all_: all_["mechanisms"].pop(), "mechanisms: allowed are those of models/dynamics and"),
        (lambda all_: all_["mechanisms"].reverse(), "mechanisms: allowed are"),
        (lambda all_: all_["mechanisms"][0].update(noise_multiplier=9.0), "mechanisms.0: differs from"),
        (lambda all_: all_["mechanisms"][1].update(noise_multiplier=99.0), "mechanisms.1: event: not that"),
        (lambda all_: all_["mechanisms"][1].update(epsilon=0.1), "mechanisms.1: epsilon: less than"),
        (
            lambda all_: all_["mechanisms"][1].update(charge=all_["mechanisms"][0]["charge"]),
            "mechanisms.1: differs from",
        ),
        (lambda all_: all_["mechanisms"][1].update(charge="f" * 16), "found no committed charge"),
        (lambda all_: all_["spent_on_dataset"].update(epsilon=0.1), "spent_on_dataset: epsilon: less than"),
        (lambda all_: all_["public_assumptions"].pop(), "public_assumptions: leaves out"),
        (lambda all_: all_.update(units=all_["units"] + 1), "units: differs from"),
        (lambda all_: all_["groups"].pop(), "groups: not what the accountant"),
    ],
)
def test_every_lie_about_both_is_found(received: Path, change: Callable[[Content], None], says: str) -> None:
    assert says in lie(received, change)


def test_a_clone_that_nobody_paid_for_is_found(received: Path) -> None:
    def unpaid(content: Content) -> None:
        record = next(each for each in content["records"] if each["stage"] == "clone_behaviour")
        record["state"] = "reserved"

    assert "found no committed charge" in lie(received, unpaid, LEDGER)


def test_a_clone_s_statement_that_is_not_its_charge_s_is_refused(received: Path) -> None:
    assert re.search("charge .* made", lie(received, lambda own: own.update(public_units=1), CLONE))
    shutil.rmtree(received / "behaviour")
    assert "the bundle has no behaviour/privacy.json" in refused_anew(received)


@pytest.mark.parametrize("renamed", [False, True])
def test_a_bundle_that_hides_its_clone_promises_no_less(received: Path, renamed: bool) -> None:
    """The twin: where the ledger's record is renamed too, nothing tells but the maker's signature (docs/privacy.md)."""
    honest = promised(received)
    shutil.copyfile(received / MODEL[2], received / POLICY[2])
    shutil.rmtree(received / "behaviour")
    config, ledger = read_json(received / POLICY[1]), read_json(received / LEDGER)
    del config["candidates"], config["clone_error"]
    write_json(received / POLICY[1], config)
    record = next(each for each in ledger["records"] if each["stage"] == "clone_behaviour")
    del record["made"]
    record |= {"stage": "train_model"} if renamed else {}
    write_json(received / LEDGER, ledger)
    for card, text in render(received).items():
        (received / card).write_text(text, encoding="utf-8")
    relist(received)
    bundle.check(received, void_ok=False)
    assert (promised(received) == honest) == (not renamed)
