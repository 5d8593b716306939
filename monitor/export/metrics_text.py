"""Metrics as text, by prometheus-client's encoders, in the format that a client asks for.

The encoders take some 10 µs a sample, and a process of a known job has forty, most of which stay the same for
hours: budgets, states, labels of a run. A family whose samples are those of the scrape before is not encoded again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

from .metrics import TABLE, Metric
from .samples import Values, values_by_family

if TYPE_CHECKING:
    from collections.abc import Callable

    from .latest_board import LatestBoard

    Encoder = Callable[..., bytes]


_EOF = b"# EOF\n"
_MAX_FORMATS = 4
"""Formats that are remembered at once: clients may ask for any version."""


@dataclass(slots=True)
class MetricsText:
    """Makes the text anew at each scrape, from the latest board. Safe to use from several threads.

    Args:
        latest: the board.
        version: of vramtop.
    """

    latest: LatestBoard
    version: str
    _encoded: dict[str, dict[str, tuple[Values, bytes]]] = field(default_factory=dict, init=False)
    """What was encoded last, by content type and family."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def encode(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return the text and its content type.

        Args:
            accept: the client's Accept header; None: the plain text format.
        """
        from prometheus_client import ProcessCollector
        from prometheus_client.exposition import choose_encoder

        try:
            encoder, content_type = choose_encoder(accept or "")
        except (TypeError, ValueError):  # no number where the version should be
            encoder, content_type = choose_encoder("")
        with self._lock:
            if content_type not in self._encoded and len(self._encoded) >= _MAX_FORMATS:
                self._encoded.clear()
            known = self._encoded.setdefault(content_type, {})
            values = values_by_family(self.latest.state(), self.version)
            parts = [
                _encode(encoder, metric, values[metric.family], known) for metric in TABLE if metric.family in values
            ]
        parts.append(encoder(ProcessCollector(registry=None)).removesuffix(_EOF))
        is_open = content_type.startswith("application/openmetrics-text")
        return b"".join(parts) + (_EOF if is_open else b""), content_type


def _encode(encoder: Encoder, metric: Metric, values: Values, known: dict[str, tuple[Values, bytes]]) -> bytes:
    """Return the text of a family; ``known`` holds that of the scrape before, and then this one."""
    before = known.get(metric.family)
    if before is not None and before[0] == values:
        return before[1]
    from prometheus_client.core import Metric as Family

    family = Family(metric.family, metric.help, metric.type, metric.unit)
    for labels, value in values.items():
        family.add_sample(metric.name, dict(zip(metric.all_labels, labels, strict=True)), value)
    text = encoder(SimpleNamespace(collect=lambda: [family])).removesuffix(_EOF)
    known[metric.family] = values, text
    return text
