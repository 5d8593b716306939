"""The recording that ships with vramtop, for machines without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.errors import CannotTellError

from .snapshot import Fault, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from .replay import ReplaySource
    from .source import SnapshotSource


def demo_path() -> Path:
    """The packaged recording; ``ReplaySource(demo_path(), kind="demo")`` plays it."""
    return Path(__file__).with_name("demo.jsonl.gz")


def demo_source() -> ReplaySource:
    """The demo recording, played over and over as of now."""
    from .replay import ReplaySource  # live GPUs need none

    return ReplaySource(demo_path(), kind="demo", loop=True, rebase=True)


class LiveOrDemo:
    """This machine's GPUs; where they cannot be had at the first try, the demo recording, which then says so.

    Args:
        live: this machine's GPUs.
        demo: makes what is played in their place.
    """

    def __init__(self, live: SnapshotSource, demo: Callable[[], SnapshotSource] = demo_source) -> None:
        self._live = live
        self._make_demo = demo
        self._source = live
        self._why: Fault | None = None
        self._seen_live = False

    def open(self) -> None:
        """Open the live source, or the demo in its place; a driver that was there once is waited for.

        Raises:
            VramtopError: neither can be had.
        """
        try:
            self._live.open()
        except CannotTellError as error:
            if self._seen_live:
                raise
            self._why = Fault(field=None, code="DEMO", message=f"demo recording, not this machine: {error.message}")
            self._source = self._make_demo()
            self._source.open()
        else:
            self._seen_live = True
            self._source = self._live

    def read(self) -> Snapshot | None:
        """The newest snapshot; the demo's carry the reason why they are shown."""
        snapshot = self._source.read()
        if snapshot is None or self._why is None:
            return snapshot
        return replace(snapshot, faults=(self._why, *snapshot.faults))

    def close(self) -> None:
        """Close whichever source is open."""
        self._source.close()
