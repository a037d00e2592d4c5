"""Signatures of bundles: Ed25519 over the bytes of ``MANIFEST.json``, which names every other file by its digest.

``MANIFEST.sig`` holds the 64 bytes of the signature and nothing else, so that OpenSSL can verify it as well. Keys are
PEM files: PKCS #8 without a password, and SubjectPublicKeyInfo.
"""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from primorl.project.errors import PipelineError
from primorl.release.contents import MANIFEST, SIGNATURE


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the key to sign with.

    Raises:
        PipelineError: it is no private Ed25519 key in PEM, or it has a password.
    """
    try:
        key = load_pem_private_key(_content(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise PipelineError(
            f"{path}: not a private key to sign with; allowed is Ed25519 in PEM without a password: "
            "`openssl genpkey -algorithm ed25519 -out FILE` makes one"
        )
    return key


def sign(folder: Path, key: Ed25519PrivateKey) -> None:
    """Sign the bundle in ``folder``: writes ``MANIFEST.sig``."""
    (folder / SIGNATURE).write_bytes(key.sign((folder / MANIFEST).read_bytes()))


def verify(folder: Path, path: Path) -> None:
    """Verify the signature of the bundle in ``folder``.

    Args:
        folder: of the bundle.
        path: the signer's public key.

    Raises:
        PipelineError: there is no signature, it is of another key or other bytes, or the key cannot be read.
    """
    try:
        key = load_pem_public_key(_content(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise PipelineError(
            f"{path}: not a public key; allowed is Ed25519 in PEM: `openssl pkey -in KEY -pubout -out FILE` writes it"
        )
    if not (folder / SIGNATURE).exists():
        raise PipelineError(f"{folder / SIGNATURE}: not there: it is not signed; ask its maker for a signed bundle")
    try:
        key.verify((folder / SIGNATURE).read_bytes(), (folder / MANIFEST).read_bytes())
    except InvalidSignature:
        raise PipelineError(
            f"{folder / SIGNATURE}: not a signature of {MANIFEST} by the key in {path}: the bundle was changed, or "
            "somebody else signed it; do not rely on it"
        ) from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as wrong:
        raise PipelineError(f"{path}: the key cannot be read ({wrong.strerror}); name an existing file") from None
