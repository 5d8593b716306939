"""``vramtop stream``: one line of JSON per reading on standard output, for ``vramtop --host`` elsewhere."""

import argparse
import os
import select
import sys
import threading
from collections.abc import Sequence

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.process_limit import start_thread
from vramtop.estimator.common.version import version_number
from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
from vramtop.monitor.attach.rank_facts import RankFactsReader
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.fleet.board_reading import reading_of_board
from vramtop.monitor.fleet.fleet import HostReading
from vramtop.monitor.fleet.stream_line import stream_line
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.sources.optional_gpus import OptionalGpuSource
from vramtop.monitor.sources.sampler import Sampler

from ..crash_report import save_fault
from ..estimators import quick_estimate


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Write a line per reading until standard input or output is closed; exit code 0."""
    stream = _Stream(options)
    stream.attach.start()
    stream.sampler.start()
    _end_with_input(stream)
    stream.ended.wait()
    stream.sampler.stop()
    stream.attach.close()
    if stream.failure is not None and not isinstance(stream.failure, BrokenPipeError):
        raise stream.failure
    return 0


class _Stream:
    """Reads this machine, and writes its lines on the sampler's thread."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._host, self._version = os.uname().nodename, version_number()
        self._facts = RankFactsReader()
        self._watchlist = Watchlist(lambda job: quick_estimate(job, self._watchlist.gpu_type))
        enabled = options.attach
        self.attach = AutomaticAttach(self._watchlist, enabled=enabled, corrects=options.history, on_bug=save_fault)
        source = OptionalGpuSource(NvmlSource())
        self.sampler = Sampler(source, options.interval, self._on_snapshot, self._on_error)
        self.has_written = False
        self.ended = threading.Event()
        """Set when nobody reads any more."""
        self.failure: OSError | None = None
        """Why nothing can be written any more."""

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        board = self._watchlist.update(snapshot)
        self.attach.observe(board)
        self._facts.keep_only(row.process.key for row in board.processes)
        interval, facts_of = self._options.interval, self._facts.facts_of
        self._write(
            reading_of_board(board, host=self._host, facts_of=facts_of, interval=interval, version=self._version)
        )

    def _on_error(self, error: VramtopError) -> None:
        """Say why there are no figures; the source is read again after a while."""
        faults, interval = (error.message,), self._options.interval
        self._write(HostReading(host=self._host, faults=faults, vramtop_version=self._version, interval=interval))

    def _write(self, reading: HostReading) -> None:
        try:
            sys.stdout.buffer.write(stream_line(reading))
            sys.stdout.buffer.flush()
            self.has_written = True
        except OSError as error:
            self.failure = error
            self.ended.set()


_POLL_MILLISECONDS = 200
"""Time between two checks whether a line has been written, after which a closed input ends the stream."""


def _end_with_input(stream: _Stream) -> None:
    """End the stream when standard input or output is closed at the other end; a terminal is not waited for.

    An input that was closed from the start leaves time for one line.
    """

    def wait() -> None:
        poll, has_input = select.poll(), not sys.stdin.isatty()
        poll.register(1, select.POLLERR | select.POLLHUP)
        if has_input:
            poll.register(0, select.POLLIN | select.POLLHUP)
        while not stream.ended.is_set():
            events = dict(poll.poll(_POLL_MILLISECONDS))
            if 0 in events and not _read_some():
                poll.unregister(0)
                has_input = False
            if 1 in events or (not has_input and stream.has_written and not sys.stdin.isatty()):
                stream.ended.set()

    start_thread(threading.Thread(target=wait, name="end of input", daemon=True))


def _read_some() -> bool:
    """Read and drop some of standard input; False at its end."""
    try:
        return bool(os.read(0, 4096))
    except OSError:
        return False
