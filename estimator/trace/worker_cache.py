"""Cache of worker answers on disk: files are written whole or not at all; a broken cache never stops an estimate."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from platformdirs import user_cache_dir

from ..common import read_file
from .interpreters import Interpreter
from .worker_pool import POOL
from .worker_process import convert_answer

_MAX_ANSWER_BYTES = 2**26
"""A trace of some 100,000 allocations."""

T = TypeVar("T")


def cache_file(kind: str, key: object, *, folder: Path | None = None) -> Path:
    """Return the file for the answer to a request.

    Args:
        kind: subfolder by kind of request.
        key: everything that the answer depends on, as plain data.
        folder: cache folder; None: the user's.
    """
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()
    return (folder or Path(user_cache_dir("vramtop"))) / kind / f"{digest[:32]}.json"


def cached_request(
    interpreter: Interpreter,
    request: Mapping[str, Any],
    answer_type: type[T],
    *,
    file: Path,
    version: int,
    timeout: float,
) -> T:
    """Return a worker's answer, from the cache if it is there.

    Answers to requests that run the user's code are not kept, since code may change at any time.

    Args:
        interpreter: runs the worker.
        request: the request.
        answer_type: type of the answer.
        file: file of the cache.
        version: format of the file; a file of another format is ignored.
        timeout: seconds.

    Raises:
        CannotTellError: the worker failed, does not support the request, or its answer has another type.
    """
    cacheable = not request.get("code")
    answer = read_cached(file, version, answer_type) if cacheable else None
    if answer is None:
        message = POOL.request(interpreter, request, timeout)
        answer = convert_answer(message, answer_type)
        if cacheable:
            write_cached(file, version, message)
    return answer


class _CachedAnswer(msgspec.Struct):
    format: int
    answer: msgspec.Raw


def read_cached(file: Path, version: int, answer_type: type[T]) -> T | None:
    """Return an earlier answer; None if the file is missing, cut, foreign or of another version."""
    try:
        kept = msgspec.json.decode(read_file(file, _MAX_ANSWER_BYTES), type=_CachedAnswer)
        return msgspec.json.decode(kept.answer, type=answer_type) if kept.format == version else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_cached(file: Path, version: int, answer: dict[str, Any]) -> None:
    """Keep an answer; if the folder cannot be written to, the next estimate asks the worker again."""
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
