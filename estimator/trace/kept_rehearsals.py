"""Rehearsals that are kept: a program whose files, arguments and libraries are the same is not run again."""

import contextlib
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..budget import ComponentName
from .traced_step import StepSummary
from .worker_pool import cache_file, code_digest, read_cached, write_cached

MOST_KEPT = 50
"""Rehearsals that are kept; the oldest are removed."""
_KIND, _VERSION = "rehearsals", 1
_WHOLE_BYTES = 1 << 24
"""Files up to this size are compared by what they contain, larger ones by size and time of change."""
MOST_FILES = 2000
"""A program that reads more is not kept."""
_VARIABLES = ("CUBLAS_", "CUDA_", "HF_", "PYTHONPATH", "PYTORCH_", "TORCH", "TRANSFORMERS_", "VIRTUAL_ENV")
"""Beginnings of the variables that decide what a program does, beside those on its own line."""
_WORKER = Path(__file__).parents[1] / "worker"


class OptimizerSteps(msgspec.Struct, frozen=True):
    """How often an optimizer has stepped."""

    optimizer: str
    steps: int


class RehearsalAnswer(StepSummary, frozen=True, kw_only=True):
    """What the program in the other interpreter has written."""

    ended: str
    line: str
    steps: list[OptimizerSteps]
    trained: int
    doubts: list[str]
    seconds: float
    host_bytes: int
    versions: dict[str, str]
    parameters: int = 0
    files: tuple[str, ...] = ()
    """What the program is made of: its own files, and what tells the versions of its libraries."""
    world_size: int = 1
    """Ranks of the program; what is told is of one of them."""
    error: str | None = None
    reserved: tuple[int, ...] = ()
    """Bytes that the allocator holds at each moment of the timeline."""
    peak_reserved: int = 0
    made: tuple[tuple[ComponentName, str, str, int], ...] = ()
    """Component, module and line of what is allocated at the peak, with its bytes, the largest first."""
    step: int = 0


class KeptRehearsal(msgspec.Struct, frozen=True):
    """A rehearsed program."""

    words: list[str]
    """What its interpreter was given."""
    folder: str
    python: str
    time: float
    """Unix seconds."""
    files: dict[str, str]
    """What each file of the program contained, by its path."""
    answer: RehearsalAnswer

    @property
    def is_current(self) -> bool:
        """True if none of its files has changed."""
        return all(_digest(Path(file)) == digest for file, digest in self.files.items())

    @property
    def date(self) -> str:
        """When it was rehearsed, in words."""
        return f"{datetime.fromtimestamp(self.time):%Y-%m-%d %H:%M}"


def key_of(python: Path, words: Sequence[str], folder: str, plan: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the name under which a rehearsal is kept.

    Args:
        python: the interpreter.
        words: what it is given.
        folder: in which it is started.
        plan: settings of the rehearsal.
        environ: the program's environment.
    """
    digest = code_digest(_WORKER.rglob("*.py"), math.inf)
    variables = {name: text for name, text in environ.items() if name.startswith(_VARIABLES)}
    return cache_file(_KIND, [str(python), words, folder, plan, variables, digest]).stem


def find(name: str) -> KeptRehearsal | None:
    """Return the rehearsal of that name, if the program is still the same."""
    kept = read_cached(_file(name), _VERSION, KeptRehearsal)
    return kept if kept is not None and kept.is_current else None


def of_answer(python: Path, words: Sequence[str], folder: str, answer: RehearsalAnswer) -> KeptRehearsal:
    """Return the rehearsal that was just made; the files on its command line count as the program's, too."""
    named = [Path(folder, word) for word in words if not word.startswith("-")]
    own = {*(Path(folder, file) for file in answer.files), *(each for each in named if each.is_file())}
    files = {str(each): _digest(each) for each in sorted(own)}
    return KeptRehearsal(
        words=[*words], folder=folder, python=str(python), time=time.time(), files=files, answer=answer
    )


def keep(name: str, rehearsal: KeptRehearsal) -> None:
    """Keep a rehearsal."""
    write_cached(_file(name), _VERSION, rehearsal)
    for old in _newest_first()[MOST_KEPT:]:
        with contextlib.suppress(OSError):
            old.unlink()


def of_run(words: Sequence[str], folder: str) -> tuple[str, KeptRehearsal] | None:
    """Return the newest rehearsal of a program that runs: the same script and arguments in the same folder.

    Args:
        words: what its interpreter was given.
        folder: its folder.
    """
    for file in _newest_first():
        kept = read_cached(file, _VERSION, KeptRehearsal)
        if kept is None or kept.folder != folder or kept.words[1:] != words[1:]:
            continue
        if _script(kept.words, folder) == _script(words, folder) and kept.is_current:
            return file.stem, kept
    return None


def _script(words: Sequence[str], folder: str) -> str:
    return words[0] if words[0].startswith("-") else str(Path(folder, words[0]).resolve())


def _file(name: str) -> Path:
    return cache_file(_KIND, None).with_name(f"{name}.json")


def _newest_first() -> list[Path]:
    def changed(file: Path) -> float:
        try:
            return file.stat().st_mtime
        except OSError:
            return 0.0

    return sorted(_file("any").parent.glob("*.json"), key=changed, reverse=True)


def _digest(file: Path) -> str:
    try:
        found = file.stat()
        if found.st_size > _WHOLE_BYTES:
            return f"{found.st_size} {found.st_mtime_ns}"
        return f"{found.st_size} {hashlib.sha256(file.read_bytes()).hexdigest()}"
    except OSError:
        return "missing"
