"""A server on this machine that answers from a table, as the places that datasets are fetched from
would.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def serving(answers: dict[str, Answer], missing: dict[str, str] | None = None) -> Iterator[str]:
    """Serve ``answers`` by path; anything else is 404 with the headers ``missing``.

    Gives the server's address.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers.get(
                unquote(self.path.partition("?")[0]), (404, missing or {}, b"")
            )
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
