"""``vramtop export`` in a process of its own with a fake libnvidia-ml, and what it serves.

As a program, ``exporter.py MACHINE.json WORD ...`` runs vramtop. The machine is a list of GPUs: ``{"used_gib": 20,
"processes": {"PID": GiB}, "lost": false, "uuid": "GPU-0"}``; null: the driver is gone. It is read again whenever the
file changes. The time of day, and the time for which alerts hold, run ``CLOCK_SPEED`` times as fast.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_driver import FakeDriver, FakeGpu, FakeProcess
from json_schemas import valid_json
from prometheus_client.openmetrics.parser import text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
GIB = 2**30


def needs(program: str) -> pytest.MarkDecorator:
    """Skip a test where a program is not installed."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed (apt: prometheus)")


def program(name: str) -> str:
    """Path of a program that the test needs."""
    path = shutil.which(name)
    assert path is not None
    return path


def families(text: str) -> dict[str, Any]:
    """Parse OpenMetrics: families by their name."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(text: str, name: str) -> list[tuple[Mapping[str, str], float]]:
    """Labels and value of each sample of a metric."""
    found = (sample for family in families(text).values() for sample in family.samples if sample.name == name)
    return [(sample.labels, sample.value) for sample in found]


def scrape(url: str, accept: str = OPENMETRICS, **headers: str) -> str:
    request = urllib.request.Request(url, headers={"Accept": accept, **headers})  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return answer.read().decode()


class Exporter:
    """``vramtop export`` in a process of its own, whose driver follows a file."""

    def __init__(self, folder: Path, *words: str, gpus: Any, environ: Mapping[str, str]) -> None:
        self._machine = folder / "machine.json"
        self.show(gpus)
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(self._machine), "export", *words],
            env={**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.url = ""

    def started(self) -> "Exporter":
        """Wait until it serves."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        self.url = valid_json("export", line)["url"]
        return self

    def show(self, gpus: Any) -> None:
        """Change the machine: a list of GPUs, each with the memory of its processes by pid."""
        new = self._machine.with_suffix(".new")
        new.write_text(json.dumps(gpus))
        new.replace(self._machine)

    def scrape(self) -> str:
        return scrape(self.url)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code


@contextmanager
def exporters(folder: Path) -> Iterator[Callable[..., Exporter]]:
    """Give a function that starts an exporter; all that it started are ended afterwards.

    By default the machine has one GPU, with 20 GiB in use and no processes.
    """
    running: list[Exporter] = []

    def start(*words: str, gpus: Any = None, environ: Mapping[str, str] | None = None) -> Exporter:
        own = folder / f"exporter{len(running)}"
        own.mkdir()
        machine = [{"used_gib": 20, "processes": {}}] if gpus is None else gpus
        running.append(Exporter(own, *words, gpus=machine, environ=environ or {}))
        return running[-1]

    try:
        yield start
    finally:
        for each in running:
            each.end(signal.SIGKILL)


class FileDriver(FakeDriver):
    """A driver whose GPUs are those of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._seen: Any = None
        self._gone = False

    def _error(self, name: str, args: tuple[Any, ...]) -> int:
        self._follow()
        return pynvml.NVML_ERROR_DRIVER_NOT_LOADED if self._gone else super()._error(name, args)

    def _follow(self) -> None:
        if (now := self._path.stat().st_mtime_ns) == self._seen:
            return
        self._seen = now
        machine = json.loads(self._path.read_text())
        self._gone = machine is None
        if machine is None:
            return
        self.errors.clear()
        self.gpus = [
            FakeGpu(
                uuid=gpu.get("uuid", f"GPU-{at}"),
                used_bytes=round(gpu["used_gib"] * GIB),
                processes=[FakeProcess(int(pid), round(size * GIB)) for pid, size in gpu["processes"].items()],
            )
            for at, gpu in enumerate(machine)
        ]
        for at, gpu in enumerate(machine):
            if gpu.get("lost"):
                self.lose(at)


def _speed_up(factor: float) -> None:
    """Let the time of day, and that of the alerts, run faster, so that minutes of readings take seconds."""
    from vramtop.tui.cli.commands import export

    real, start = time.time, time.time()
    time.time = lambda: start + factor * (real() - start)
    export.monotonic = lambda: factor * time.monotonic()


if __name__ == "__main__":
    _speed_up(float(os.environ.get("CLOCK_SPEED", "1")))
    pynvml.nvmlLib = FileDriver(Path(sys.argv[1]))
    from vramtop.tui.cli.main import main

    raise SystemExit(main(sys.argv[2:]))
