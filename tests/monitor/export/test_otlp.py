"""OpenTelemetry: what a collector receives over OTLP, read with the protocol's own messages."""

import contextlib
import gzip
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from exporter import OPENMETRICS, samples
from local_server import LocalServer
from waiting import until

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.export.latest_board import LatestBoard
from vramtop.monitor.export.metrics import TABLE
from vramtop.monitor.export.metrics_text import MetricsText
from vramtop.monitor.export.otlp import start_otlp


class Collector(LocalServer):
    """An HTTP server that keeps what is sent to it."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str | None, bytes]] = []
        super().__init__(self.answer)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.received.append((request.path, request.headers.get("Authorization"), body))
        request.send_response(200)
        request.end_headers()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


@pytest.mark.slow
def test_a_collector_receives_the_same_figures_as_prometheus(board, collector, monkeypatch) -> None:
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    monkeypatch.setitem(os.environ, "OTEL_METRIC_EXPORT_INTERVAL", "100")
    monkeypatch.setitem(os.environ, "OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20token")
    latest = LatestBoard(1.0)
    latest.set(board)
    stop = start_otlp(collector.address, latest, "1.2")
    until(lambda: collector.received)
    stop()
    path, token, body = collector.received[0]
    assert (path, token) == ("/v1/metrics", "Bearer token")
    (resource,) = service.ExportMetricsServiceRequest.FromString(body).resource_metrics
    assert ("service.name", "vramtop") in {(each.key, each.value.string_value) for each in resource.resource.attributes}
    sent = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    text = MetricsText(latest, "1.2", with_process=False).encode(OPENMETRICS)[0].decode()
    changing = {"vramtop_sampler_reading_age_seconds"}
    for metric in TABLE:
        points = sent[metric.family].sum if metric.type == "counter" else sent[metric.family].gauge
        found = {
            frozenset((each.key, each.value.string_value) for each in point.attributes): point.as_double or point.as_int
            for point in points.data_points
        }
        expected = {
            frozenset((name, value) for name, value in labels.items() if value): figure
            for labels, figure in samples(text, metric.name)
        }
        assert found.keys() == expected.keys(), metric.name
        assert metric.family in changing or found == pytest.approx(expected), metric.name
    assert sent["vramtop_gpu_memory_used_bytes"].unit == "By"
    assert sent["vramtop_sampler_readings"].sum.is_monotonic


@pytest.mark.slow
def test_what_is_gone_is_not_sent_again(board, collector, monkeypatch) -> None:
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    monkeypatch.setitem(os.environ, "OTEL_METRIC_EXPORT_INTERVAL", "100")
    latest = LatestBoard(1.0)
    latest.set(board)
    stop = start_otlp(collector.address, latest, "1.2")

    def names() -> set[str]:
        if not collector.received:
            return set()
        request = service.ExportMetricsServiceRequest.FromString(collector.received[-1][2])
        found = (
            metric for each in request.resource_metrics for scope in each.scope_metrics for metric in scope.metrics
        )
        return {metric.name for metric in found if metric.gauge.data_points or metric.sum.data_points}

    until(lambda: "vramtop_gpu_memory_used_bytes" in names())
    latest.fail("NO_DRIVER")
    until(lambda: "vramtop_sampler_up" in names() and "vramtop_gpu_memory_used_bytes" not in names())
    stop()


@pytest.mark.slow
def test_no_answer_is_read_to_its_end_and_no_other_address_gets_the_metrics(
    board, collector, monkeypatch, caplog
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    monkeypatch.setitem(os.environ, "OTEL_METRIC_EXPORT_INTERVAL", "100")
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            moved = self.path == "/moved"
            self.send_response(307 if moved else 200)
            self.send_header("Location", collector.address)
            self.end_headers()
            with contextlib.suppress(OSError):
                while not moved:  # an answer without end
                    self.wfile.write(b"x" * 2**16)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    latest = LatestBoard(1.0)
    latest.set(board)
    for path in ("/endless", "/moved"):
        stop = start_otlp(f"http://127.0.0.1:{server.server_port}{path}", latest, "1.2")
        until(lambda path=path: asked.count(path) > 1)  # the first one has ended
        stop()
    server.shutdown()
    server.server_close()
    assert collector.received == []
    assert "the collector redirects to another address" in caplog.text


def test_without_the_sdk_it_is_one_sentence(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(InputError, match=r"--otlp needs the OpenTelemetry SDK .*pip install 'vramtop-budget\[otlp\]'"):
        start_otlp("http://127.0.0.1:4318", LatestBoard(1.0), "1.2")
