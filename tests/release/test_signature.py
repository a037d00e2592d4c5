"""Signed bundles: the key's owner vouches for exactly these files, and OpenSSL says so as well."""

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from primorl.base.errors import PipelineError
from primorl.commands import main as cli
from primorl.release import bundle
from primorl.release.contents import MANIFEST, SIGNATURE
from tests.release.bundles import edit, relist


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
    own = (signed / SIGNATURE).read_bytes()
    (signed / SIGNATURE).write_bytes(own[:-1])
    refused(signed, public, f"{SIGNATURE}: not a signature of")
    # a signed bundle is replaced as any other
    assert cli.main(["release", "out", "--sign", str(private)]) == 0
    assert (signed / SIGNATURE).read_bytes() == own
    edit(signed / "evaluation.json", return_mean=0.0, return_ci95=[-1.0, 1.0])
    relist(signed)
    refused(signed, public, f"{SIGNATURE}: not a signature of {MANIFEST} by the key in")
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
