"""Cache on disk, of worker answers and of what is computed beside them: a broken cache never stops an estimate.

Files are written whole or not at all. An answer of another user's would decide what fits: where anyone but this user
and root may write (HOME after sudo or su, a shared XDG_CACHE_HOME), nothing is read and nothing kept.
"""

import contextlib
import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from platformdirs import user_cache_dir

from ..common.limits import LimitError, decode_json
from ..common.private_files import is_own, make_own_folder
from ..common.untrusted_files import read_file
from .installed_packages import Interpreter
from .worker_pool import POOL
from .worker_process import WORKER_PROGRAM, convert_answer

_MAX_ANSWER_BYTES = 2**26
"""A trace of some 100,000 allocations."""
_RESULT_VERSION = 1
"""Format of the files."""
T = TypeVar("T")


def cache_file(kind: str, key: object) -> Path:
    """Return the file for the answer to a request.

    Args:
        kind: subfolder by kind of request.
        key: everything that the answer depends on, as plain data.
    """
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()
    return _user_folder() / kind / f"{digest[:32]}.json"


def _user_folder() -> Path:
    try:
        return Path(user_cache_dir("vramtop"))
    except RuntimeError:  # platformdirs 4.4 and newer, where no home is known: nothing is kept in a relative folder
        return Path("~/.cache/vramtop")


def cached_request(
    kind: str, interpreter: Interpreter, request: Mapping[str, Any], answer_type: type[T], timeout: float
) -> T:
    """Return a worker's answer, from the cache if the same code gave it with the same versions of the libraries.

    Answers to requests that run the user's code are not kept, since code may change at any time.

    Args:
        kind: subfolder by kind of request.
        interpreter: runs the worker.
        request: the request.
        answer_type: type of the answer.
        timeout: seconds.

    Raises:
        CannotTellError: the worker failed, does not support the request, or its answer has another type.
    """
    code = worker_digest()
    key = [request, [interpreter.torch, interpreter.transformers, interpreter.peft], code]
    file = None if code is None or request.get("code") else cache_file(kind, key)
    answer = None if file is None else read_cached(file, _RESULT_VERSION, answer_type)
    if answer is None:
        message = POOL.request(interpreter, request, timeout)
        answer = convert_answer(message, answer_type)
        if file is not None:
            write_cached(file, _RESULT_VERSION, message)
    return answer


def worker_digest() -> str | None:
    """Return a digest of the worker's code."""
    return code_digest(WORKER_PROGRAM.parent.rglob("*.py"), math.inf)


def kept_result(
    kind: str, key: object, compute: Callable[[], T], result_type: type[T], *, code: tuple[Iterable[Path], float]
) -> T:
    """Return what this process computes from a key, from the cache if the same code computed it before.

    Args:
        kind: subfolder by kind of result.
        key: everything that the result depends on besides the code, as plain data.
        compute: computes the result.
        result_type: its type.
        code: the files of the code and of the tables that it reads, and when this process loaded them, in Unix seconds.

    Raises:
        VramtopError: as ``compute`` does.
    """
    digest = code_digest(*code)
    if digest is None:
        return compute()
    file = cache_file(kind, [key, digest])
    result = read_cached(file, _RESULT_VERSION, result_type)
    if result is None:
        result = compute()
        write_cached(file, _RESULT_VERSION, result)
    return result


def code_digest(files: Iterable[Path], loaded: float) -> str | None:
    """Return a digest of what files contain, for the key of what their code computes.

    None if one cannot be read, or has changed since the process loaded it: then it is not known what the process runs.
    """
    digest = hashlib.sha256()
    try:
        for file in sorted(files):
            with file.open("rb") as opened:
                if os.fstat(opened.fileno()).st_ctime >= loaded:
                    return None
                content = opened.read()
            digest.update(f"{file.name} {len(content)} ".encode())
            digest.update(content)
    except OSError:
        return None
    return digest.hexdigest()


class _CachedAnswer(msgspec.Struct):
    format: int
    answer: msgspec.Raw


def read_cached(file: Path, version: int, answer_type: type[T]) -> T | None:
    """Return an earlier answer; None if the file is missing, cut, another user's or of another version."""
    if not is_own(file):
        return None
    try:
        kept = decode_json(read_file(file, _MAX_ANSWER_BYTES), _CachedAnswer)
        return decode_json(bytes(kept.answer), answer_type) if kept.format == version else None
    except (OSError, LimitError):
        return None


def write_cached(file: Path, version: int, answer: object) -> None:
    """Keep an answer; if the folder cannot be written to, the next estimate asks the worker again."""
    if not is_own(file):
        return
    kept = _CachedAnswer(format=version, answer=msgspec.Raw(msgspec.json.encode(answer)))
    try:
        make_own_folder(file)
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
