"""Serve a policy over HTTP, with the standard library alone.

python examples/serve_policy.py --policy models/policy --port 8000
curl -d '{"observation": [1.0, 0.0, 0.0]}' http://127.0.0.1:8000/act
curl -d '{"observation": {"age": 61, "pressure": 80, "dose before": 0}}' http://127.0.0.1:8000/act
(of a log)

The answer is {"action": [0.3]}, or {"action": 2, "action_name": "high"} where actions are discrete.
Of a clone of today's practice, whose actions are not computed, it is {"probabilities": [0.2, 0.8]}.
Where a value lies outside the declared or public range, or a column is two categories or none, it
is {"abstained": true, "reason": "..."}, also with status 200: the policy was asked and gives no
action. An observation of another width, or with something else than numbers and names of
categories, is status 422. No value is logged or sent back.

Other machines cannot reach it by default. It has no encryption and asks nobody who they are. Put a
server that does both in front of it before you name another address with --host.
"""

import argparse
import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import primorl
from primorl.base import PipelineError
from primorl.policy.loaded import ObservationError, OutsideRangeError, Policy

MOST_BYTES = 2**20  # of a request
SECONDS = 10  # that a client may keep a thread waiting


class Handler(BaseHTTPRequestHandler):
    """Answers ``POST /act``."""

    policy: Policy
    timeout = SECONDS

    def do_POST(self) -> None:
        """Answer one request."""
        status, answer = self._answer()
        self._send(status, answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer in JSON where a request is no HTTP, or has another method."""
        self.close_connection = True
        self._send(HTTPStatus(code), {"error": "found no POST request; allowed is POST /act"})

    def _send(self, status: HTTPStatus, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> tuple[HTTPStatus, dict[str, Any]]:
        if self.path != "/act":
            return HTTPStatus.NOT_FOUND, {"error": "found another path; allowed is /act"}
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            return HTTPStatus.LENGTH_REQUIRED, {"error": "found no Content-Length"}
        if len(length) > len(str(MOST_BYTES)) or int(length) > MOST_BYTES:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"allowed are {MOST_BYTES} bytes"}
        try:
            asked = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return HTTPStatus.BAD_REQUEST, {
                "error": "found no JSON; allowed is an object with a key observation"
            }
        observation = asked.get("observation") if isinstance(asked, dict) else None
        if isinstance(observation, dict):
            observation = [_named(observation, name) for name in self.policy.observation_names]
        if not (
            isinstance(observation, list)
            and all(type(value) in (int, float) for value in observation)
        ):
            names = ", ".join(self.policy.observation_names) or "no names"
            allowed = f"a list of {self.policy.observation_size} numbers, or an object with {names}"
            return HTTPStatus.UNPROCESSABLE_ENTITY, {
                "error": f"observation: found no numbers; allowed is {allowed}"
            }
        try:
            if self.policy.drawn:
                (shares,) = self.policy.probabilities([observation]).tolist()
                return HTTPStatus.OK, {"probabilities": shares}
            action = self.policy.act(observation)
            answer: dict[str, Any] = {
                "action": action if isinstance(action, int) else action.tolist()
            }
            if self.policy.action_names and isinstance(action, int):
                answer["action_name"] = self.policy.action_names[action]
        except OutsideRangeError as outside:
            return HTTPStatus.OK, {"abstained": True, "reason": str(outside)}
        except ObservationError as wrong:
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(wrong)}
        return HTTPStatus.OK, answer


def _named(observation: dict[str, Any], name: str) -> Any:
    """The value of a dimension; that of ``meal=snack`` may be told by ``"meal": "snack"``."""
    column, is_category, category = name.partition("=")
    if is_category and column in observation and name not in observation:
        return int(observation[column] == category)
    return observation.get(name)


def server(policy: Policy, host: str, port: int) -> ThreadingHTTPServer:
    """A server of ``policy`` that listens at once; port 0 takes a free one."""
    return ThreadingHTTPServer((host, port), type("PolicyHandler", (Handler,), {"policy": policy}))


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="models/policy", metavar="DIR")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="0: a free one")
    parser.add_argument(
        "--against-advice", action="store_true", help="serve it although its run advises against it"
    )
    arguments = parser.parse_args()
    try:
        policy = primorl.load_policy(arguments.policy, against_advice=arguments.against_advice)
        with server(policy, arguments.host, arguments.port) as serving:
            address = f"http://{arguments.host}:{serving.server_port}/act"
            print(f"serving {arguments.policy} at {address}", flush=True)
            serving.serve_forever()
    except PipelineError as wrong:
        sys.exit(f"error: {wrong}")
    except OSError as wrong:
        sys.exit(
            f"error: --host and --port: {arguments.host}:{arguments.port}: "
            f"{wrong.strerror or wrong}"
        )
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    main()
