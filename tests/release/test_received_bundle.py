"""A bundle that comes from a stranger: whatever was changed in it is found, and nothing in it runs."""

import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.release import bundle
from primorl.release.contents import LEDGER
from tests.release.bundles import TEXTS, edit, relist


def swapped(folder: Path) -> None:
    edit(folder / "dynamics/config.json", rounds=2)


def extra_file(folder: Path) -> None:
    (folder / "policy/setup.py").write_text("print('hello')", encoding="utf-8")


def extra_folder(folder: Path) -> None:
    (folder / "notes").mkdir()


def missing(folder: Path) -> None:
    (folder / "card.md").unlink()


def linked(folder: Path) -> None:
    (folder / "card.md").unlink()
    (folder / "card.md").symlink_to("/etc/hostname")


def archive(folder: Path) -> None:
    with zipfile.ZipFile(folder / "policy/policy.safetensors", "w") as file:
        file.writestr("data.pkl", pickle.dumps([1]))
    relist(folder)


def polyglot(folder: Path) -> None:
    """A model with an archive behind it: one reader sees tensors, another a pickle."""
    with zipfile.ZipFile(folder / "policy/policy.safetensors", "a") as file:
        file.writestr("data.pkl", pickle.dumps([1]))
    relist(folder)


def two_epsilons(folder: Path) -> None:
    """Two readers of one file may then see two guarantees."""
    for part in ("dynamics", "policy"):
        path = folder / part / "privacy.json"
        path.write_text(path.read_text(encoding="utf-8").replace("{\n", '{\n  "epsilon": 0.1,\n', 1), encoding="utf-8")
    relist(folder)


def infinite(folder: Path) -> None:
    path = folder / "dynamics/config.json"
    path.write_text(path.read_text(encoding="utf-8").replace("-10.0", "-1e999"), encoding="utf-8")
    relist(folder)


def deep(folder: Path) -> None:
    (folder / LEDGER).write_text("[" * 100_000, encoding="utf-8")
    relist(folder)


def endless_event(folder: Path) -> None:
    ledger = read_json(folder / LEDGER)
    ledger["records"][0]["event"]["count"] = 10**12
    write_json(folder / LEDGER, ledger)
    relist(folder)


def forged_epsilon(folder: Path) -> None:
    """Lower everywhere, hashes and card included: only accounting again finds it."""
    epsilon = json.dumps(read_json(folder / "policy/privacy.json")["epsilon"])
    for name in TEXTS:
        path = folder / name
        path.write_text(path.read_text(encoding="utf-8").replace(epsilon, "0.123456789012345"), encoding="utf-8")
    relist(folder)


def forged_total(folder: Path) -> None:
    edit(folder / LEDGER, epsilon=0.1)
    relist(folder)


def forged_card(folder: Path) -> None:
    path = folder / "card.html"
    epsilon = json.dumps(read_json(folder / "policy/privacy.json")["epsilon"])
    path.write_text(path.read_text(encoding="utf-8").replace(f"<td>{epsilon}</td>", "<td>0.1</td>"), encoding="utf-8")
    relist(folder)


def forged_account(folder: Path) -> None:
    """What was spent before is left out of the statement."""
    for part in ("dynamics", "policy"):
        spent = read_json(folder / part / "privacy.json")["spent_on_dataset"]
        edit(folder / part / "privacy.json", spent_on_dataset=spent | {"epsilon": 0.1})
    relist(folder)


def rude_name(folder: Path) -> None:
    (folder / "x\nerror: all is well\x1b[2J").write_bytes(b"")


def rude_key(folder: Path) -> None:
    edit(folder / LEDGER, **{"x\nerror: all is well\x1b[2J": 1})
    relist(folder)


def script_in_card(folder: Path) -> None:
    path = folder / "card.html"
    path.write_text(path.read_text(encoding="utf-8").replace("<main>", "<main><script>1</script>"), encoding="utf-8")
    relist(folder)


def link_in_card(folder: Path) -> None:
    path = folder / "card.md"
    path.write_text(path.read_text(encoding="utf-8") + "[more](javascript:1)\n", encoding="utf-8")
    relist(folder)


def large(folder: Path) -> None:
    with (folder / "card.md").open("r+b") as file:
        file.truncate(1 << 30)


def other_range(folder: Path) -> None:
    low = read_json(folder / "policy/config.json")["observation_low"]
    edit(folder / "policy/config.json", observation_low=[low[0] - 1.0, *low[1:]])
    relist(folder)


def other_names(folder: Path) -> None:
    edit(folder / "policy/config.json", observation_names=["a", "b", "c"])
    relist(folder)


def other_time(folder: Path) -> None:
    names = read_json(folder / "policy/config.json")["observation_names"]
    edit(folder / "policy/config.json", elapsed={"name": names[0], "unit": "hours", "most": 4.0})
    relist(folder)


def other_rounds(folder: Path) -> None:
    edit(folder / "dynamics/config.json", rounds=4)
    relist(folder)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (swapped, "dynamics/config.json: not the file that MANIFEST.json lists"),
        (extra_file, "policy/setup.py does not belong"),
        (extra_folder, "notes does not belong"),
        (missing, "card.md is missing"),
        (linked, "card.md is a link"),
        (archive, "policy/policy.safetensors: is a ZIP archive"),
        (polyglot, "policy/policy.safetensors: is a ZIP archive"),
        (two_epsilons, "dynamics/privacy.json: not JSON (a key is given twice"),
        (infinite, "dynamics/config.json: not JSON (found -1e999, which is too large"),
        (deep, "ledger-statement.json: not JSON (RecursionError"),
        (endless_event, "ledger-statement.json: not as declared: records.0.event"),
        (forged_epsilon, "dynamics/privacy.json: epsilon: less than the accountant"),
        (forged_total, "ledger-statement.json: epsilon: less than the accountant"),
        (forged_account, "dynamics/privacy.json: spent_on_dataset: epsilon: less than the accountant"),
        (forged_card, "card.html: not the card that the figures of this bundle make"),
        (rude_name, "x?error: all is well?[2J does not belong"),
        (rude_key, "ledger-statement.json: not as declared: x?error: all is well?[2J"),
        (script_in_card, "card.html: holds markup that is not ours"),
        (link_in_card, "card.md: holds markup that is not ours"),
        (large, "card.md is larger"),
        (other_range, "policy/config.json: observation_low: not the bound in dynamics/model.safetensors"),
        (other_names, "policy/config.json: observation_names: differs from dynamics/config.json"),
        (other_time, "policy/config.json: elapsed: differs from dynamics/config.json"),
        (other_rounds, "dynamics/config.json: rounds: more than the 3"),
    ],
)
def test_a_strangers_bundle_is_refused_in_one_line(received: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(received)
    with pytest.raises(PipelineError, match=re.escape(says)) as refused:
        bundle.check(received, void_ok=False)
    assert "\n" not in str(refused.value)


def test_a_bundle_needs_no_project_to_be_checked(received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (received.parent / "elsewhere").mkdir()
    monkeypatch.chdir(received.parent / "elsewhere")
    assert bundle.check(received, void_ok=False).private
    assert list(Path().iterdir()) == []
    with pytest.raises(PipelineError, match="not a folder"):
        bundle.check(received / "card.md", void_ok=False)
