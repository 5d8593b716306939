"""Measure ``vramtop export`` while it is scraped once a second, as Prometheus does: OpenMetrics, compressed."""

import re
import time
import urllib.request
from collections.abc import Sequence

from in_terminal import ResourceUsage, Terminal

_URL = re.compile(rb"http://[\d.]+:\d+/metrics")
_HEADERS = {"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"}
_START_SECONDS = 30.0
_SCRAPE_INTERVAL_SECONDS = 1.0


def run_scraped(command: Sequence[str], *, seconds: float, warm: float) -> ResourceUsage:
    """Run the exporter for a fixed time and return its resource usage; its output is what it serves.

    Args:
        command: the exporter, which prints its address.
        seconds: duration of the run.
        warm: seconds of warm-up at the start, excluded from the rates.

    Raises:
        ProgramEndedError: it exited early.
    """
    terminal = Terminal(command)
    try:
        while not (found := _URL.search(b"".join(data for _, data in terminal.chunks))):
            if terminal.age > _START_SECONDS:
                raise TimeoutError("the exporter does not say where it serves")
            terminal.serve_once(until=terminal.age + 1.0)
        url, start = found[0].decode(), terminal.age
        _scrape(terminal, url, until=start + warm)
        cpu, started = terminal.cpu_seconds(), time.monotonic()
        size = _scrape(terminal, url, until=start + seconds)
        elapsed = time.monotonic() - started
        return ResourceUsage(
            cpu_seconds_per_minute=(terminal.cpu_seconds() - cpu) * 60 / elapsed,
            bytes_per_second=size / elapsed,
            memory_bytes=terminal.memory_bytes(),
        )
    finally:
        terminal.stop()


def _scrape(terminal: Terminal, url: str, *, until: float) -> int:
    """Scrape once a second; returns the bytes that came."""
    size = 0
    while terminal.age < until:
        due = terminal.age + _SCRAPE_INTERVAL_SECONDS
        with urllib.request.urlopen(urllib.request.Request(url, headers=_HEADERS), timeout=10) as answer:  # noqa: S310 - loopback
            size += len(answer.read())
        terminal.serve(until=min(due, until))
    return size
