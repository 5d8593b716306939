"""Writes a snapshot of torch's CUDA allocator to a file. Runs in the user's process, under its Python and its torch.

``torch.cuda.memory._snapshot`` copies what the allocator knows: no CUDA call, no touch of a tensor. The file is pickled
as ``_dump_snapshot`` does, so that torch's own viewer opens it too; bounded in size, readable by the user
only, complete as soon as it has its name.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

MAX_FILE_BYTES = 1 << 30
settings: dict[str, Any] = {"folder": None}
"""Where files go; None: the folder that is current then."""
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class CannotDumpError(Exception):
    """There is nothing to write, or it cannot be written; the sentence says why."""


class _BoundedFile:
    """Counts what is written to a file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        if self.size > MAX_FILE_BYTES:
            raise CannotDumpError(f"the snapshot would have more than {MAX_FILE_BYTES >> 30} GiB")
        return int(self._file.write(data))


def cuda_in_use() -> Any:
    """Return ``torch.cuda``.

    Raises:
        CannotDumpError: the process has not used a GPU through torch's own allocator.
    """
    torch = sys.modules.get("torch")
    cuda = vars(torch).get("cuda") if torch is not None else None
    if cuda is None or not cuda.is_initialized():
        raise CannotDumpError("it has not used a GPU through torch")
    if hasattr(cuda, "get_allocator_backend") and cuda.get_allocator_backend() != "native":
        raise CannotDumpError("it uses another allocator than torch's own, which has no snapshots")
    return cuda


def dump(kind: str, **facts: Any) -> tuple[str, int]:
    """Write a snapshot; return the file's path and size.

    It goes to the folder of ``settings``; what cannot be written there, to the folder for temporary files.

    Args:
        kind: ``oom`` or ``snapshot``, a part of the file's name.
        facts: further facts for the snapshot's key ``vramtop``.

    Raises:
        CannotDumpError: there is nothing to write, or it cannot be written.
    """
    cuda = cuda_in_use()
    snapshot = cuda.memory._snapshot()
    if isinstance(snapshot, dict):
        snapshot["vramtop"] = {**_facts(cuda, snapshot), **facts}
    rank = _rank()
    name = f"vramtop-{kind}-{'' if rank is None else f'rank{rank}-'}{os.getpid()}.pickle"
    failure: Exception | None = None
    for each in (settings["folder"] or _working_folder(), os.environ.get("TMPDIR") or "/tmp"):  # noqa: S108 - another name is given
        try:
            return _write(os.path.join(each, name), snapshot)
        except OSError as error:
            failure = failure or error
    raise CannotDumpError(f"it cannot be written: {failure}")


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


def _write(path: str, snapshot: Any) -> tuple[str, int]:
    import pickle  # torch has imported it

    part = f"{path}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.fdopen(os.open(part, flags, 0o600), "wb")
    try:
        with file:
            bounded = _BoundedFile(file)
            pickle.Pickler(bounded, 4).dump(snapshot)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
    return path, bounded.size


def _facts(cuda: Any, snapshot: Any) -> dict[str, Any]:
    totals: dict[str, int] = {}
    for segment in snapshot.get("segments", ()):
        index = segment.get("device")
        if isinstance(index, int) and str(index) not in totals:
            totals[str(index)] = int(cuda.get_device_properties(index).total_memory)
    return {"pid": os.getpid(), "rank": _rank(), "time": time.time(), "total_bytes": totals}


def _rank() -> int | None:
    values = (os.environ.get(name, "") for name in _RANK_VARIABLES)
    return next((int(value) for value in values if value.isdigit()), None)
