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
    host, version, interval = os.uname().nodename, version_number(), options.interval
    facts, failures = RankFactsReader(), list[OSError]()
    written, ended = threading.Event(), threading.Event()
    """Set after the first line, and when nobody reads any more."""

    def write(reading: HostReading) -> None:
        try:
            sys.stdout.buffer.write(stream_line(reading))
            sys.stdout.buffer.flush()
            written.set()
        except OSError as error:
            failures.append(error)
            ended.set()

    def take(snapshot: Snapshot) -> None:
        board = watchlist.update(snapshot)
        attach.observe(board)
        facts.keep_only(row.process.key for row in board.processes)
        write(reading_of_board(board, host=host, facts_of=facts.facts_of, interval=interval, version=version))

    def fail(error: VramtopError) -> None:
        """Say why there are no figures; the source is read again after a while."""
        write(HostReading(host=host, faults=(error.message,), vramtop_version=version, interval=interval))

    watchlist = Watchlist(lambda job: quick_estimate(job, watchlist.gpu_type))
    attach = AutomaticAttach(watchlist, enabled=options.attach, corrects=options.history, on_bug=save_fault)
    sampler = Sampler(OptionalGpuSource(NvmlSource()), interval, take, fail)
    attach.start()
    sampler.start()
    _end_with_input(written, ended)
    ended.wait()
    sampler.stop()
    attach.close()
    if failures and not isinstance(failures[0], BrokenPipeError):
        raise failures[0]
    return 0


_POLL_MILLISECONDS = 200
"""Time between two checks whether a line has been written, after which a closed input ends the stream."""


def _end_with_input(written: threading.Event, ended: threading.Event) -> None:
    """End the stream when standard input or output is closed at the other end; a terminal is not waited for.

    An input that was closed from the start leaves time for one line.
    """

    def wait() -> None:
        poll, has_input = select.poll(), not sys.stdin.isatty()
        poll.register(1, select.POLLERR | select.POLLHUP)
        if has_input:
            poll.register(0, select.POLLIN | select.POLLHUP)
        while not ended.is_set():
            events = dict(poll.poll(_POLL_MILLISECONDS))
            if 0 in events and not _read_some():
                poll.unregister(0)
                has_input = False
            if 1 in events or (not has_input and written.is_set() and not sys.stdin.isatty()):
                ended.set()

    start_thread(threading.Thread(target=wait, name="end of input", daemon=True))


def _read_some() -> bool:
    """Read and drop some of standard input; False at its end."""
    try:
        return bool(os.read(0, 4096))
    except OSError:
        return False
