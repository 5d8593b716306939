"""The exporter's server: what it answers, TLS, basic authentication, and clients that do not behave."""

import base64
import socket
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from exporter import needs, program, samples, scrape

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.limits import EXPORTER_REQUESTS
from vramtop.estimator.common.records import replace
from vramtop.monitor.export.credentials import Credentials, read_credentials
from vramtop.monitor.export.latest_board import LatestBoard
from vramtop.monitor.export.listen_address import HostNames, ListenAddress
from vramtop.monitor.export.metrics_text import MetricsText
from vramtop.monitor.export.server import MetricsServer
from vramtop.monitor.export.tls_files import TlsFiles

LOOPBACK = ListenAddress("127.0.0.1", 0)


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    servers: list[MetricsServer] = []

    def start(address: ListenAddress = LOOPBACK, text: Any = None, **options: Any) -> str:
        servers.append(MetricsServer(address, text or MetricsText(LatestBoard(1.0), "1.2"), **options))
        servers[-1].start()
        return servers[-1].url

    yield start
    with ThreadPoolExecutor() as pool:  # each takes half a second to notice
        list(pool.map(MetricsServer.stop, servers))


def _status(url: str, **headers: str) -> int:
    try:
        urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return 200


def _place(url: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_formats_pages_and_unknown_paths(serve) -> None:
    url = serve()
    assert scrape(url).endswith("# EOF\n")
    assert "# EOF" not in scrape(url, accept="text/plain")
    root = url.removesuffix("metrics")
    assert 'href="/metrics"' in scrape(root)
    assert _status(f"{root}else") == 404


def test_nothing_is_served_without_the_password(serve) -> None:
    url = serve(credentials=Credentials("prom", "s3:cret ä"))
    assert _status(url) == _status(url, Authorization=_basic("prom", "s3")) == 401
    assert _status(url, Authorization=_basic("other", "s3:cret ä")) == _status(url, Authorization="Basic ?") == 401
    assert _status(url.removesuffix("metrics")) == 401
    assert _status(url, Authorization=_basic("prom", "s3:cret ä")) == 200


def test_the_password_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\r\nsecond line\n")
    assert read_credentials("prom", file, {}) == Credentials("prom", "secret")
    found = read_credentials("prom", None, {"VRAMTOP_EXPORT_PASSWORD": "hidden"})
    assert found == Credentials("prom", "hidden")
    assert "hidden" not in repr(found)
    assert read_credentials(None, None, {"VRAMTOP_EXPORT_PASSWORD": "hidden"}) is None
    file.write_text("\n")
    for words in (("prom", file, {}), ("prom", None, {}), ("a:b", file, {}), (None, file, {}), ("p", tmp_path, {})):
        with pytest.raises(InputError):
            read_credentials(*words)


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:9", "127.0.0.1", 9, True),
        ("10440", "127.0.0.1", 10440, True),
        (":10440", "0.0.0.0", 10440, False),  # noqa: S104
        ("[::1]:1", "::1", 1, True),
        ("gpubox:80", "gpubox", 80, False),
        ("localhost:80", "localhost", 80, True),
    ],
)
def test_addresses(text: str, host: str, port: int, loopback: bool) -> None:
    address = ListenAddress.parse(text)
    assert (address.host, address.port, address.is_loopback) == (host, port, loopback)


@pytest.mark.parametrize("text", ["", "gpubox", "gpubox:", "gpubox:x", "gpubox:65536", "::1:80", "h:-1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="--listen"):
        ListenAddress.parse(text)


def test_an_address_that_is_taken_is_one_sentence(serve) -> None:
    port = int(serve().rpartition(":")[2].partition("/")[0])
    with pytest.raises(InputError, match="already in use; choose another"):
        serve(ListenAddress("127.0.0.1", port))


def test_ipv6(serve) -> None:
    try:
        url = serve(ListenAddress("::1", 0))
    except InputError:
        pytest.skip("this machine has no IPv6")
    assert "[::1]" in url
    assert "vramtop_sampler_up" in scrape(url)


def test_a_failure_is_reported_and_the_next_scrape_works(serve) -> None:
    text, bugs, fails = MetricsText(LatestBoard(1.0), "1.2"), [], [True]

    class Failing:
        def encode(self, accept: str | None) -> tuple[bytes, str]:
            if fails:
                raise ValueError("bug")
            return text.encode(accept)

    url = serve(text=Failing(), on_bug=bugs.append)
    assert _status(url) == 500
    assert len(bugs) == 1
    assert "ValueError: bug" in bugs[0]
    fails.clear()
    assert _status(url) == 200


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[[str], TlsFiles]:
    """Make a certificate for 127.0.0.1."""

    def make(name: str) -> TlsFiles:
        key, file = tmp_path / f"{name}.key", tmp_path / f"{name}.pem"
        command = [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        words = ["-nodes", "-keyout", str(key), "-out", str(file), "-days", "2", "-subj", f"/CN={name}"]
        extension = ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run([*command, *words, *extension], check=True, capture_output=True)
        return TlsFiles(file, key)

    return make


def _served_name(url: str, files: TlsFiles, **client: Any) -> str:
    """Subject of the certificate that the server shows to a client that trusts these files."""
    context = ssl.create_default_context(cafile=files.certificate)
    if client:
        context.load_cert_chain(**client)
    with (
        socket.create_connection(_place(url), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=_place(url)[0], suppress_ragged_eofs=False) as connection,
    ):
        connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in connection.recv(100)
        certificate = connection.getpeercert() or {}
        return dict(pair for pairs in certificate["subject"] for pair in pairs)["commonName"]  # type: ignore[misc]


@needs("openssl")
def test_tls_and_a_certificate_that_is_renewed(serve, certificate) -> None:
    first, second = certificate("first"), certificate("second")
    url = serve(tls=first)
    assert url.startswith("https://")
    assert _served_name(url, first) == "first"
    with pytest.raises(ssl.SSLCertVerificationError):
        _served_name(url, second)
    for old, new in ((first.certificate, second.certificate), (first.key, second.key)):
        new.replace(old)
    assert _served_name(url, first) == "second"
    first.certificate.write_text("half")
    with pytest.raises(ssl.SSLError):  # the client reads the broken file; the server goes on with what it has
        _served_name(url, first)


@needs("openssl")
def test_clients_may_need_a_certificate(serve, certificate) -> None:
    server, client = certificate("server"), certificate("client")
    url = serve(tls=TlsFiles(server.certificate, server.key, client.certificate))
    assert _served_name(url, server, certfile=client.certificate, keyfile=client.key) == "server"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _served_name(url, server)


@needs("openssl")
def test_silent_clients_do_not_stop_scrapes(serve, certificate) -> None:
    files = certificate("server")
    url = serve(tls=files)
    with (
        ExitStack() as silent
    ):  # they never begin the TLS handshake; one by one they would take longer than the scrape may
        for _ in range(5):
            silent.enter_context(socket.create_connection(_place(url)))
        assert _served_name(url, files) == "server"


def test_scrapes_are_answered_while_many_connections_of_the_same_client_never_finish(serve) -> None:
    url = serve(limit=replace(EXPORTER_REQUESTS, seconds=600.0))
    with ExitStack() as attack:
        for _ in range(40):
            connection = attack.enter_context(socket.create_connection(_place(url)))
            connection.sendall(b"GET /metrics HTTP/1.0\r\nX-")
        assert [_status(url) for _ in range(7)] == [200] * 7


@needs("openssl")
@pytest.mark.parametrize("is_tls", [False, True])
def test_a_request_has_a_total_time_from_the_connection_on(serve, certificate, is_tls: bool) -> None:
    options = {"tls": certificate("server")} if is_tls else {"credentials": Credentials("prom", "secret")}
    url = serve(limit=replace(EXPORTER_REQUESTS, seconds=0.5), **options)
    begin = b"\x16\x03\x01\x02\x00" if is_tls else b"GET /metrics HTTP/1.0\r\nX-"
    with socket.create_connection(_place(url)) as connection:
        connection.settimeout(0.1)
        connection.sendall(begin)
        for _ in range(600):  # a byte now and then
            with suppress(TimeoutError):
                assert connection.recv(1) == b""
                break
            connection.sendall(b"a")
        else:
            pytest.fail("the connection is still open after a minute")


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("localhost:1", 200), ("proxy.example", 200)])
def test_a_strangers_name_that_resolves_to_this_machine_is_refused(serve, host: str, status: int) -> None:
    assert _status(serve(names=HostNames(further=("proxy.example",))), Host=host) == status


@needs("openssl")
def test_files_that_are_no_certificate(certificate, tmp_path: Path) -> None:
    one, other, text = certificate("one"), certificate("other"), tmp_path / "text"
    text.write_text("text")
    for cert, key, authority in (
        (one.certificate, other.key, None),
        (text, one.key, None),
        (tmp_path / "none", one.key, None),
        (one.certificate, one.key, text),
    ):
        with pytest.raises(InputError, match=r"--(tls-cert|client-ca)"):
            TlsFiles(cert, key, authority)


def test_no_reading_yet_is_no_reading(serve) -> None:
    text = scrape(serve())
    assert samples(text, "vramtop_sampler_up") == [({}, 0)]
    assert not samples(text, "vramtop_sampler_last_reading_timestamp_seconds")
