"""docs/how-to/remote-storage.md: the remote on S3, tried against a server that speaks S3's
protocol.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dvc_s3")
moto_server = pytest.importorskip("moto.server")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "remote-storage.md"
BUCKET = "bucket"
PIPELINE = """
stages:
  make:
    cmd: mkdir private && echo rows > private/rows && echo weights > released
    outs:
      - private: {push: false}
      - released
"""
KEYS = ("access_key_id", "secret_access_key")


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server with a bucket, on a free port of the loopback interface."""
    for name in ("PROFILE", "ENDPOINT_URL", "CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        client(address).create_bucket(Bucket=BUCKET)
        yield address
    finally:
        server.stop()


def client(endpoint: str) -> Any:
    import boto3

    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="made-up", aws_secret_access_key="made-up"
    )


def contents(endpoint: str) -> set[bytes]:
    s3 = client(endpoint)
    found = s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return {s3.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read() for each in found}


def test_released_outputs_go_to_s3_and_private_ones_stay(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's commands, with the server's address and keys in the place of the page's."""
    from dvc.cli import main  # in this process: starting five takes longer than all they do

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)

    page = PAGE.read_text(encoding="utf-8")

    def dvc(*words: str) -> None:
        assert words[0] in ("init", "repro") or f"dvc {words[0]}" in page, "the page's commands"
        assert main([*words, "--quiet"]) == 0

    dvc("init", "--no-scm")
    Path("dvc.yaml").write_text(PIPELINE)
    Path("params.yaml").write_text("a: 1\n")
    dvc("repro")
    dvc("remote", "add", "-d", "shared", f"s3://{BUCKET}/primorl")
    dvc("remote", "modify", "shared", "endpointurl", endpoint)
    for key in KEYS:
        dvc("remote", "modify", "--local", "shared", key, "made-up")
    dvc("push")
    assert b"weights\n" in contents(endpoint)
    assert b"rows\n" not in contents(endpoint), "what is private never reaches a remote"
    assert "made-up" not in Path(".dvc/config").read_text(encoding="utf-8"), "git commits this file"
    Path("released").unlink()
    shutil.rmtree(".dvc/cache")
    dvc("pull", "released")
    assert Path("released").read_text() == "weights\n"
