"""``vramtop export``: serve the board as Prometheus metrics until interrupted."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.version import version_number
from vramtop.monitor.export.latest_board import LatestBoard
from vramtop.monitor.snapshot.snapshot import Snapshot

from ...draw.text_output import printable
from ..crash_report import save_fault
from ..estimators import Estimators, pending_jobs


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Export until interrupted; exit code 0."""
    if options.print_file is not None:
        from vramtop.monitor.export.ready_files import dashboard_text, rules_text

        print({"rules": rules_text, "dashboard": dashboard_text}[options.print_file](), end="")
        return 0
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    crashes: list[BaseException] = []

    def end(failed: threading.ExceptHookArgs) -> None:
        """End the exporter, so that whatever supervises it starts it again: a thread is gone."""
        crashes.append(failed.exc_value or failed.exc_type())
        stop.set()

    threading.excepthook = end
    with ExitStack() as running:  # it ends what was started
        _start(options, running)
        stop.wait()
    if crashes:
        raise crashes[0]
    return 0


def _start(options: argparse.Namespace, running: ExitStack) -> None:
    """Start everything that was asked for: the server, the sampler, and what attaches to runs and measures them."""
    from vramtop.monitor.attach.rank_facts import RankFactsReader
    from vramtop.monitor.snapshot.faults import NO_DRIVER
    from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
    from vramtop.monitor.sources.optional_gpus import OptionalGpuSource
    from vramtop.monitor.sources.sampler import Sampler

    version, facts = version_number() or "unknown", RankFactsReader()
    latest, log = LatestBoard(options.interval, facts_of=facts.facts_of), _Log()
    estimators = Estimators(options.python, corrects=options.history, notify=log.say)
    watchlist = estimators.watchlist
    for job in pending_jobs(options):
        watchlist.add_pending(job)
    _serve(options, latest, version, running)
    attach = estimators.attach(options)

    def take(snapshot: Snapshot) -> None:
        board = watchlist.update(snapshot)
        latest.set(board)
        facts.keep_only(key for run in board.runs for key in run.pids)
        log.faults(_whole_faults(snapshot))
        attach.observe(board)

    def fail(error: VramtopError) -> None:
        latest.fail(NO_DRIVER)
        log.faults({NO_DRIVER: error.message})

    sampler = Sampler(OptionalGpuSource(NvmlSource()), options.interval, take, fail)
    attach.start()
    running.callback(attach.close)
    sampler.start()
    running.callback(sampler.stop)


def _serve(options: argparse.Namespace, latest: LatestBoard, version: str, running: ExitStack) -> None:
    from vramtop.monitor.export.listen_address import DEFAULT_PORT, ListenAddress
    from vramtop.monitor.export.metrics_text import MetricsText
    from vramtop.monitor.export.server import MetricsServer

    address = ListenAddress.parse(options.listen or str(DEFAULT_PORT))
    text = MetricsText(latest, version)
    server = MetricsServer(address, text, names=address.names(options.name), on_bug=_report_bug)
    if not address.is_loopback:
        print(
            f"vramtop: {printable(address.host)} is not loopback: anyone who can reach this address sees names of "
            "users and jobs; a proxy with a password and TLS keeps them private",
            file=sys.stderr,
        )
    server.start()
    running.callback(server.stop)
    if options.json:
        import json

        print(json.dumps({"schema": 1, "url": server.url}), flush=True)
    print(f"vramtop: metrics at {server.url}, Ctrl-C stops", file=sys.stderr, flush=True)


class _Log:
    """Sentences on standard error, each once while what it says lasts."""

    def __init__(self) -> None:
        self._present: set[Hashable] = set()

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        print(f"vramtop: {printable(sentence)}", file=sys.stderr, flush=True)

    def faults(self, sentences: Mapping[Hashable, str]) -> None:
        """Print those whose keys were not there the last time."""
        for key, sentence in sentences.items():
            if key not in self._present:
                self.say(sentence)
        self._present = set(sentences)


def _whole_faults(snapshot: Snapshot) -> dict[Hashable, str]:
    """Return the faults of the machine and of whole GPUs; the metrics have only their codes."""
    found: dict[Hashable, str] = {fault.code: fault.message for fault in snapshot.faults}
    for gpu in snapshot.gpus:
        for fault in gpu.faults:
            if fault.field is None:
                found[gpu.key, fault.code] = f"GPU {gpu.label}: {fault.message}"
    return found


def _report_bug(traceback: str) -> None:
    path = save_fault(traceback)
    where = f"; the traceback is in {path}" if path else ""
    print(f"vramtop: internal error: the metrics could not be made; please report it{where}", file=sys.stderr)
