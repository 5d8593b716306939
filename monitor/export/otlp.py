"""The metrics by OpenTelemetry: one observable instrument per metric, sent to an OTLP endpoint over HTTP.

The SDK's environment variables hold: ``OTEL_EXPORTER_OTLP_HEADERS`` for tokens, ``OTEL_EXPORTER_OTLP_CERTIFICATE``,
``OTEL_METRIC_EXPORT_INTERVAL`` (milliseconds; 60,000 if unset).
"""

from __future__ import annotations

import io
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vramtop.estimator.common.errors import InputError

from .metrics import TABLE, Metric
from .samples import Values, values_by_family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .latest_board import LatestBoard

_UNITS = {"bytes": "By", "bytes_per_second": "By/s", "seconds": "s", "celsius": "Cel", "watts": "W", "ratio": "1"}
"""UCUM codes, which OpenTelemetry uses."""
_SHUTDOWN_MILLISECONDS = 3000
_SAME_EXPORT_SECONDS = 0.5
"""The instruments of one export are asked one after the other, and share one reading."""


def start_otlp(endpoint: str, latest: LatestBoard, version: str) -> Callable[[], None]:
    """Send the metrics at the SDK's interval; returns the function that sends the last ones and ends.

    Args:
        endpoint: URL of the collector; without a path, ``/v1/metrics`` of it.
        latest: the board.
        version: of vramtop.

    Raises:
        InputError: the SDK is not installed, or the endpoint is no URL.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("--otlp: give a URL, such as http://127.0.0.1:4318/v1/metrics")
    if parts.username is not None or parts.password is not None:
        raise InputError("--otlp: no user or password in the URL; headers come from OTEL_EXPORTER_OTLP_HEADERS")
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        raise InputError(
            f"--otlp needs the OpenTelemetry SDK ({error.name} is missing): pip install 'vramtop-budget[otlp]'"
        ) from None
    url = endpoint if parts.path.strip("/") else parts._replace(path="/v1/metrics").geturl()
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=url, session=_session()))
    resource = Resource.create({"service.name": "vramtop", "service.version": version})
    provider = MeterProvider(metric_readers=[reader], resource=resource)
    meter, values = provider.get_meter("vramtop", version), _SharedValues(latest, version)

    def observe(metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def callback(options: Any) -> Iterable[Any]:
            del options
            names = metric.all_labels
            for labels, value in values.of(metric).items():
                known = {name: text for name, text in zip(names, labels, strict=True) if text}
                yield Observation(value, known)

        return callback

    for metric in TABLE:
        create = meter.create_observable_counter if metric.type == "counter" else meter.create_observable_gauge
        create(metric.family, [observe(metric)], unit=_UNITS.get(metric.unit, ""), description=metric.help)
    return lambda: provider.shutdown(timeout_millis=_SHUTDOWN_MILLISECONDS)


def _session() -> Any:
    """Return a session that reads no content of answers, which may have no end, and goes to no other address."""
    import requests  # the exporter's own

    class Session(requests.Session):
        def send(self, request: Any, **named: Any) -> Any:
            answer = super().send(request, **{**named, "allow_redirects": False, "stream": True})
            answer.close()
            answer.raw = io.BytesIO()
            if answer.is_redirect:
                raise requests.TooManyRedirects(
                    "the collector redirects to another address, which vramtop does not use"
                )
            return answer

    return Session()


class _SharedValues:
    """The samples of one moment, for all instruments of one export."""

    def __init__(self, latest: LatestBoard, version: str) -> None:
        self._latest = latest
        self._version = version
        self._lock = threading.Lock()
        self._made_at: float | None = None
        self._values: dict[str, Values] = {}

    def of(self, metric: Metric) -> Values:
        """Return the values of a metric by its labels."""
        with self._lock:
            now = time.monotonic()
            if self._made_at is None or now - self._made_at > _SAME_EXPORT_SECONDS:
                self._values, self._made_at = values_by_family(self._latest.state(), self._version), now
            return self._values.get(metric.family, {})
