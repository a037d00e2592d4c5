"""Signed bundles: the key's owner vouches for exactly these files, and OpenSSL says so as well."""

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from primorl.commands import main as cli
from primorl.project.errors import PipelineError
from primorl.release import bundle, signature
from primorl.release.contents import MANIFEST, SIGNATURE
from tests.release.bundles import edit, relist


def write_key(folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
    """A new private key and its public key."""
    key = Ed25519PrivateKey.generate()
    closed = BestAvailableEncryption(password) if password else NoEncryption()
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, closed))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_key(tmp_path_factory.mktemp("keys"), "maker")


@pytest.fixture
def signed(received: Path, keys: tuple[Path, Path]) -> Path:
    signature.sign(received, signature.read_private_key(keys[0]))
    return received


@pytest.mark.usefixtures("project")
def test_the_command_signs_and_verifies(keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    private, public = keys
    assert cli.main(["release", "out", "--sign", str(private)]) == 0
    assert cli.main(["release", "--check", "out", "--key", str(public)]) == 0
    assert f"signed by the owner of {public}" in capsys.readouterr().out
    assert cli.main(["release", "--check", "out"]) == 0
    assert "who made the bundle (it is signed: --key FILE verifies that)" in capsys.readouterr().out
    before = Path("out", SIGNATURE).read_bytes()
    assert cli.main(["release", "out", "--sign", str(private)]) == 0, "a signed bundle is replaced as any other"
    assert Path("out", SIGNATURE).read_bytes() == before
    assert cli.main(["release", "out"]) == 0
    assert not Path("out", SIGNATURE).exists()


def test_openssl_verifies_the_same_signature(signed: Path, keys: tuple[Path, Path]) -> None:
    tool = shutil.which("openssl")
    if tool is None:
        pytest.skip("needs openssl")
    command = [tool, "pkeyutl", "-verify", "-pubin", "-inkey", str(keys[1]), "-rawin"]
    files = ["-in", str(signed / MANIFEST), "-sigfile", str(signed / SIGNATURE)]
    assert subprocess.run([*command, *files], check=False, capture_output=True).returncode == 0


def test_a_change_after_signing_is_refused(signed: Path, keys: tuple[Path, Path]) -> None:
    """Also one that agrees with itself: whatever is changed, the manifest is."""
    bundle.check(signed, void_ok=False, key=keys[1])
    edit(signed / "evaluation.json", return_mean=0.0, return_ci95=[-1.0, 1.0])
    relist(signed)
    refused(signed, keys[1], f"{SIGNATURE}: not a signature of {MANIFEST} by the key in")


def test_another_ones_signature_and_none_are_refused(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    _, stranger = write_key(tmp_path, "stranger")
    refused(signed, stranger, "not a signature of MANIFEST.json")
    (signed / SIGNATURE).write_bytes((signed / SIGNATURE).read_bytes()[:-1])
    refused(signed, keys[1], "not a signature of MANIFEST.json")
    (signed / SIGNATURE).write_bytes(b"")
    refused(signed, keys[1], "not a signature of MANIFEST.json")
    (signed / SIGNATURE).unlink()
    refused(signed, keys[1], f"{SIGNATURE}: not there: it is not signed")
    bundle.check(signed, void_ok=False)


@pytest.mark.usefixtures("project")
def test_a_key_that_cannot_sign_or_verify_is_named(
    received: Path, keys: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed, _ = write_key(tmp_path, "closed", b"password")
    other = tmp_path / "other.key"
    curve = generate_private_key(SECP256R1())
    other.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for key, says in (
        (closed, "not a private key to sign with"),
        (other, "not a private key to sign with"),
        (keys[1], "not a private key to sign with"),
        (tmp_path / "none", "the key cannot be read (No such file or directory)"),
    ):
        assert cli.main(["release", "out", "--sign", str(key)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: {key}: {says}")
        assert error.count("\n") == 1
        assert not Path("out").exists()
    for key in (keys[0], other, received / MANIFEST):
        refused(received, key, "not a public key")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--check", "out", "--sign", "x"], "error: --sign: found with --check"),
        (["out", "--key", "x"], "error: --key: found without --check"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["release", *options]) == 1
    assert capsys.readouterr().err.startswith(says)


def refused(folder: Path, key: Path, says: str) -> None:
    with pytest.raises(PipelineError) as wrong:
        bundle.check(folder, void_ok=False, key=key)
    assert says in str(wrong.value)
    assert "\n" not in str(wrong.value)
