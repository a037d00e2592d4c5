"""docs/how-to/remote-storage.md: the remote on S3, tried against a server that speaks S3's
protocol.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primorl.commands import main as cli
from tests.commands.test_data import PIPELINE

pytest.importorskip("dvc_s3")
moto_server = pytest.importorskip("moto.server")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "remote-storage.md"
BUCKETS = {"shared": "bucket", "vault": "private-bucket"}
KEYS = ("access_key_id", "secret_access_key")


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server with the page's buckets, on a free port of the loopback interface."""
    for name in ("PROFILE", "ENDPOINT_URL", "CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        for bucket in BUCKETS.values():
            client(address).create_bucket(Bucket=bucket)
        yield address
    finally:
        server.stop()


def client(endpoint: str) -> Any:
    import boto3

    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="made-up", aws_secret_access_key="made-up"
    )


def contents(endpoint: str, bucket: str) -> set[bytes]:
    s3 = client(endpoint)
    found = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {s3.get_object(Bucket=bucket, Key=each["Key"])["Body"].read() for each in found}


def test_released_outputs_go_to_s3_and_private_ones_only_where_they_are_sent(
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page's commands, with the server's address and keys in the place of the page's."""
    from dvc.cli import main  # in this process: starting five takes longer than all they do

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)

    page = PAGE.read_text(encoding="utf-8")

    def dvc(*words: str) -> None:
        assert words[0] in ("init", "repro") or f"\ndvc {words[0]}" in page, "the page's commands"
        assert main([*words, "--quiet"]) == 0

    dvc("init", "--no-scm")
    Path("dvc.yaml").write_text(PIPELINE)
    Path("params.yaml").write_text("a: 1\n")
    dvc("repro")
    for name, bucket in BUCKETS.items():
        dvc("remote", "add", *(["-d"] if name == "shared" else []), name, f"s3://{bucket}/primorl")
        dvc("remote", "modify", name, "endpointurl", endpoint)
        for key in KEYS:
            dvc("remote", "modify", "--local", name, key, "made-up")
    dvc("push")
    assert b"weights\n" in contents(endpoint, "bucket")
    assert contents(endpoint, "private-bucket") == set()

    assert cli.main(["data", "push", "--remote", "vault"]) == 0
    assert capsys.readouterr().out.endswith("private: on remote vault\n")
    assert b"rows\n" in contents(endpoint, "private-bucket")
    # the twin: what is private never reaches the shared remote
    assert b"rows\n" not in contents(endpoint, "bucket")
    assert "made-up" not in Path(".dvc/config").read_text(encoding="utf-8"), "git commits this file"

    Path("released").unlink()
    for folder in ("private", ".dvc/cache"):
        shutil.rmtree(folder)
    dvc("pull", "released")
    dvc("pull", "--remote", "vault", "private")
    assert Path("released").read_text() == "weights\n"
    assert Path("private/rows").read_text() == "rows\n"
