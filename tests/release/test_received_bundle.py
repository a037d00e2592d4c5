"""A bundle that comes from a stranger: whatever was changed in it is found, and nothing in
it runs.
"""

import pickle
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from primorl.base import PipelineError
from primorl.base.files import read_json, write_json
from primorl.release import bundle
from primorl.release.contents import (
    DECLARED,
    LEDGER,
    MODEL,
    POLICY,
)
from tests.release.bundles import (
    Change,
    at,
    each_refused,
    edit,
    leaves,
    refusal,
    renew_card,
)


def in_text(name: str, old: str, new: str) -> Change:
    def forge(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return forge


def archive(mode: Literal["a", "w"]) -> Change:
    """A ZIP archive, alone or behind the tensors: one reader sees a model, another a pickle."""

    def forge(folder: Path) -> None:
        with zipfile.ZipFile(folder / POLICY[0], mode) as file:
            file.writestr("data.pkl", pickle.dumps([1]))

    return forge


FORGED = [
    (archive("a"), "policy.safetensors: not a policy"),
    # Two readers of one file may see two guarantees.
    (in_text(MODEL[2], "{\n", '{\n  "epsilon": 0.1,\n'), "and each key once"),
    (in_text(MODEL[1], "-10.0", "-1e999"), "finite number"),
    (in_text("card.md", "trajectory", "person"), "card.md: not made of the figures"),
    (lambda folder: edit(folder / LEDGER, **{"x\nerror: well\x1b[2J": 1}), "x?error: well?[2J"),
    (lambda folder: write_json(folder / DECLARED, {"format": 1, "boss": "me"}), DECLARED),
]


def linked(folder: Path) -> None:
    (folder / "card.md").unlink()
    (folder / "card.md").symlink_to("/etc/hostname")


AS_IT_CAME: list[tuple[Change, str]] = [
    (at(MODEL[1], "rounds", 2), "dynamics/config.json: not the file that MANIFEST.json lists"),
    (lambda folder: (folder / "policy/setup.py").touch(), "policy/setup.py does not belong"),
    (lambda folder: (folder / "card.md").unlink(), "card.md is missing"),
    (linked, "card.md is a link"),
]


def test_a_strangers_bundle_is_refused_in_one_line(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the hashes listed anew, or as it came. No project is needed to check it."""
    each_refused(released, tmp_path, FORGED)
    each_refused(released, tmp_path, AS_IT_CAME, renew=lambda folder: None)
    monkeypatch.chdir(tmp_path)
    assert bundle.verify(released).private
    assert list(Path().iterdir()) == []
    with pytest.raises(PipelineError, match="not a folder"):
        bundle.verify(released / "card.md")


def lower(name: str, path: tuple[Any, ...], value: float) -> Iterator[tuple[Change, str]]:
    """A figure 0.1% less, and as little less as no rounding explains."""
    total = path in (("spent_on_dataset", "epsilon"), ("epsilon",) if name == LEDGER else ())
    for factor in (0.999, 1 - (3e-5 if total else 1e-8)):
        yield at(name, path, value * factor), name


def test_a_figure_that_is_not_the_accountants_is_refused(original: Path, tmp_path: Path) -> None:
    """At every ε and δ of the ledger and of the model's statement, with the policy's alike.

    Twin: the bundle itself, with its card made again, is sound.
    """

    def renew(folder: Path) -> None:
        shutil.copyfile(folder / MODEL[2], folder / POLICY[2])
        renew_card(folder)

    table: list[tuple[Change, str]] = []
    for name in (MODEL[2], LEDGER):
        for path, value in leaves(read_json(original / name)):
            curve = path[0] in ("profile", "attacks", "groups") and path[1] % 5
            if path[-1] in ("epsilon", "epsilon_rdp", "delta") and value and not curve:
                table += lower(name, path, value)
    assert len(table) > 20
    each_refused(original, tmp_path, table, renew)
    assert refusal(shutil.copytree(original, tmp_path / "copy"), renew) is None
