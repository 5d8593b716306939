"""The demo recording that ships with vramtop, for machines without a GPU."""

from pathlib import Path

from .replay import ReplaySource


def demo_path() -> Path:
    """Return the path of the demo recording."""
    return Path(__file__).with_name("demo.jsonl.gz")


def demo_source() -> ReplaySource:
    """Return a source that plays the demo recording in a loop, with its times moved to now."""
    from .replay import ReplaySource

    return ReplaySource(demo_path(), kind="demo", loop=True, rebase=True)
