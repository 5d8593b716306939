"""The HTTP server of the metrics. It has no TLS and no passwords: a proxy in front of it has both.

``prometheus_client.start_http_server`` (0.26.0, exposition.py) waits for the client without a limit: silent clients
would stop all scrapes. Here its encoders and its server class are used, and no client keeps others out
(``Connections``).
"""

from __future__ import annotations

import gzip
import io
import socket
import socketserver
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer, gzip_accepted

from vramtop.estimator.common import limits
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.process_limit import start_thread

from .connections import Connections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vramtop.estimator.common.limits import Limit

    from .listen_address import HostNames, ListenAddress
    from .metrics_text import MetricsText

if TYPE_CHECKING:
    StartResponse = Callable[[str, list[tuple[str, str]]], Any]
    Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]

_COMPRESSION = 1
"""Level of gzip: the default, 9, takes several times as long for a text that is sent once."""
_ROOM_SECONDS = 1.0
"""Longest wait for the end of a thread whose connection was ended."""
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_PAGE = b"""<!doctype html><html lang="en"><title>vramtop exporter</title>
<p>vramtop exporter: <a href="/metrics">metrics</a></p></html>
"""


class MetricsServer:
    """Serves ``/metrics`` on a thread of its own.

    Args:
        address: to listen on.
        text: of the metrics.
        names: by which the server may be asked; None: those of the address.
        limit: of its requests.
        on_bug: called with the traceback of an unexpected failure.

    Raises:
        InputError: nothing can listen on this address.
    """

    def __init__(
        self,
        address: ListenAddress,
        text: MetricsText,
        *,
        names: HostNames | None = None,
        limit: Limit = limits.EXPORTER_REQUESTS,
        on_bug: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._address = address
        application = _application(text, names or address.names(()), on_bug)
        try:
            family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
            self._server = _server_class(family, limit)((address.host, address.port), _Handler)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a host name"
            raise InputError(
                f"--listen {address.host}:{address.port}: {reason}; choose another with --listen"
            ) from None
        self._server.set_app(application)
        self._thread = threading.Thread(target=self._server.serve_forever, name="vramtop-metrics", daemon=True)

    @property
    def url(self) -> str:
        """Address of the metrics."""
        return self._address.url(self._server.server_port)

    def start(self) -> None:
        """Serve from now on."""
        start_thread(self._thread)

    def stop(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Handler(WSGIRequestHandler):
    """One request; nothing is logged."""

    server_version = "vramtop"
    sys_version = ""

    def parse_request(self) -> bool:
        """Read the rest of the request."""
        was_read = super().parse_request()
        self.server.connections.note_request(self.client_address)  # type: ignore[attr-defined]
        return was_read

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""

    def get_stderr(self) -> Any:
        """Return where the WSGI server writes its errors: nowhere, those of the application are reported."""
        return io.StringIO()


def _server_class(family: int, limit: Limit) -> type[ThreadingWSGIServer]:
    class Server(ThreadingWSGIServer):
        """A server of this address family."""

        address_family = family
        request_queue_size = 64
        connections = Connections(limit, limits.EXPORTER_CLIENT)
        threads = threading.BoundedSemaphore(limit.items or 1)

        def server_bind(self) -> None:
            """Bind without asking a name server for the name of this host, as HTTPServer does."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
            self.setup_environ()

        def service_actions(self) -> None:
            """End what takes too long, which the server looks for twice a second."""
            self.connections.end_late()

        def process_request(self, request: Any, client_address: Any) -> None:
            """Start a thread for the request, once there is room for it."""
            self.connections.add(client_address, partial(request.shutdown, socket.SHUT_RDWR))
            if not self.threads.acquire(timeout=_ROOM_SECONDS):
                self.connections.forget(client_address)
                self.shutdown_request(request)
                return
            try:
                super().process_request(request, client_address)
            except BaseException:
                self.connections.forget(client_address)
                self.threads.release()
                raise

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            """Answer the request."""
            try:
                super().process_request_thread(request, client_address)
            finally:
                self.connections.forget(client_address)
                self.threads.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing: the client broke off, or was too slow."""

    return Server


def _application(text: MetricsText, names: HostNames, on_bug: Callable[[str], object]) -> Application:
    """Return the application: a page at ``/``, the metrics, and nothing else."""

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if not names.allow(environ.get("HTTP_HOST")):
            start_response("403 Forbidden", [_TEXT])
            return [b"the exporter is asked by another name than its own; vramtop export --name NAME allows it\n"]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Allow", "GET, HEAD"), _TEXT])
            return [b"only GET\n"]
        path = environ.get("PATH_INFO")
        if path == "/":
            start_response("200 OK", [("Content-Type", "text/html; charset=utf-8")])
            return [_PAGE]
        if path != "/metrics":
            start_response("404 Not Found", [_TEXT])
            return [b"the metrics are at /metrics\n"]
        try:
            body, content_type = text.encode(environ.get("HTTP_ACCEPT"))
        except Exception:  # noqa: BLE001 - the next scrape may succeed
            on_bug(traceback.format_exc())
            start_response("500 Internal Server Error", [_TEXT])
            return [b"the metrics could not be made; the exporter has said why\n"]
        headers = [("Content-Type", content_type)]
        if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
            body = gzip.compress(body, _COMPRESSION)
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", headers)
        return [body]

    return answer
