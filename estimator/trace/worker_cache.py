"""Answers of workers kept on disk: whole or not at all, and never in the way."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..common.untrusted_files import read_file

_MAX_ANSWER_BYTES = 2**26
"""Of an answer: a trace of some 100,000 allocations."""

T = TypeVar("T")


class _CachedAnswer(msgspec.Struct):
    format: int
    answer: msgspec.Raw


def read_cached(file: Path, version: int, kind: type[T]) -> T | None:
    """An earlier answer; a file that is missing, cut, foreign or of another version is none."""
    try:
        kept = msgspec.json.decode(read_file(file, _MAX_ANSWER_BYTES), type=_CachedAnswer)
        return msgspec.json.decode(kept.answer, type=kind) if kept.format == version else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_cached(file: Path, version: int, answer: dict[str, Any]) -> None:
    """Keep an answer; a folder that cannot be written to costs only the next start."""
    kept = _CachedAnswer(format=version, answer=msgspec.Raw(msgspec.json.encode(answer)))
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=file.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as part:
            part.write(msgspec.json.encode(kept))
        Path(name).replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
