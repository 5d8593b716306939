"""The client against a real HTTP server: authentication, refusals, and what is no Prometheus."""

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from local_server import LocalServer

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.limits import PROMETHEUS_ANSWER
from vramtop.estimator.common.records import replace
from vramtop.monitor.fleet.prometheus.client import Credentials, PrometheusClient, QueryError
from vramtop.monitor.fleet.prometheus.series import Sample

EMPTY = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})


class Server(LocalServer):
    """Answers every request alike, and keeps paths and headers."""

    def __init__(self, status: int, text: str, headers: dict[str, str]) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []

        def answer(request: BaseHTTPRequestHandler) -> None:
            self.asked.append((request.path, dict(request.headers)))
            request.send_response(status)
            for name, value in headers.items():
                request.send_header(name, value)
            request.end_headers()
            request.wfile.write(text.encode())

        super().__init__(answer)


@pytest.fixture
def serve(request: pytest.FixtureRequest) -> Callable[..., Server]:
    def start(status: int = 200, text: str = EMPTY, **headers: str) -> Server:
        started = Server(status, text, headers)
        request.addfinalizer(started.stop)
        return started

    return start


def ask(url: str, **credentials: Any) -> list[Sample]:
    return PrometheusClient(url, Credentials(**credentials)).query("up == 1")


@pytest.mark.parametrize("suffix", ["", "/", "/api/v1", "/graph"])
def test_the_address_is_that_of_the_server_or_of_one_of_its_pages(serve, suffix) -> None:
    server = serve()
    assert ask(server.address + suffix) == []
    assert server.asked[0][0] == "/api/v1/query?query=up+%3D%3D+1"


def test_a_path_prefix_is_kept_and_the_scheme_may_be_left_out(serve) -> None:
    server = serve()
    ask(server.address.removeprefix("http://") + "/prom/")
    assert server.asked[0][0].startswith("/prom/api/v1/query?")


def test_a_token_is_read_for_each_query(serve, tmp_path: Path) -> None:
    server, token = serve(), tmp_path / "token"
    token.write_text("first\n")
    client = PrometheusClient(server.address, Credentials(token_file=token))
    client.query("up")
    token.write_text("second\n")
    client.query("up")
    assert [headers["Authorization"] for _, headers in server.asked] == ["Bearer first", "Bearer second"]


def test_a_user_and_password_are_sent_as_basic_authentication(serve) -> None:
    server = serve()
    ask(server.address, user="ann", password="pw")  # noqa: S106
    assert server.asked[0][1]["Authorization"] == "Basic YW5uOnB3"


def test_credentials_do_not_follow_a_redirect(serve) -> None:
    other = serve()
    server = serve(302, "", Location=f"{other.address}/login")
    with pytest.raises(QueryError, match=r"redirects to 127\.0\.0\.1:\d+; give that address"):
        ask(server.address, user="ann", password="pw")  # noqa: S106
    assert other.asked == []


@pytest.mark.parametrize(
    ("status", "text", "sentence"),
    [
        (401, "", "VRAMTOP_PROMETHEUS_PASSWORD"),
        (403, "", "does not let these credentials query"),
        (404, "", "path prefix"),
        (422, '{"status":"error","error":"query timed out"}', "answers 422: query timed out"),
        (500, "<html>", "answers 500"),
        (500, "[" * 50_000, "answers 500: Internal Server Error"),
        (200, "<html>Grafana</html>", "is this its address"),
        (200, '{"data":' + "[" * 200_000, "is this its address"),
        (200, '{"status":"success","data":{"result":[{"metric":{},"value":"x"}]}}', "is this its address"),
    ],
)
def test_every_refusal_is_a_sentence(serve, status, text, sentence) -> None:
    with pytest.raises(QueryError, match=sentence):
        ask(serve(status, text).address)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_a_server_that_drips_its_answer_is_waited_for_within_the_total(head: bytes) -> None:
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(head)
            while not ended.wait(0.05):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            client = PrometheusClient(
                f"http://127.0.0.1:{listening.getsockname()[1]}", limit=replace(PROMETHEUS_ANSWER, seconds=0.5)
            )
            with pytest.raises(QueryError, match=r"its answer took more than 0\.5 s"):
                client.query("up")
        finally:
            ended.set()
            thread.join()


def test_a_server_that_answers_too_much_is_not_read_on(serve) -> None:
    client = PrometheusClient(serve(text=" " * (1 << 20)).address, limit=replace(PROMETHEUS_ANSWER, bytes=1 << 16))
    with pytest.raises(QueryError, match="its answer has more than 64 KiB"):
        client.query("up")


def test_a_server_that_announces_more_than_it_sends_is_a_sentence(serve) -> None:
    with pytest.raises(QueryError, match="cannot be queried: the answer ended early"):
        ask(serve(**{"Content-Length": str(10**18)}).address)


def test_a_server_that_is_not_there_is_a_sentence(serve) -> None:
    server = serve()
    server.stop()
    with pytest.raises(QueryError, match="cannot be queried: Connection refused"):
        ask(server.address)


def test_http_where_tls_was_expected_is_a_sentence(serve) -> None:
    with pytest.raises(QueryError, match="is it http, not https"):
        ask(serve().address.replace("http://", "https://"))


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "http://[::1", "http://a:b:c"])
def test_what_is_no_address_is_wrong_input(url) -> None:
    with pytest.raises(InputError, match="is not an address like"):
        PrometheusClient(url)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(InputError, match="takes no password in the address") as refused:
        PrometheusClient("http://ann:geheim@prom")
    assert "geheim" not in refused.value.message


@pytest.mark.parametrize("text", [None, "", "two words", "a\nb"])
def test_a_token_file_without_one_token_is_wrong_input(tmp_path: Path, text) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match="--prometheus-token-file"):
        PrometheusClient("http://a", Credentials(token_file=file))


def test_a_file_without_certificates_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(InputError, match=r"--prometheus-ca .* holds no PEM certificate"):
        PrometheusClient("https://a", Credentials(ca_file=tmp_path / "ca.pem"))
