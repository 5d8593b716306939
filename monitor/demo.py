"""The recording that ships with vramtop, for machines without a GPU."""

from pathlib import Path


def demo_path() -> Path:
    """The packaged recording; ``ReplaySource(demo_path(), kind="demo")`` plays it."""
    return Path(__file__).with_name("demo.jsonl.gz")
