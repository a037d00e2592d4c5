"""The bundle that may leave: its files, its signature, and what is refused at home. Whatever was
changed in a stranger's is found, and nothing in it runs.
"""

import pickle
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pipeline import evaluate, optimize_policy, report, train_model
from pipeline import partition as partition_stage
from primorl.base import PipelineError
from primorl.base.files import file_sha256, read_json, write_json
from primorl.base.reporting import StageLog
from primorl.commands import main as cli
from primorl.config import params
from primorl.data.identity.membership import draw_public
from primorl.data.partitioning import partition
from primorl.release import bundle
from primorl.release.build import release
from primorl.release.contents import CARD, DECLARED, LEDGER, MANIFEST, NEEDED, SIGNATURE
from primorl.release.contents import MODEL as MODEL_FILES
from primorl.release.contents import POLICY as POLICY_FILES
from primorl.work.data import open_to_charge
from tests.commands.charging import edit as edit_settings
from tests.data.builders import snapshot
from tests.release.bundles import (
    Change,
    at,
    each_refused,
    edit,
    edit_statements,
    in_tensor,
    leaves,
    made,
    refusal,
    refused_at_home,
    relist,
    renew_card,
    say_who,
)
from tests.release.conftest import SECRETS

MODEL, POLICY = Path("models/dynamics"), Path("models/policy")
SUMMARY = Path("metrics/summary.json")
WEIGHTS, PRIVATE = "model.safetensors", Path("data/partitions/private/rows.parquet")
DECLARATION = {
    "owner": "Ward 3",
    "purpose": "dosing",
    "contact": "x@hospital.example",
    "licence": "CC BY 4.0",
}


def test_a_bundle_is_these_files_and_checks(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing hidden beside them: no time of a file tells when training ended, no path tells where,
    nothing random.
    """
    assert cli.main(["release", "out"]) == 0
    assert set(snapshot(Path("out"))) == NEEDED | {MANIFEST}
    assert {path.stat().st_mtime for path in (Path("out"), *Path("out").rglob("*"))} == {315532800}
    assert str(project).encode() not in b"".join(snapshot(Path("out")).values())
    assert cli.main(["release", "--check", "out"]) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(
        r"out: made and checked; (ε = .* per trajectory)\nout: sound; \1\nnot checked: .*\n", said
    )
    assert snapshot(made("again")) == snapshot(Path("out"))


# What must not leave


def everywhere(**changes: Any) -> None:
    edit_statements(**changes)
    edit(SUMMARY, **{key: value for key, value in changes.items() if key in read_json(SUMMARY)})


def record() -> None:
    """Let the ledger say that the charge made the files that are here."""
    charge = read_json(MODEL / "privacy.json")["charge"]
    ledger = open_to_charge(params.load(Path("params.yaml")))
    ledger.commit(charge, {file.name: file_sha256(file) for file in MODEL.iterdir()})


def assumed(text: str) -> None:
    edit_statements(public_assumptions=[text])
    record()


def void() -> None:
    everywhere(void=["noise is seeded"])
    record()


def another_policy() -> None:
    in_tensor("policy.safetensors", "layers.0.weight", lambda tensor: tensor.add_(0.5))(POLICY)
    edit(SUMMARY, policy_sha256=file_sha256(POLICY / "policy.safetensors"))


UNKEYED = "holds an unkeyed digest of something that is not here"
MD5 = "0123456789abcdef0123456789abcdef"
DAMAGES: list[tuple[Callable[[], object], str]] = [
    (lambda: say_who(MODEL / WEIGHTS), "of an earlier run"),
    (lambda: everywhere(epsilon=0.1), "the accountant finds"),
    (void, "void: noise is seeded"),
    (lambda: edit(SUMMARY, epsilon=3.0), "metrics/summary.json: epsilon"),
    (lambda: edit_statements(charge="f" * 16), f"charge {'f' * 16} is not in the ledger"),
    (lambda: assumed(f"DVC's {MD5}.dir"), UNKEYED),
    (lambda: assumed("all in data/partitions/private"), "holds a path"),
    # Every copy is edited alike, so only the ledger and the manifest of the data can tell.
    (another_policy, "models/policy/config.json: policy_sha256: differs"),
    (lambda: everywhere(units=30_000), "is not below one over the units"),
    (
        lambda: everywhere(public_assumptions=[]),
        ", by the ledger: damaged",
    ),
    (lambda: edit_settings("params.yaml", privacy={"delta": 1e-4}), "privacy.delta: found 0.0001"),
]


@pytest.mark.parametrize(
    ("damage", "says"), DAMAGES, ids=[f"{n}: {says}" for n, (_, says) in enumerate(DAMAGES)]
)
@pytest.mark.usefixtures("project")
def test_what_must_not_leave_is_refused_in_one_line_and_nothing_is_left(
    damage: Callable[[], None], says: str
) -> None:
    damage()
    refused_at_home(says)


@pytest.mark.usefixtures("project")
def test_only_an_empty_folder_is_replaced() -> None:
    Path("empty").mkdir()
    before = snapshot(made("empty"))
    Path("link").symlink_to("models")
    for target in ("empty", ".", "link", "empty/card.md"):
        with pytest.raises(PipelineError, match="in the way; allowed is a new or empty folder"):
            made(target)
    assert snapshot(Path("empty")) == before


def test_the_ledgers_statement_tells_what_was_spent_and_nothing_else(original: Path) -> None:
    """Runs on a version that shares a unit count, runs on other data are not mentioned; nothing
    says who or when.
    """
    statement = read_json(original / LEDGER)
    own, other = statement["records"]
    assert (own["stage"], own["same_version"]) == ("train_model", True)
    assert (other["stage"], other["state"], other["same_version"]) == ("audit", "reserved", False)
    assert statement["charges"] == 2
    assert statement["epsilon"] > read_json(original / "policy/privacy.json")["epsilon"]
    everything = b"".join(snapshot(original).values())
    hidden = [*SECRETS.values(), "5" * 64, "6" * 64, "other-data", "elsewhere"]
    assert [word for word in hidden if word.encode() in everything] == []
    assert re.search(rb"\dT[0-2]\d:", everything) is None, "no time of day"
    members = (original.parent / "data/partitions/units.bin").read_bytes()
    units = [members[start : start + 16] for start in range(0, len(members), 16)]
    assert not any(digest in everything or digest.hex().encode() in everything for digest in units)


# Texts of people


def declare(card: object) -> None:
    file = Path("datasets/pendulum-replay.yaml")
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    file.write_text(yaml.safe_dump(content | {"card": card}), encoding="utf-8")


@pytest.mark.usefixtures("project")
def test_the_bundle_says_what_was_declared() -> None:
    """Twins: without the texts there is no such file, which a log needs: there `release` names all
    that is missing.
    """
    labels = {"observation_0": "cosine of the angle"}
    declare(DECLARATION | {"labels": labels})
    folder = made("with")
    assert read_json(folder / DECLARED) == DECLARATION | {"format": 1, "labels": labels}
    card = (folder / CARD).read_text(encoding="utf-8")
    assert all(text in card for text in (*DECLARATION.values(), *labels.values()))
    declare({})
    assert not (made("without") / DECLARED).exists()
    declare(DECLARATION | {"contact": "see /home/jane/notes.txt"})
    refused_at_home("datasets/pendulum-replay.yaml: card: holds a path")
    declare(DECLARATION | {"labels": {"observation_0": "observation_1"}})
    refused_at_home("card.labels: found 'observation_1' for 'observation_0', which is another's")


def test_a_unit_that_was_charged_as_private_never_becomes_public(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another salt with the same counts: the stage refuses it, and so does whatever reads such a
    split anyway.
    """
    chosen, run = params.load(Path("params.yaml")), StageLog()

    def public(salt: str) -> int:
        monkeypatch.setattr("primorl.data.identity.membership._SALT", salt.encode())
        return int(draw_public(pa.array(units), 0.3).sum())

    units = pq.read_table("data/trajectories")["unit_id"].unique().to_pylist()
    own = public("7:primorl")
    other = next(salt for salt in map(str, range(1000)) if public(salt) == own)
    before = snapshot(Path("data/partitions"))
    with pytest.raises(PipelineError, match="charged for as private"):
        partition_stage.body(chosen, run)
    assert snapshot(Path("data/partitions")) == before, "nothing is half-written"
    public("7:primorl")
    partition_stage.body(chosen, run)
    public(other)
    partition(Path("data/trajectories"), Path("data/partitions"), public_fraction=0.3)
    for use in (
        partial(
            optimize_policy.body,
            replace(chosen, policy=replace(chosen.policy, starts="public")),
            run,
        ),
        *(partial(stage.body, chosen, run) for stage in (train_model, evaluate, report)),
        partial(release, Path("out"), chosen),
    ):
        with pytest.raises(PipelineError, match="charged for as private"):
            use()
    assert cli.main(["plan", "--json"]) == 1
    assert "charged for as private" in "".join(capsys.readouterr())


def write_key(folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
    """A new private key and its public key."""
    key = Ed25519PrivateKey.generate()
    closed = BestAvailableEncryption(password) if password else NoEncryption()
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, closed))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def refused(folder: Path, key: Path, says: str) -> None:
    with pytest.raises(PipelineError) as wrong:
        bundle.verify(folder, key=key)
    assert says in str(wrong.value)
    assert "\n" not in str(wrong.value)


@pytest.mark.usefixtures("project")
def test_the_command_signs_and_whatever_is_changed_afterwards_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a change that agrees with itself: the manifest changes too.

    Twin: OpenSSL verifies the same signature.
    """
    private, public = write_key(tmp_path, "maker")
    assert cli.main(["release", "out", "--sign", str(private)]) == 0
    assert cli.main(["release", "--check", "out", "--key", str(public)]) == 0
    assert f"signed by the owner of {public}" in capsys.readouterr().out
    signed = Path("out")
    if shutil.which("openssl") is not None:
        command = f"openssl pkeyutl -verify -pubin -inkey {public} -rawin".split()
        files = ["-in", str(signed / MANIFEST), "-sigfile", str(signed / SIGNATURE)]
        subprocess.run([*command, *files], check=True, capture_output=True)
    assert cli.main(["release", "--check", "out"]) == 0
    assert f"({SIGNATURE} was not verified: --key FILE" in capsys.readouterr().out
    _, stranger = write_key(tmp_path, "stranger")
    refused(signed, stranger, "not a signature of MANIFEST.json")
    signature = (signed / SIGNATURE).read_bytes()
    (signed / SIGNATURE).write_bytes(signature[:-1])
    refused(signed, public, f"{SIGNATURE}: not a signature of")
    (signed / SIGNATURE).write_bytes(signature)
    edit(signed / "evaluation.json", return_mean=0.0, return_ci95=[-1.0, 1.0])
    relist(signed)
    refused(signed, public, f"{SIGNATURE}: not a signature of {MANIFEST} by the key in")
    shutil.rmtree(signed)
    assert cli.main(["release", "out"]) == 0
    refused(signed, public, f"{SIGNATURE}: not there: it is not signed")
    for key in (private, signed / MANIFEST):
        refused(signed, key, "not a public key")


@pytest.mark.usefixtures("project")
def test_a_key_that_cannot_sign_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed, public = write_key(tmp_path, "closed", b"password")
    for words, says in (
        (["out", "--sign", str(closed)], f"{closed}: not a private key to sign with"),
        (["out", "--sign", str(public)], f"{public}: not a private key to sign with"),
        (["out", "--sign", "none"], "none: the key cannot be read"),
        (["--check", "out", "--sign", "x"], "--sign: found with --check"),
        (["out", "--key", "x"], "--key: found without --check"),
    ):
        assert cli.main(["release", *words]) == 1
        assert says in capsys.readouterr().err
        assert not Path("out").exists()


# What a stranger sends


def in_text(name: str, old: str, new: str) -> Change:
    def forge(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return forge


def archive(mode: Literal["a", "w"]) -> Change:
    """A ZIP archive, alone or behind the tensors: one reader sees a model, another a pickle."""

    def forge(folder: Path) -> None:
        with zipfile.ZipFile(folder / POLICY_FILES[0], mode) as file:
            file.writestr("data.pkl", pickle.dumps([1]))

    return forge


STRANGE = [
    (archive("a"), "policy.safetensors: not a policy"),
    # Two readers of one file may see two guarantees.
    (in_text(MODEL_FILES[2], "{\n", '{\n  "epsilon": 0.1,\n'), "and each key once"),
    (in_text(MODEL_FILES[1], "-10.0", "-1e999"), "finite number"),
    (in_text("card.md", "trajectory", "person"), "card.md: not made of the figures"),
    (lambda folder: edit(folder / LEDGER, **{"x\nerror: well\x1b[2J": 1}), "x?error: well?[2J"),
    (lambda folder: write_json(folder / DECLARED, {"format": 1, "boss": "me"}), DECLARED),
]


def linked(folder: Path) -> None:
    (folder / "card.md").unlink()
    (folder / "card.md").symlink_to("/etc/hostname")


AS_IT_CAME: list[tuple[Change, str]] = [
    (
        at(MODEL_FILES[1], "rounds", 2),
        "dynamics/config.json: not the file that MANIFEST.json lists",
    ),
    (lambda folder: (folder / "policy/setup.py").touch(), "policy/setup.py does not belong"),
    (lambda folder: (folder / "card.md").unlink(), "card.md is missing"),
    (linked, "card.md is a link"),
]


def test_a_strangers_bundle_is_refused_in_one_line(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the hashes listed anew, or as it came. No project is needed to check it."""
    each_refused(released, tmp_path, STRANGE)
    each_refused(released, tmp_path, AS_IT_CAME, renew=lambda folder: None)
    monkeypatch.chdir(tmp_path)
    assert bundle.verify(released).of_policy.private
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
        shutil.copyfile(folder / MODEL_FILES[2], folder / POLICY_FILES[2])
        renew_card(folder)

    table: list[tuple[Change, str]] = []
    for name in (MODEL_FILES[2], LEDGER):
        for path, value in leaves(read_json(original / name)):
            curve = path[0] in ("profile", "attacks", "groups") and path[1] % 5
            if path[-1] in ("epsilon", "epsilon_rdp", "delta") and value and not curve:
                table += lower(name, path, value)
    assert len(table) > 20
    each_refused(original, tmp_path, table, renew)
    assert refusal(shutil.copytree(original, tmp_path / "copy"), renew) is None
