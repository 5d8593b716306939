"""Client of Prometheus' HTTP API: instant queries (https://prometheus.io/docs/prometheus/latest/querying/api/)."""

import base64
import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vramtop.estimator.common import limits
from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.estimator.common.http_fetch import Answer, fetch
from vramtop.estimator.common.limits import Limit, LimitError, decode_json
from vramtop.estimator.common.secrets import displayed

from .series import Sample

_MAX_TOKEN_BYTES = 64 * 1024


class QueryError(VramtopError):
    """Prometheus cannot be asked, or refuses a query; it may be asked again."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Credentials:
    """How to authenticate; nothing of it is shown anywhere."""

    token_file: Path | None = None
    """Holds a bearer token. It is read for each query, since tokens of service accounts are renewed."""
    user: str | None = None
    password: str | None = None
    ca_file: Path | None = None
    """Certificates of the authorities that are trusted, in place of the system's."""

    def header(self) -> str | None:
        """Return the Authorization header; None: no authentication.

        Raises:
            InputError: the token cannot be read, or is none.
        """
        if self.token_file is not None:
            return f"Bearer {_read_token(self.token_file)}"
        if self.user is not None:
            pair = f"{self.user}:{self.password or ''}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return None

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS settings: certificates are always verified.

        Raises:
            InputError: the certificates cannot be read.
        """
        if self.ca_file is None:
            return ssl.create_default_context()
        try:
            return ssl.create_default_context(cafile=str(self.ca_file))
        except OSError as error:
            reason = "it holds no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
            raise InputError(f"--prometheus-ca {self.ca_file} cannot be used: {reason}") from None


class PrometheusClient:
    """Asks one Prometheus, or whatever speaks its API (Thanos, Mimir, VictoriaMetrics).

    Args:
        url: of the server, with the path prefix if it has one, such as ``https://host/prometheus``.
        credentials: to authenticate with.
        limit: of one answer.

    Raises:
        InputError: it is no such URL, or the certificates cannot be read.
    """

    def __init__(
        self, url: str, credentials: Credentials | None = None, *, limit: Limit = limits.PROMETHEUS_ANSWER
    ) -> None:
        self.url = _checked_url(url)
        self._credentials = credentials or Credentials()
        self._limit = limit
        self._tls = self._credentials.tls_context()
        self._credentials.header()  # a missing file is wrong input, not a server that is down

    @property
    def host(self) -> str:
        """Its host and port, for people."""
        return urllib.parse.urlsplit(self.url).netloc

    def query(self, expression: str) -> list[Sample]:
        """Return the series that answer an instant query in PromQL.

        Raises:
            QueryError: there is no answer, or none of this form.
        """
        text = self._read(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        try:
            return decode_json(text, _Answer).data.result
        except LimitError:
            raise QueryError(
                f"{self.url} does not answer like Prometheus; is this its address, with its path prefix?"
            ) from None

    def _read(self, url: str) -> bytes:
        request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - http or https
        header = self._credentials.header()
        if header is not None:
            request.add_unredirected_header("Authorization", header)
        try:
            answer = fetch(request, self._limit, tls=self._tls)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise QueryError(f"{self.url} cannot be queried: {_reason(error)}") from None
        if not answer.is_success:
            raise QueryError(self._refusal(answer))
        return answer.content

    def _refusal(self, answer: Answer) -> str:
        """Return in words why the server refuses; credentials are for it alone, so that no redirection is followed."""
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            return (
                f"{self.url} requires authentication: give --prometheus-token-file, or VRAMTOP_PROMETHEUS_USER and "
                "VRAMTOP_PROMETHEUS_PASSWORD in the environment"
            )
        if answer.status == http.HTTPStatus.FORBIDDEN:
            return f"{self.url} does not let these credentials query; ask its administrators, or give other credentials"
        if answer.status in _REDIRECTS:
            target = urllib.parse.urlsplit(answer.headers.get("Location") or "")
            return (
                f"{self.url} redirects to {displayed(target.netloc or target.path or 'elsewhere')}; give that address"
            )
        if answer.status == http.HTTPStatus.NOT_FOUND:
            return f"{self.url} has no Prometheus API; is a path prefix missing?"
        try:
            refused = decode_json(answer.content, _Refused)
        except LimitError:
            refused = _Refused()
        return f"{self.url} answers {answer.status}: {displayed(refused.error or answer.reason)[:300]}"


class _Vector(msgspec.Struct):
    result: list[Sample]


class _Answer(msgspec.Struct):
    data: _Vector


class _Refused(msgspec.Struct):
    error: str = ""


_REDIRECTS = (301, 302, 303, 307, 308)


def _checked_url(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urllib.parse.urlsplit("")
    del port  # is checked by being read
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"--prometheus {displayed(url)[:200]} is not an address like http://prometheus:9090")
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "--prometheus takes no password in the address, where other users can see it: set "
            "VRAMTOP_PROMETHEUS_USER and VRAMTOP_PROMETHEUS_PASSWORD, or give --prometheus-token-file"
        )
    path = parts.path.rstrip("/").removesuffix("/api/v1").removesuffix("/graph").rstrip("/")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _read_token(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            token = stream.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
    except OSError as error:
        raise InputError(f"--prometheus-token-file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    if not token or any(not char.isprintable() or char.isspace() for char in token):
        raise InputError(f"--prometheus-token-file {file} holds no token in one line")
    return token


def _reason(error: Exception) -> str:
    """Return why there is no answer, in words."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message}); --prometheus-ca names the authority's file"
    if isinstance(cause, ssl.SSLError):
        return "it does not speak TLS as expected; is it http, not https?"
    if isinstance(cause, OSError) and cause.strerror:
        return str(cause.strerror)
    return displayed(str(cause))[:200] or type(cause).__name__
