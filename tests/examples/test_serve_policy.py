"""The example of a service: it answers, abstains and refuses over a real connection."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from examples.serve_policy import MOST_BYTES, server
from primorl.policy.loaded import Policy
from tests.policy.test_loaded import NAMES, RANGE, loaded
from tests.projects import ROOT

INSIDE = [0.5, -9.0, 5.0]


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return loaded(tmp_path, **RANGE, **NAMES)


@contextmanager
def serving(policy: Policy) -> Iterator[int]:
    with server(policy, "127.0.0.1", 0) as service:
        thread = Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield service.server_port
        service.shutdown()
        thread.join()


@contextmanager
def listening(command: list[str], cwd: Path) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Run the script; give its port."""
    pipe = subprocess.PIPE
    command = [*command, "--port", "0"]
    with subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"at http://127\.0\.0\.1:(\d+)/act", process.stdout.readline())
            assert found is not None
            yield int(found[1]), process
        finally:
            process.terminate()


@pytest.fixture
def port(policy: Policy) -> Iterator[int]:
    with serving(policy) as number:
        yield number


def post(port: int, body: bytes, path: str = "/act", **headers: str) -> tuple[int, Any]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def asked(port: int, observation: Any) -> tuple[int, Any]:
    return post(port, json.dumps({"observation": observation}).encode())


def test_it_gives_the_policys_action_or_says_why_not(
    port: int, policy: Policy, tmp_path: Path
) -> None:
    action: Any = policy.act(INSIDE)
    assert asked(port, INSIDE) == (200, {"action": action.tolist()})
    named = {"weight": INSIDE[2], "age": INSIDE[0], "dose": INSIDE[1]}
    assert asked(port, named) == (200, {"action": action.tolist()})
    assert asked(port, {"age": 1.0})[0] == 422
    status, answer = asked(port, [987654.0, 0.0, 5.0])
    assert (status, set(answer), answer["abstained"]) == (200, {"abstained", "reason"}, True)
    assert "observation: age" in answer["reason"]
    assert "987654" not in answer["reason"], "a value of a person is not repeated"
    clone = loaded(tmp_path / "clone", discrete=True, drawn=True)
    with serving(clone) as other:
        (shares,) = clone.probabilities([INSIDE]).tolist()
        assert asked(other, INSIDE) == (200, {"probabilities": shares})


def test_other_requests_are_refused_and_the_service_goes_on(port: int) -> None:
    for observation in ([1.0], [INSIDE], ["0.5", -9, 5], [None, 0, 5], [True, 0, 5], 5):
        status, answer = asked(port, observation)
        assert (status, set(answer)) == (422, {"error"}), observation
    assert post(port, b"{}", path="/")[0] == 404
    for body in (b"{", b"[" * 100_000):
        assert post(port, body)[0] == 400
    for length, status in ((str(MOST_BYTES + 1), 413), ("9" * 5000, 413), ("-1", 411)):
        assert post(port, b"", **{"Content-Length": length})[0] == status
    assert asked(port, INSIDE)[0] == 200


def test_the_script_listens_on_loopback_and_logs_no_value(tmp_path: Path, policy: Policy) -> None:
    script = [sys.executable, "-u", "examples/serve_policy.py", "--policy", str(tmp_path)]
    with listening(script, ROOT) as (port, process):
        assert asked(port, [0.515625, -9.0, 5.0])[0] == 200
        process.terminate()
        assert "0.515625" not in process.communicate()[1]
