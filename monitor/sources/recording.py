"""Recordings: snapshots as JSON lines under gzip, the first line saying what the file is.

``{"vramtop_recording": 1, "source": {...}, "time": ...}``, then one ``Snapshot`` a line. Every line is flushed, so that
a recorder that was killed leaves all but its last moment.
"""

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import replace
from gzip import GzipFile
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO

import msgspec

from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.estimator.common.untrusted_files import open_file

from ..snapshot import snapshot as snapshots
from ..snapshot.field_types import ANNOTATION_NAMES
from ..snapshot.snapshot import Fault, Snapshot
from .sanitize import sanitize_snapshot

VERSION = 1
TRUNCATED_CODE = "RECORDING_CUT"
"""Code of the fault that the last snapshot of a cut or damaged recording carries."""

_CHUNK = 2**16
_UNPACKED = 2**20
_LONGEST_LINE = 2**23
"""Bytes of one snapshot; more is no snapshot (500 processes take a few hundred thousand)."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises where a line is no snapshot."""


class _Header(msgspec.Struct):
    vramtop_recording: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class RecordingWriter:
    """Writes snapshots to a new file, which exists from the start.

    Args:
        path: the file.
        overwrite: replace what is there.

    Raises:
        InputError: the file exists, or cannot be made.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._written = 0
        self._failed = False
        try:
            self._file = path.open("wb" if overwrite else "xb")
        except FileExistsError:
            raise InputError(f"{path}: exists already; remove it, or record to another file") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None
        self._gzip = GzipFile(filename="", mode="wb", fileobj=self._file, compresslevel=6)

    def write(self, snapshot: Snapshot) -> None:
        """Add one snapshot.

        Raises:
            VramtopError: the file cannot be written any more (a full disk).
        """
        lines: list[Any] = [snapshot]
        if not self._written:
            lines.insert(0, {"vramtop_recording": VERSION, "source": snapshot.source, "time": snapshot.time})
        try:
            for line in lines:
                self._gzip.write(self._encoder.encode(line) + b"\n")
            self._gzip.flush()  # Z_SYNC_FLUSH: what was written so far can be read
        except OSError as error:
            self._failed = True
            kept = f"the {self._written} snapshots before can be played" if self._written else "nothing was written"
            raise VramtopError(f"{self._path}: the recording ends here: {error.strerror}; {kept}") from None
        self._written += 1

    def close(self) -> None:
        """Finish the file.

        Raises:
            VramtopError: its end cannot be written.
        """
        try:
            try:
                self._gzip.close()
            finally:
                self._file.close()
        except OSError as error:
            if self._failed:  # and has been said
                return
            raise VramtopError(f"{self._path}: the recording's end cannot be written: {error.strerror}") from None

    def __enter__(self) -> "RecordingWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_recording(path: Path) -> Iterator[Snapshot]:
    """The snapshots of a recording, in order.

    A recording that was cut off or damaged is read up to there; the last whole snapshot then carries a machine-wide
    fault with the code ``TRUNCATED_CODE`` that says so.

    Raises:
        InputError: the file cannot be read, is no recording, is of a newer version, or holds no whole snapshot.
    """
    lines = _lines(path)
    _check_header(path, next(lines, None))
    vars(snapshots).update(ANNOTATION_NAMES)
    decoder = msgspec.json.Decoder(Snapshot)
    last: Snapshot | None = None
    cut = False
    for line in lines:
        if line is None:
            cut = True
            break
        try:
            snapshot = sanitize_snapshot(decoder.decode(line))
        except _UNREADABLE:
            cut = True
            break
        if last is not None:
            yield last
        last = snapshot
    if last is None:
        raise InputError(f"{path}: the recording holds no whole snapshot")
    yield _say_cut(path, last) if cut else last


def _say_cut(path: Path, last: Snapshot) -> Snapshot:
    message = f"the recording {path.name} is cut off or damaged here, and ends before its recorder meant it to"
    return replace(last, faults=(*last.faults, Fault(field=None, code=TRUNCATED_CODE, message=message)))


def _check_header(path: Path, line: bytes | None) -> None:
    if line is None and not path.stat().st_size:
        raise InputError(f"{path}: the file is empty; a recording is made with 'vramtop record FILE'")
    foreign = f"{path}: not a vramtop recording; one is made with 'vramtop record FILE'"
    try:
        version = msgspec.json.decode(line or b"", type=_Header).vramtop_recording
    except _UNREADABLE:
        raise InputError(foreign) from None
    if version > VERSION:
        raise InputError(
            f"{path}: written by a newer vramtop (recording version {version}, this one reads up to {VERSION}); "
            "update vramtop"
        )


def _lines(path: Path) -> Iterator[bytes | None]:
    """The whole lines of a gzip file; a last None when it does not end where its writer ended it."""
    rest = b""
    try:
        with open_file(path) as file:
            for piece in _pieces(file):
                if piece is None:
                    yield None
                    return
                *whole, rest = (rest + piece).split(b"\n")
                yield from whole
                if len(rest) > _LONGEST_LINE:
                    yield None
                    return
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if rest:
        yield None


def _pieces(file: BinaryIO) -> Iterator[bytes | None]:
    """What is packed in a gzip file; a last None when it is cut or damaged.

    The gzip module is not used for this: where a file is cut, it may keep back lines that could still be read.
    """
    unpack = zlib.decompressobj(wbits=31)  # gzip
    while not unpack.eof and (packed := file.read(_CHUNK)):
        while packed and not unpack.eof:
            before = unpack.copy()
            try:
                yield unpack.decompress(packed, _UNPACKED)
            except zlib.error:
                yield _until_damage(before, packed)
                yield None
                return
            packed = unpack.unconsumed_tail
    if not unpack.eof:
        yield None


def _until_damage(unpack: Any, packed: bytes) -> bytes:
    """What comes before the damage, which zlib keeps back when it is given all at once."""
    found = bytearray()
    with contextlib.suppress(zlib.error):
        for at in range(len(packed)):
            found += unpack.decompress(packed[at : at + 1])
    return bytes(found)
