"""Answers of workers kept on disk: whole or not at all, and never in the way."""

import tempfile
from pathlib import Path
from typing import Any

import msgspec


class _Kept(msgspec.Struct):
    format: int
    answer: dict[str, Any]


def read_cached(file: Path, version: int) -> dict[str, Any] | None:
    """An earlier answer; a file that is missing, cut, foreign or of another version is none."""
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return kept.answer if kept.format == version else None


def write_cached(file: Path, version: int, answer: dict[str, Any]) -> None:
    """Keep an answer; a folder that cannot be written to costs only the next start."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            part.write(msgspec.json.encode(_Kept(format=version, answer=answer)))
        Path(part.name).replace(file)
    except OSError:
        return
