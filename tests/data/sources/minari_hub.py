"""A mirror of Minari's hub on this machine: a folder, in the protocol that Minari's client
speaks.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.data.builders import create
from tests.data.sources.minari_builders import box_episode, box_spaces

AUTHOR, COMMIT = "farama-minari", "0" * 40


def publish(root: Path, dataset_id: str) -> None:
    """Put a dataset of two episodes on the mirror, in its namespaces if it has some."""
    data = create(root, dataset_id, [box_episode(3, 0), box_episode(4, 1)], **box_spaces())
    about = json.loads((data / "metadata.json").read_text())
    about["env_spec"] = json.dumps({"id": "Door-v1", "max_episode_steps": 100})
    (data / "metadata.json").write_text(json.dumps(about))
    namespaces = [each.as_posix() for each in Path(dataset_id).parents][:-1]
    for namespace in namespaces:
        known = {"description": "", "datasets": [dataset_id], "namespaces": namespaces}
        (root / namespace / "namespace_metadata.json").write_text(json.dumps(known))


class _Hub(BaseHTTPRequestHandler):
    root: Path

    def do_GET(self) -> None:
        found = self._find(unquote(urlsplit(self.path).path).strip("/").split("/"))
        content = b"" if found is None else found
        self.send_response(404 if found is None else 200)
        headers = {"Content-Length": len(content), "X-Repo-Commit": COMMIT}
        headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
        headers["X-Error-Code"] = "EntryNotFound"
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815

    def _find(self, parts: list[str]) -> bytes | None:
        match parts:
            case ["api", "datasets"]:
                own = [{"id": f"{AUTHOR}/{each.name}"} for each in self.root.iterdir()]
                return json.dumps(own).encode()
            case ["api", "datasets", _, name, "revision", _]:
                return json.dumps({"id": name, "sha": COMMIT}).encode()
            case ["api", "datasets", _, name, "tree", _]:
                files = [each for each in (self.root / name).rglob("*") if each.is_file()]
                listed: list[dict[str, Any]] = [
                    {
                        "type": "file",
                        "path": each.relative_to(self.root / name).as_posix(),
                        "size": each.stat().st_size,
                        "oid": COMMIT,
                    }
                    for each in files
                ]
                return json.dumps(listed).encode()
            case ["datasets", _, name, "resolve", _, *inner]:
                file = self.root.joinpath(name, *inner)
                return file.read_bytes() if file.is_file() else None
        return None

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving(root: Path) -> Iterator[dict[str, str]]:
    """Serve ``root``; give the variables by which Minari finds it."""
    handler = type("Hub", (_Hub,), {"root": root})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield {"HF_ENDPOINT": url, "MINARI_REMOTE": f"hf://{AUTHOR}", "HF_HOME": str(root.parent)}
        server.shutdown()
