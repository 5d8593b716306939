"""Recordings: snapshots as JSON lines without secrets, in a gzip file or as plain text, which its content tells.

The first line is ``{"vramtop_recording": 1, "source": {...}, "time": ...}``; each further line is a ``Snapshot``. Every
line is flushed, so that a recorder that is killed loses only its last snapshot.
"""

import contextlib
import operator
import os
import zlib
from collections.abc import Iterable, Iterator
from io import FileIO
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import msgspec

from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.common.paths import is_file
from vramtop.estimator.common.private_files import follow_links, open_private
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import mask_line, mask_strings
from vramtop.estimator.common.untrusted_files import check_nesting, open_file
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import names_user_code

from ..snapshot.figures import Fault
from ..snapshot.snapshot import GpuProcess, GpuReading, Snapshot, resolve_annotations

VERSION = 1
TRUNCATED_CODE = "RECORDING_CUT"
"""Fault code in the last snapshot of a truncated or damaged recording."""

_GZIP = 31
"""zlib's number for the format."""
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 2**16
_MAX_UNPACKED_BYTES = 2**20
_MAX_LINE_BYTES = 2**23
"""Longer lines are no snapshots (500 processes take a few hundred thousand bytes)."""


class _Header(msgspec.Struct):
    vramtop_recording: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class RecordingWriter:
    """Writes snapshots to a new file, which is created at once, and removed again if no snapshot could be written.

    Args:
        path: the file; compressed if its name ends in ``.gz``, else plain text.
        overwrite: replace an existing file, once there is a snapshot to replace it with.

    Raises:
        InputError: the file exists, or cannot be created.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._written = 0
        self._failed = False
        try:
            self._target = follow_links(path) if overwrite else path  # a link stays
            self._unfinished = self._target
            """Where the file is until the first snapshot is written; then it replaces the old one."""
            if overwrite and is_file(path) and os.access(self._target.parent, os.W_OK):
                self._unfinished = self._target.with_name(f"{self._target.name}.{os.getpid()}.part")
            file = open_private(self._unfinished, new=not overwrite or self._unfinished != self._target)
        except FileExistsError:
            raise InputError(f"{path}: exists already; remove it, or record to another file") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None
        self._stream = _Stream(file, compressed=path.suffix.lower() == ".gz")

    def write(self, snapshot: Snapshot) -> None:
        """Add one snapshot, without the secrets of its command lines: recordings are sent on.

        Raises:
            VramtopError: the file can no longer be written (disk full), or the snapshot could not be read again.
        """
        lines: list[Any] = [mask_snapshot(snapshot)]
        if not self._written:
            lines.insert(0, {"vramtop_recording": VERSION, "source": snapshot.source, "time": snapshot.time})
        encoded = [self._encoder.encode(line) for line in lines]
        if len(encoded[-1]) > _MAX_LINE_BYTES:
            self._failed = True
            reason = f"a snapshot has more than {_MAX_LINE_BYTES >> 20} MiB, too many processes"
            raise VramtopError(f"{self._path}: the recording ends here: {reason}; {self._kept()}")
        try:
            self._stream.write(b"".join(line + b"\n" for line in encoded))
            if not self._written and self._unfinished != self._target:
                self._unfinished.replace(self._target)
        except OSError as error:
            self._failed = True
            raise VramtopError(f"{self._path}: the recording ends here: {error.strerror}; {self._kept()}") from None
        self._written += 1

    def close(self) -> None:
        """Finish the file.

        Raises:
            VramtopError: the end of the file cannot be written.
        """
        try:
            self._stream.close()
        except OSError as error:
            if self._failed:  # already reported by write()
                return
            sentence = f"{self._path}: the recording's end cannot be written: {error.strerror}; {self._kept()}"
            raise VramtopError(sentence) from None
        finally:
            if not self._written and is_file(self._unfinished):  # a device is none
                self._unfinished.unlink(missing_ok=True)

    def _kept(self) -> str:
        if not self._written:
            return "nothing was written"
        one = self._written == 1
        return f"the {'snapshot' if one else f'{self._written} snapshots'} before can be played"

    def __enter__(self) -> "RecordingWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Stream:
    """Writes whole pieces to a file, compressed if asked for: each can be read at once, and no part of one stays."""

    def __init__(self, file: FileIO, *, compressed: bool) -> None:
        self._file = file
        self._size = 0
        self._gzip = zlib.compressobj(6, wbits=_GZIP) if compressed else None

    def write(self, data: bytes) -> None:
        """Write all of it, or nothing.

        Raises:
            OSError: it cannot be written.
        """
        if self._gzip is not None:
            data = self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        self._write(data)

    def close(self) -> None:
        """Write the end, and close the file.

        Raises:
            OSError: the end cannot be written.
        """
        try:
            if self._gzip is not None:
                self._write(self._gzip.flush())
        finally:
            self._file.close()

    def _write(self, data: bytes) -> None:
        rest = data
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError:
            with contextlib.suppress(OSError):  # a device
                self._file.truncate(self._size)
            raise
        self._size += len(data)


def read_recording(path: Path) -> Iterator[Snapshot]:
    """Yield the snapshots of a recording, in order.

    A truncated or damaged recording is read as far as possible; its last whole snapshot then carries a machine-wide
    fault with the code ``TRUNCATED_CODE``.

    Raises:
        InputError: the file cannot be read, is no recording, has a newer version, or contains no whole snapshot.
    """
    lines = _lines(path)
    _check_header(path, next(lines, None))
    resolve_annotations()
    last: Snapshot | None = None
    truncated = False
    for line in lines:
        if line is None:
            truncated = True
            break
        try:
            snapshot = _sanitize_snapshot(decode_json(line, Snapshot))
        except (ValueError, msgspec.ValidationError):
            truncated = True
            break
        if last is not None:
            yield last
        last = snapshot
    if last is None:
        raise InputError(f"{path}: the recording holds no whole snapshot")
    if truncated:
        message = f"the recording {path.name} is cut off or damaged here and ends early"
        last = replace(last, faults=(*last.faults, Fault(field=None, code=TRUNCATED_CODE, message=message)))
    yield last


def _check_header(path: Path, line: bytes | None) -> None:
    if line is None and not path.stat().st_size:
        raise InputError(f"{path}: the file is empty; a recording is made with 'vramtop record FILE'")
    no_recording = f"{path}: not a vramtop recording; one is made with 'vramtop record FILE'"
    try:
        version = decode_json(line or b"", _Header).vramtop_recording
    except LimitError:
        raise InputError(no_recording) from None
    if version > VERSION:
        raise InputError(
            f"{path}: written by a newer vramtop (recording version {version}, this one reads up to {VERSION}); "
            "update vramtop"
        )


def _lines(path: Path) -> Iterator[bytes | None]:
    """Yield the whole lines of a file, and None at the end if it is truncated or damaged."""
    rest = b""
    try:
        with open_file(path) as file:
            first = file.read(_CHUNK_BYTES)
            pieces = chain([first], iter(lambda: file.read(_CHUNK_BYTES), b""))
            for piece in _decompress(pieces) if first.startswith(_GZIP_MAGIC) else pieces:
                if piece is None:
                    yield None
                    return
                *whole, rest = (rest + piece).split(b"\n")
                yield from whole
                if len(rest) > _MAX_LINE_BYTES:
                    yield None
                    return
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if rest:
        yield None


def _decompress(pieces: Iterable[bytes]) -> Iterator[bytes | None]:
    """Yield the decompressed content of a gzip file, and None at the end if it is truncated or damaged.

    The gzip module is not used because it may withhold readable lines of a truncated file.
    """
    unpack = zlib.decompressobj(wbits=_GZIP)
    for piece in pieces:
        packed = piece
        while packed and not unpack.eof:
            before = unpack.copy()
            try:
                yield unpack.decompress(packed, _MAX_UNPACKED_BYTES)
            except zlib.error:
                yield _decompress_to_damage(before, packed)
                yield None
                return
            packed = unpack.unconsumed_tail
        if unpack.eof:
            return
    yield None


def _decompress_to_damage(unpack: Any, packed: bytes) -> bytes:
    """Decompress byte by byte up to the damage; zlib returns nothing if it is given all bytes at once."""
    found = bytearray()
    with contextlib.suppress(zlib.error):
        for at in range(len(packed)):
            found += unpack.decompress(packed[at : at + 1])
    return bytes(found)


_MAX_PROCESSES = 20_000


def _sanitize_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without secrets and without jobs that run code, as estimating them would import it.

    Raises:
        ValueError: a job is nested too deeply.
        msgspec.ValidationError: it has more processes than a machine runs, or figures that no driver reports.
    """
    if any(figure >= 2**64 for figure in _figures(snapshot)):
        raise msgspec.ValidationError("more than 64 bits")
    if any(0 in (gpu.total_bytes, *(device.total_bytes for device in gpu.mig or ())) for gpu in snapshot.gpus):
        raise msgspec.ValidationError("a GPU without memory")
    if sum(len(gpu.processes or ()) for gpu in snapshot.gpus) > _MAX_PROCESSES:
        raise msgspec.ValidationError(f"more than {_MAX_PROCESSES:,} processes")
    for job in (*snapshot.pending, *(each.job for each in snapshot.watched)):
        check_nesting(job.model.config)
    snapshot = mask_snapshot(snapshot)
    if not snapshot.watched and not snapshot.pending:
        return snapshot
    watched = tuple(replace(each, job=job) for each in snapshot.watched for job in _without_code((each.job,)))
    return replace(snapshot, watched=watched, pending=tuple(_without_code(snapshot.pending)))


def mask_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without secrets in command lines and jobs, whatever the dashboard shows."""
    return replace(
        snapshot,
        gpus=tuple(_mask_gpu(gpu) for gpu in snapshot.gpus),
        watched=tuple(replace(each, job=_mask_job(each.job)) for each in snapshot.watched),
        pending=tuple(map(_mask_job, snapshot.pending)),
    )


def _mask_gpu(gpu: GpuReading) -> GpuReading:
    processes = tuple(map(_mask_process, gpu.processes or ()))
    unchanged = all(map(operator.is_, processes, gpu.processes or ()))
    return gpu if unchanged else replace(gpu, processes=processes)


def _mask_process(process: GpuProcess) -> GpuProcess:
    texts = (process.command or "", process.name or "", process.runs_in or "")
    command, name, runs_in = masked = tuple(map(mask_line, texts))
    if masked == texts:
        return process
    return replace(process, command=command or None, name=name or None, runs_in=runs_in or None)


def _mask_job(job: Job) -> Job:
    tables = msgspec.to_builtins(job)
    masked = mask_strings(tables)
    return job if masked == tables else msgspec.convert(masked, Job)


def _figures(snapshot: Snapshot) -> Iterator[int]:
    for gpu in snapshot.gpus:
        sizes = [gpu.total_bytes, gpu.used_bytes, gpu.free_bytes, gpu.reserved_bytes]
        sizes += [gpu.utilisation_percent, gpu.memory_utilisation_percent]
        if gpu.details:
            sizes += [gpu.details.clock_reasons, gpu.details.bar1_total_bytes, gpu.details.bar1_used_bytes]
        for device in gpu.mig or ():
            sizes += [device.total_bytes, device.used_bytes, device.free_bytes, device.reserved_bytes]
        for process in gpu.processes or ():
            sizes += [process.used_bytes, process.peak_bytes]
        yield from (size for size in sizes if size is not None)


def _without_code(jobs: Iterable[Job]) -> Iterable[Job]:
    for job in jobs:
        if job.program is not None or (names_user_code(job.model.id) and job.model.config is None):
            continue
        model = msgspec.structs.replace(job.model, trust_remote_code=False, code_folder=None)
        yield msgspec.structs.replace(
            job, model=model, parallel=msgspec.structs.replace(job.parallel, tensor_plan=None)
        )
