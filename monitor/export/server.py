"""The HTTP server of the metrics, with basic authentication and TLS if asked for.

``prometheus_client.start_http_server`` (0.26.0, exposition.py) knows certificates but no authentication, does the TLS
handshake on the thread that accepts, and waits for the client without a limit: one silent client would stop all
scrapes. Here its encoders and its server class are used, the handshake is done on the thread of the request, and no
client keeps others out (``Connections``).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import gzip
import hmac
import io
import socket
import socketserver
import ssl
import threading
import traceback
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer, gzip_accepted

from vramtop.estimator.common import limits
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.process_limit import start_thread

from .listen_address import Connections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from vramtop.estimator.common.limits import Limit

    from .listen_address import HostNames, ListenAddress
    from .metrics import MetricsText

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
        tls: certificate and key; None: HTTP without encryption.
        credentials: user and password that clients need; None: none.
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
        tls: TlsFiles | None = None,
        credentials: Credentials | None = None,
        names: HostNames | None = None,
        limit: Limit = limits.EXPORTER_REQUESTS,
        on_bug: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._scheme = "https" if tls else "http"
        self._address = address
        application = _application(text, names or address.names(()), credentials, on_bug)
        try:
            family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
            self._server = _server_class(family, tls, limit)((address.host, address.port), _Handler)
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
        return self._address.url(self._scheme, self._server.server_port)

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


def _server_class(family: int, tls: TlsFiles | None, limit: Limit) -> type[ThreadingWSGIServer]:
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

        def get_request(self) -> tuple[Any, Any]:
            """Accept a connection; the TLS handshake follows with the first read, on the thread of the request."""
            connection, client = super().get_request()
            if tls is not None:
                connection = tls.context().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            return connection, client

        def process_request(self, request: Any, client_address: Any) -> None:
            """Start a thread for the request, once there is room for it."""
            # not the TLS socket's own shutdown, which a thread that reads from it does not survive
            end = partial(socket.socket.shutdown, request, socket.SHUT_RDWR)
            self.connections.add(client_address, end)
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
            """Say nothing: the client broke off, did not speak TLS, or was too slow."""

    return Server


def _application(
    text: MetricsText, names: HostNames, credentials: Credentials | None, on_bug: Callable[[str], object]
) -> Application:
    """Return the application: a page at ``/``, the metrics, and nothing else; all of it behind the credentials."""

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if not names.allow(environ.get("HTTP_HOST")):
            start_response("403 Forbidden", [_TEXT])
            return [b"the exporter is asked by another name than its own; vramtop export --name NAME allows it\n"]
        if credentials is not None and not credentials.accept(environ.get("HTTP_AUTHORIZATION")):
            headers = [("WWW-Authenticate", 'Basic realm="vramtop", charset="UTF-8"'), _TEXT]
            start_response("401 Unauthorized", headers)
            return [b"a user name and a password are needed\n"]
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


# User and password of basic authentication, from a file or the environment: never from the command line.


PASSWORD_VARIABLE = "VRAMTOP_EXPORT_PASSWORD"  # noqa: S105 - its name
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client has to send."""

    user: str
    password: str = field(repr=False)

    def accept(self, header: str | None) -> bool:
        """Return True if an Authorization header has this user and password; the time taken tells nothing of them."""
        scheme, _, encoded = (header or "").partition(" ")
        try:
            given = base64.b64decode(encoded.strip(), validate=True)
        except (binascii.Error, ValueError):
            given = b""
        expected = f"{self.user}:{self.password}".encode()
        return hmac.compare_digest(given, expected) and scheme.lower() == "basic"


def read_credentials(user: str | None, password_file: Path | None, environ: Mapping[str, str]) -> Credentials | None:
    """Return the credentials; None if no user is asked for.

    Args:
        user: the user's name.
        password_file: file with the password in its first line; None: it is in the environment.
        environ: the environment.

    Raises:
        InputError: one of both is missing, or the file cannot be read.
    """
    if user is None:
        if password_file is not None:
            raise InputError("--password-file needs --auth-user NAME")
        return None
    if not user or ":" in user:
        raise InputError("--auth-user: the user name must not be empty or contain a colon")
    if password_file is None:
        password = environ.get(PASSWORD_VARIABLE, "")
        if not password:
            raise InputError(f"--auth-user needs a password: --password-file FILE, or {PASSWORD_VARIABLE}")
        return Credentials(user, password)
    try:
        with password_file.open("rb") as file:
            text = file.read(_MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise InputError(f"--password-file {password_file}: it is not text in UTF-8") from None
    except OSError as error:
        raise InputError(f"--password-file {password_file}: {error.strerror}") from None
    password = text.partition("\n")[0].rstrip("\r")
    if not password:
        raise InputError(f"--password-file {password_file}: its first line is empty")
    return Credentials(user, password)


# TLS of the exporter: certificate, key, and the authority of clients that must have a certificate.


@dataclass(slots=True)
class TlsFiles:
    """Files in PEM. A renewed certificate is used from the next connection on.

    Raises:
        InputError: they cannot be read, or the key is not that of the certificate.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Clients need a certificate of this authority; None: they need none."""
    _context: ssl.SSLContext = field(init=False)
    _loaded: tuple[float, float] = field(init=False)
    """Modification times of certificate and key."""

    def __post_init__(self) -> None:
        context = self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._loaded = self._times()
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")  # never asks on the terminal
        except OSError as error:
            reason = (
                "they are not a certificate and its key in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            )
            raise InputError(f"--tls-cert {self.certificate}, --tls-key {self.key}: {reason}") from None
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                reason = "no certificates in PEM" if isinstance(error, ssl.SSLError) else error.strerror
                raise InputError(f"--client-ca {self.client_ca}: {reason}") from None

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        with contextlib.suppress(OSError):  # half-written or gone: the one before goes on
            if (times := self._times()) != self._loaded:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                    self.certificate, self.key, password=lambda: ""
                )
                self._context.load_cert_chain(self.certificate, self.key, password=lambda: "")
                self._loaded = times
        return self._context

    def _times(self) -> tuple[float, float]:
        return self.certificate.stat().st_mtime, self.key.stat().st_mtime
