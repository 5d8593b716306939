"""The recording that ships with vramtop, for machines without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .replay import ReplaySource


def demo_path() -> Path:
    """The packaged recording; ``ReplaySource(demo_path(), kind="demo")`` plays it."""
    return Path(__file__).with_name("demo.jsonl.gz")


def demo_source() -> ReplaySource:
    """The demo recording, played over and over as of now."""
    from .replay import ReplaySource  # live GPUs need none

    return ReplaySource(demo_path(), kind="demo", loop=True, rebase=True)
