"""Lines of a job log, of any length and encoding, in bounded memory: with their rank, without what terminals obey."""

import codecs
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec

from ..common.limits import LimitError, decode_json

_CHUNK_BYTES = 2**18
MAX_LINE = 2**16
"""Longer lines are read in pieces."""
OVERLAP = 2**12
"""Bytes of a piece that the next one repeats: no message is longer."""
_DOCKER = b'{"log":"'
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_PREFIXES = re.compile(
    r"\s*(?:"
    r"\[rank ?(?P<torch>\d{1,6})\]:?"  # torch 2.2 and later, on the lines of a traceback
    r"|\[[a-zA-Z_]{1,30}(?P<torchrun>\d{1,6})\]:"  # torchrun --tee, --local-ranks-filter
    r"|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>:"  # mpirun --tag-output
    r"|(?P<srun>\d{1,6}): "  # srun --label
    r"|\(\w{1,30}(?: rank=|_TP)(?P<vllm>\d{1,6})\w{0,20} pid=\d{1,10}\)"  # a worker of vLLM
    r"|\((?:[\w.]{1,80} )?pid=(?P<pid>\d{1,10})(?:, ip=[\w.:]{1,60})?\)"  # Ray
    r")"
)


class LogLine(msgspec.Struct, frozen=True):
    """A line, or a piece of a very long one."""

    number: int
    text: str
    """Without the prefix of its rank."""
    rank: int | None
    stream: str
    """Prefix of the line, which names its stream: lines of one stream follow each other."""
    goes_on: bool = False
    """It is a further piece of a long line; its first ``OVERLAP`` bytes are the last ones of the piece before."""
    is_cut: bool = False
    """A further piece follows it."""


class LogBlock(msgspec.Struct, frozen=True):
    """Lines of a log that follow each other."""

    number: int
    """Number of the first line, from 1."""
    lines: list[bytes]
    goes_on: bool
    """Its first line is a further piece of a long one."""


def read_blocks(file: BinaryIO, progress: Callable[[str], None] | None) -> Iterator[LogBlock]:
    """Yield the lines of a log that may be endless in length and width; a long line in several blocks."""
    number, rest, goes_on = 1, b"", False
    for text in _utf_8(file, progress):
        rest += text
        held = b"\r" if rest.endswith(b"\r") else b""  # the line feed of a pair may follow
        # progress bars end their lines with a carriage return
        *lines, rest = rest.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest += held
        if any(line.startswith(_DOCKER) for line in lines):
            lines = [_of_docker(line) if line.startswith(_DOCKER) else line for line in lines]
        if lines:
            yield LogBlock(number, lines, goes_on)
            number, goes_on = number + len(lines), False
        while len(rest) > MAX_LINE:
            yield LogBlock(number, [rest[:MAX_LINE]], goes_on)
            rest, goes_on = rest[MAX_LINE - OVERLAP :], True
    if rest.rstrip(b"\r"):
        yield LogBlock(number, [_of_docker(rest.rstrip(b"\r"))], goes_on)


def _of_docker(line: bytes) -> bytes:
    """Return the text of a line that Docker's json-file driver wrote; any other line as it is."""
    if not line.startswith(_DOCKER):
        return line
    try:
        text = decode_json(line, dict[str, Any]).get("log")
    except LimitError:
        return line
    last = text.rstrip("\r\n").replace("\n", "\r").rpartition("\r")[2] if isinstance(text, str) else None
    return line if last is None else last.encode("utf-8", "replace")


def log_line(number: int, raw: bytes, *, goes_on: bool = False, is_cut: bool = False) -> LogLine:
    """Return a line of a log without what terminals obey, and without the prefix of its rank."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    rank, stream, at = None, "", 0
    while match := _PREFIXES.match(text, at):
        at = match.end()
        found = next((match[name] for name in ("torch", "torchrun", "mpi", "srun", "vllm") if match[name]), None)
        rank = int(found) if found else rank
        stream = match[0].strip() if not stream or match["torch"] is None else stream
    return LogLine(number, text[at:] if at else text, rank, stream, goes_on, is_cut)


def line_pieces(line: bytes) -> Iterator[bytes]:
    """Yield a line in pieces of at most ``MAX_LINE`` bytes, each with the last ``OVERLAP`` bytes of the one before."""
    while len(line) > MAX_LINE:
        yield line[:MAX_LINE]
        line = line[MAX_LINE - OVERLAP :]
    yield line


def _utf_8(file: BinaryIO, progress: Callable[[str], None] | None) -> Iterator[bytes]:
    """Yield the text of a file in UTF-8; Windows redirects it in UTF-16.

    NULs are left out: ``logrotate`` with ``copytruncate`` leaves a hole of them before what is written next.
    """
    chunk = file.read(_CHUNK_BYTES)
    encoding = _encoding(chunk)
    decoder, done = codecs.getincrementaldecoder(encoding)(errors="replace"), 0
    chunk = chunk.removeprefix(codecs.BOM_UTF8)
    while chunk:
        text = chunk if encoding == "utf-8" else decoder.decode(chunk).encode("utf-8", "replace")
        yield text.replace(b"\0", b"")
        done += len(chunk)
        if progress is not None:
            progress(f"reading the log: {done / 1e6:.0f} MB")
        chunk = file.read(_CHUNK_BYTES)


def _encoding(start: bytes) -> str:
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = start[:4096]
    even, odd = sample[0::2], sample[1::2]
    for name, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        # a hole of NULs has them at both
        if len(sample) >= 16 and zeros.count(0) > 0.7 * len(zeros) and others.count(0) < 0.3 * len(others):
            return name
    return "utf-8"
