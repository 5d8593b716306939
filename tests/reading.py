"""Scripts and launch lines, read in a test's folder as where nothing else is known."""

import shlex
from pathlib import Path
from typing import Any

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading


def read_script(folder: Path, text: str, *words: str, **more: Any) -> JobReading:
    """Read ``python train.py`` with this text and these arguments."""
    return read_line(folder, ["python", "train.py", *words], text, **more)


def read_line(folder: Path, line: str | list[str], script: str | None = None, **more: Any) -> JobReading:
    """Read a launch line, beside ``train.py`` with this text."""
    if script is not None:
        (folder / "train.py").write_text(script)
    return read_launch(shlex.split(line) if isinstance(line, str) else line, **{"environ": {}, "cwd": folder, **more})


def found(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    """Return the values of some keys."""
    return tuple(reading.value(key) for key in keys)
