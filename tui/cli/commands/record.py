"""``vramtop record FILE``: write snapshots to a file that ``--replay`` plays."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from vramtop.estimator.common.errors import CannotTellError, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.history.run_recorder import RunRecorder
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.sources.recording import RecordingWriter
from vramtop.monitor.sources.sampler import Sampler

from ..crash_report import save_fault
from ..estimators import quick_estimate


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Record until interrupted, or for ``--seconds``; exit code 0, or 3 if there was no reading."""
    path = Path(options.file)
    stop = threading.Event()
    errors: list[VramtopError] = []
    count = 0

    def write(snapshot: Snapshot) -> None:
        nonlocal count
        board = watchlist.update(snapshot)
        attach.observe(board)
        # an error ends the sampler, which passes it to fail()
        writer.write(replace(snapshot, watched=watchlist.runs()))
        count += 1

    def fail(error: VramtopError) -> None:
        errors.append(error)
        stop.set()

    watchlist = Watchlist(quick_estimate)
    recorder = RunRecorder() if options.history else None
    attach = AutomaticAttach(watchlist, enabled=options.attach, recorder=recorder, on_bug=save_fault)
    source = NvmlSource()
    source.open()  # without a driver this raises before a file is created
    source.close()
    with RecordingWriter(path, overwrite=options.overwrite) as writer:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stop.set())
        sampler = Sampler(NvmlSource(), options.interval, write, fail, retry_seconds=None)
        attach.start()
        sampler.start()
        if sys.stderr.isatty():
            print(f"recording to {path}, Ctrl-C stops", file=sys.stderr)
        stop.wait(options.seconds)
        sampler.stop()
        attach.close()
    if errors:
        raise errors[0]
    if not count:
        raise CannotTellError(
            f"{path}: nothing was recorded: no reading arrived, and the driver may be hanging; see vramtop doctor"
        )
    snapshots = "1 snapshot" if count == 1 else f"{count} snapshots"
    recorded = {"schema": 1, "file": str(path), "snapshots": count}
    print(json.dumps(recorded) if options.json else f"{path}: {snapshots}")
    return 0
