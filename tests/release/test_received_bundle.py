"""A bundle that comes from a stranger: whatever was changed in it is found, and nothing in
it runs.
"""

import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from primorl.base.errors import PipelineError
from primorl.base.files import write_json
from primorl.config import params
from primorl.privacy.accounting import epsilon as accounting
from primorl.privacy.accounting.events import event_to_json
from primorl.privacy.accounting.figures import figures
from primorl.release import bundle
from primorl.release.build import release
from primorl.release.contents import (
    CARDS,
    FILES,
    LEDGER,
    MANIFEST,
    MODEL,
    POLICY,
    SIGNATURE,
    STARTS,
)
from tests.data.builders import episode, snapshot
from tests.projects import inside
from tests.release.bundles import (
    Change,
    at,
    each_refused,
    edit,
    edit_statements,
    edit_tensors,
    in_tensor,
    refusal,
    renew_cards,
    together,
)
from tests.release.released_project import run_stages, tiny_params


def in_text(name: str, old: str, new: str) -> Change:
    def forge(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return forge


def archive(mode: str) -> Change:
    """A ZIP archive, alone or behind the tensors: one reader sees a model, another a pickle."""

    def forge(folder: Path) -> None:
        with zipfile.ZipFile(folder / POLICY[0], mode) as file:  # type: ignore[call-overload]
            file.writestr("data.pkl", pickle.dumps([1]))

    return forge


FORGED = [
    (archive("a"), "policy/policy.safetensors: is a ZIP archive"),
    # Two readers of one file may see two guarantees.
    (
        in_text(MODEL[2], "{\n", '{\n  "epsilon": 0.1,\n'),
        "dynamics/privacy.json: not JSON (a key is given twice",
    ),
    (
        in_text(MODEL[1], "-10.0", "-1e999"),
        "dynamics/config.json: not JSON (found -1e999, which is too large",
    ),
    (
        lambda folder: (folder / LEDGER).write_text("[" * 100_000),
        "ledger-statement.json: not JSON (RecursionError",
    ),
    (
        at(LEDGER, "records.0.event.count", 10**12),
        "ledger-statement.json: not as declared: records.0.event",
    ),
    (
        in_text("card.html", "trajectory", "person"),
        "card.html: not the card that the figures of this bundle make",
    ),
    (
        lambda folder: edit(folder / LEDGER, **{"x\nerror: all is well\x1b[2J": 1}),
        "not as declared: x?error: all is well?[2J",
    ),
]


def linked(folder: Path) -> None:
    (folder / "card.md").unlink()
    (folder / "card.md").symlink_to("/etc/hostname")


def signed(content: bytes) -> Change:
    return lambda folder: (folder / SIGNATURE).write_bytes(content)


NO_SIGNATURES = (b"", bytes(63), bytes(32) + b"\xff" * 31 + b"\x10")
AS_IT_CAME = [
    (at(MODEL[1], "rounds", 2), "dynamics/config.json: not the file that MANIFEST.json lists"),
    (
        lambda folder: (folder / "policy/setup.py").write_text("print('hello')"),
        "policy/setup.py does not belong",
    ),
    (lambda folder: (folder / "card.md").unlink(), "card.md is missing"),
    (linked, "card.md is a link"),
    (
        lambda folder: (folder / "x\nerror: all\x1b[2J").write_bytes(b""),
        "x?error: all?[2J does not belong",
    ),
    (
        lambda folder: os.truncate(folder / "card.md", 1 << 30),
        "card.md: found 1073741824 bytes, allowed are up to 16",
    ),
    (signed(bytes(10 << 20)), "MANIFEST.sig: found 10485760 bytes, allowed are up to 64;"),
    *(
        (signed(content), "MANIFEST.sig: found something else than an Ed25519")
        for content in NO_SIGNATURES
    ),
]


def test_a_strangers_bundle_is_refused_in_one_line(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the hashes listed anew, or as it came. No project is needed to check it."""
    each_refused(released, tmp_path, FORGED)
    each_refused(released, tmp_path, AS_IT_CAME, renew=lambda folder: None)
    monkeypatch.chdir(tmp_path)
    assert bundle.verify(released, void_ok=False).private
    assert list(Path().iterdir()) == []
    with pytest.raises(PipelineError, match="not a folder"):
        bundle.verify(released / "card.md", void_ok=False)


@pytest.fixture(scope="module")
def asked_first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a project without a public split, whose private units were asked before training;
    read only.
    """
    folder = tmp_path_factory.mktemp("queries") / "project"
    raw = tiny_params()
    raw["partition"] = {"public_fraction": 0, "public": None}
    raw["privacy"]["statistics"] = {"normaliser": "private", "starts": True}
    raw["policy"]["starts"] = "released"
    run_stages(folder, raw, [episode(8, seed=i) for i in range(80)])
    with inside(folder):
        release(Path("out"), params.load(Path("params.yaml")), void_ok=False)
    return folder / "out"


def in_both(path: str, value: Any) -> Change:
    """The same change in the model's and the policy's statement."""
    return together(*(at(name, path, value) for name in (MODEL[2], POLICY[2])))


def without_queries(folder: Path) -> None:
    """As if nothing had been asked: event, ε and every figure of the rounds alone."""
    run = accounting.Training(1.0, 4.0, 3)
    found, total = figures(run.event, 1e-3), run.spent(1e-3)
    content: dict[str, Any] = {"queries": [], "event": event_to_json(run.event)}
    content |= {"epsilon": total.epsilon_pld, "epsilon_rdp": total.epsilon_rdp}
    content["epsilon_replace_one"] = found.epsilon_replace_one
    content["profile"] = [{"epsilon": epsilon, "delta": delta} for epsilon, delta in found.profile]
    content["groups"] = [{"units": units, "epsilon": epsilon} for units, epsilon in found.groups]
    content["attacks"] = [
        {"false_positive_rate": a, "true_positive_rate": b} for a, b in found.attacks
    ]
    edit_statements(str(folder), **content)


def test_a_forged_bundle_with_queries_is_refused(asked_first: Path, tmp_path: Path) -> None:
    less = "less than the accountant makes of"
    table: list[tuple[Change, str]] = [
        (without_queries, "starts.safetensors: there, which contradicts queries"),
        (in_both("epsilon", 0.5), f"epsilon: {less}"),
        (in_both("queries.1.epsilon", 0.1), f"epsilon: {less}"),
        (in_both("queries.0.noise_multiplier", 0.0), "yet a query without noise"),
        (in_both("queries.0.what", "wages"), "not as declared: queries.0.what"),
        (
            lambda folder: (folder / STARTS).unlink(),
            "starts.safetensors: missing, which contradicts queries",
        ),
        (
            lambda folder: edit_tensors(folder / STARTS, {}, {"made": "by ana"}),
            "holds more than we read",
        ),
        (
            in_tensor(STARTS, "high", lambda high: high.add_(1)),
            "its bounds are not those of dynamics/model.safeten",
        ),
        (
            lambda folder: (folder / STARTS).write_bytes(b"\x80\x04K\x01."),
            "not a model of first states, or damaged",
        ),
    ]
    assert set(snapshot(asked_first)) == FILES | {MANIFEST, STARTS}
    statement = bundle.verify(asked_first, void_ok=False)
    asked = tuple(query.noise_multiplier for query in statement.queries)
    assert statement.epsilon == accounting.Training(1.0, 4.0, 3, asked).spent(1e-3).epsilon_pld
    each_refused(asked_first, tmp_path, table)
    # agrees with itself; the ledger's charge is of another event
    forgetful = shutil.copytree(asked_first, tmp_path / "forgetful")
    without_queries(forgetful)
    (forgetful / STARTS).unlink()
    assert "no committed charge with the id and event" in str(refusal(forgetful))


def test_texts_of_a_stranger_are_shown_as_text_and_an_empty_file_is_refused(
    released: Path, tmp_path: Path
) -> None:
    """Nothing in a bundle shows who wrote a text: only a signature does."""

    def declared(**texts: object) -> Change:
        return lambda folder: write_json(folder / "declared.json", {"format": 1} | texts)

    each_refused(
        released,
        tmp_path,
        [(declared(owner="see https://evil.example"), "that no card can state")],
        renew_cards,
    )
    wrong: tuple[dict[str, object], ...] = ({}, {"owner": "a\nb"}, {"boss": "me"})
    each_refused(released, tmp_path, [(declared(**texts), "declared.json") for texts in wrong])
    folder = shutil.copytree(released, tmp_path / "hostile")
    declared(owner="<script>alert(1)</script>")(folder)
    assert refusal(folder, renew_cards) is None
    assert "<script" not in (folder / CARDS[1]).read_text(encoding="utf-8")
