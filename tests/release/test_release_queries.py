"""A bundle of a model that asked private units first: its queries are stated, counted and checked, its starts too."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from primorl.commands import main as cli
from primorl.config import params
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.accounting.figures import figures
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.project.records import to_json
from primorl.release import bundle, contents
from primorl.release.build import release
from primorl.release.contents import FILES, MANIFEST, STARTS
from tests.release.released_project import inside, run_stages, tiny_params
from tests.trajectories.builders import episode, snapshot

STATISTICS = {"normaliser": "private", "starts": True, "noise_multiplier": 0.5}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound bundle of a project without a public split; read only."""
    folder = tmp_path_factory.mktemp("queries") / "project"
    raw = tiny_params()
    raw["partition"] = {"public_fraction": 0, "public": None, "salt": "primorl"}
    raw["privacy"]["statistics"] = STATISTICS
    raw["policy"]["starts"] = "released"
    run_stages(folder, raw, [episode(8, seed=i) for i in range(80)])
    with inside(folder):
        release(Path("out"), params.load(Path("params.yaml")), void_ok=False)
    return folder / "out"


@pytest.fixture
def received(released: Path, tmp_path: Path) -> Path:
    shutil.copytree(released, tmp_path / "received")
    return tmp_path / "received"


def test_it_holds_the_first_states_and_says_what_was_asked(released: Path) -> None:
    assert set(snapshot(released)) == FILES | {MANIFEST, STARTS}
    assert contents.is_bundle(released)
    statement = bundle.check(released, void_ok=False)
    assert [query.what for query in statement.queries] == ["normaliser", "starts"]
    assert statement.epsilon == accounting.Training(1.0, 4.0, 3, (0.5, 0.5)).spent(1e-3).epsilon_pld
    card = (released / "card.md").read_text(encoding="utf-8")
    assert "| queries before the rounds | normaliser, noise multiplier 0.5; starts, noise multiplier 0.5 |" in card
    assert "no unit: there is no public split" in card
    assert cli.main(["release", "--check", str(released)]) == 0


def edit(folder: Path, change: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    """The same change in the model's and the policy's statement."""
    for name in ("dynamics/privacy.json", "policy/privacy.json"):
        content = read_json(folder / name)
        change(content)
        write_json(folder / name, content)


def forget_queries(folder: Path) -> None:
    """As if nothing had been asked: event, ε and every figure of the rounds alone."""

    def change(content: dict) -> None:  # type: ignore[type-arg]
        run = accounting.Training(1.0, 4.0, 3)
        found = figures(run.event, 1e-3)
        content["queries"] = []
        content["event"] = event_to_json(run.event)
        content["epsilon_replace_one"] = found.epsilon_replace_one
        for key, names in (
            ("profile", ("epsilon", "delta")),
            ("groups", ("units", "epsilon")),
            ("attacks", ("false_positive_rate", "true_positive_rate")),
        ):
            content[key] = [dict(zip(names, point, strict=True)) for point in getattr(found, key)]
        content["epsilon"], content["epsilon_rdp"] = run.spent(1e-3).epsilon_pld, run.spent(1e-3).epsilon_rdp

    edit(folder, change)


def less_epsilon(folder: Path) -> None:
    edit(folder, lambda content: content.update(epsilon=content["epsilon"] * 0.9))


def less_epsilon_of_a_query(folder: Path) -> None:
    edit(folder, lambda content: content["queries"][1].update(epsilon=0.1))


def quiet_query(folder: Path) -> None:
    edit(folder, lambda content: content["queries"][0].update(noise_multiplier=0.0))


def another_question(folder: Path) -> None:
    edit(folder, lambda content: content["queries"][0].update(what="histogram of wages"))


def no_starts(folder: Path) -> None:
    (folder / STARTS).unlink()


def more_in_starts(folder: Path) -> None:
    file = folder / STARTS
    save_file(load_file(file), file, metadata={"made": "by ana"})


def starts_of_another_model(folder: Path) -> None:
    file = folder / STARTS
    tensors = load_file(file)
    save_file(tensors | {"high": tensors["high"] + 1}, file)


def pickled_starts(folder: Path) -> None:
    (folder / STARTS).write_bytes(b"\x80\x04K\x01.")


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (forget_queries, "starts.safetensors: there, which contradicts queries"),
        (less_epsilon, "epsilon: less than the accountant makes of the event"),
        (less_epsilon_of_a_query, "queries: starts: epsilon: less than the accountant makes of"),
        (quiet_query, "yet a query without noise"),
        (another_question, "not as declared: queries.0.what"),
        (no_starts, "starts.safetensors: missing, which contradicts queries"),
        (more_in_starts, "holds more than first states"),
        (starts_of_another_model, "its bounds are not those of dynamics/model.safetensors"),
        (pickled_starts, "not a model of first states, or damaged"),
    ],
)
def test_a_forged_one_is_refused(received: Path, forge: Callable[[Path], None], says: str) -> None:
    """Each alone, after which the forger lists all hashes anew."""
    forge(received)
    write_json(received / MANIFEST, to_json(contents.manifest_of(received)))
    with pytest.raises(PipelineError) as refused:
        bundle.check(received, void_ok=False)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_forgetting_the_queries_and_their_file_is_seen_by_the_ledger(received: Path) -> None:
    """The statement agrees with itself then; the charge in the ledger's statement is of another event."""
    forget_queries(received)
    no_starts(received)
    write_json(received / MANIFEST, to_json(contents.manifest_of(received)))
    with pytest.raises(PipelineError, match="no committed charge with the id and event"):
        bundle.check(received, void_ok=False)


def test_the_starts_are_released_numbers_only(released: Path) -> None:
    tensors = load_file(released / STARTS)
    assert set(tensors) == {"low", "high", "mean", "factor", "block", "probabilities"}
    assert all(bool(value.isfinite().all()) for value in tensors.values())
    assert json.loads((released / "policy/config.json").read_text())["variant"] == "private"
    assert torch.equal(tensors["block"], torch.full((3,), -1))
