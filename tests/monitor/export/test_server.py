"""The exporter's server: what it answers, and clients that do not behave."""

import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from exporter import scrape

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.limits import EXPORTER_REQUESTS
from vramtop.estimator.common.records import replace
from vramtop.monitor.export.latest_board import LatestBoard
from vramtop.monitor.export.listen_address import HostNames, ListenAddress
from vramtop.monitor.export.metrics_text import MetricsText
from vramtop.monitor.export.server import MetricsServer

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


def test_formats_pages_and_unknown_paths(serve) -> None:
    url = serve()
    assert scrape(url).endswith("# EOF\n")
    assert "# EOF" not in scrape(url, accept="text/plain")
    root = url.removesuffix("metrics")
    assert 'href="/metrics"' in scrape(root)
    assert _status(f"{root}else") == 404


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


def test_scrapes_are_answered_while_many_connections_of_the_same_client_never_finish(serve) -> None:
    url = serve(limit=replace(EXPORTER_REQUESTS, seconds=600.0))
    with ExitStack() as attack:
        for _ in range(40):
            connection = attack.enter_context(socket.create_connection(_place(url)))
            connection.sendall(b"GET /metrics HTTP/1.0\r\nX-")
        assert [_status(url) for _ in range(7)] == [200] * 7


def test_a_request_has_a_total_time_from_the_connection_on(serve) -> None:
    url = serve(limit=replace(EXPORTER_REQUESTS, seconds=0.5))
    with socket.create_connection(_place(url)) as connection:
        connection.settimeout(0.1)
        connection.sendall(b"GET /metrics HTTP/1.0\r\nX-")
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
