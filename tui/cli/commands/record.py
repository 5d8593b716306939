"""``vramtop record FILE``: write snapshots to a file that ``--replay`` plays."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from vramtop.estimator.common.errors import CannotTellError, VramtopError
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.sources.recording import RecordingWriter
from vramtop.monitor.sources.sampler import Sampler


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Record until interrupted, or for ``--seconds``; exit code 0, or 3 where no reading came in."""
    del launch
    path = Path(options.file)
    done = threading.Event()
    failed: list[VramtopError] = []
    written = 0

    def keep(snapshot: Snapshot) -> None:
        nonlocal written
        writer.write(snapshot)  # what it raises ends the sampler, which says so
        written += 1

    def fail(error: VramtopError) -> None:
        failed.append(error)
        done.set()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        done.set()

    source = NvmlSource()
    source.open()  # without a driver there is nothing to record, and no file to leave behind
    source.close()
    with RecordingWriter(path, overwrite=options.overwrite) as writer:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        sampler = Sampler(NvmlSource(), options.interval, keep, fail, retry_seconds=None)
        sampler.start()
        if sys.stderr.isatty():
            print(f"recording to {path}, Ctrl-C ends it", file=sys.stderr)
        done.wait(options.seconds)
        sampler.stop()
    if failed:
        raise failed[0]
    if not written:
        raise CannotTellError(f"{path}: nothing was recorded: no reading has come in; the driver may hang")
    count = "1 snapshot" if written == 1 else f"{written} snapshots"
    print(json.dumps({"file": str(path), "snapshots": written}) if options.json else f"{path}: {count}")
    return 0
