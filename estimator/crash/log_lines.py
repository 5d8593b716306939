"""Lines of a job log, of any length and encoding, in bounded memory: with their rank, without what terminals obey."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_CHUNK_BYTES = 2**18
_MAX_LINE = 2**16
"""Longer lines are read in pieces."""
OVERLAP = 2**12
"""Characters of a piece that the next one repeats: no message is longer."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_BREAK = re.compile(r"\r\n|\n|\r")
"""Progress bars end their lines with a carriage return."""
_PREFIXES = re.compile(
    r"\s*(?:"
    r"\[rank ?(?P<torch>\d{1,6})\]:?"  # torch 2.2 and later, on the lines of a traceback
    r"|\[[a-zA-Z_]{1,30}(?P<torchrun>\d{1,6})\]:"  # torchrun --tee, --local-ranks-filter
    r"|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>:"  # mpirun --tag-output
    r"|(?P<srun>\d{1,6}): "  # srun --label
    r"|\((?:[\w.]{1,80} )?pid=(?P<pid>\d{1,10})(?:, ip=[\w.:]{1,60})?\)"  # Ray
    r")"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, or a piece of a very long one."""

    number: int
    text: str
    """Without the prefix of its rank."""
    rank: int | None
    stream: str
    """Prefix of the line, which names its stream: lines of one stream follow each other."""
    goes_on: bool = False
    """It is a further piece of a long line; its first ``OVERLAP`` characters are the last ones of the piece before."""


def log_lines(file: BinaryIO) -> Iterator[LogLine]:
    """Yield the lines of a log that may be endless in length and width."""
    before = 0
    for number, raw in _numbered(file):
        goes_on, before = number == before, number
        text = _ESCAPES.sub("", raw) if "\x1b" in raw else raw
        rank, stream, at = None, "", 0
        while match := _PREFIXES.match(text, at):
            at = match.end()
            found = next((match[name] for name in ("torch", "torchrun", "mpi", "srun") if match[name]), None)
            rank = int(found) if found else rank
            stream = match[0].strip() if not stream or match["torch"] is None else stream
        yield LogLine(number, text[at:] if at else text, rank, stream, goes_on)


def _numbered(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield each line with its number; a long one in several pieces with the same number."""
    number, rest = 1, ""
    for text in _decoded(file):
        rest += text
        held = rest.endswith("\r")  # the line feed of a pair may follow
        *lines, rest = _BREAK.split(rest[:-1] if held else rest)
        for line in lines:
            yield from ((number, piece) for piece in _pieces(line))
            number += 1
        if held:
            rest += "\r"
        while len(rest) > _MAX_LINE:
            yield number, rest[:_MAX_LINE]
            rest = rest[_MAX_LINE - OVERLAP :]
    if rest.rstrip("\r"):
        yield from ((number, piece) for piece in _pieces(rest.rstrip("\r")))


def _pieces(line: str) -> Iterator[str]:
    while len(line) > _MAX_LINE:
        yield line[:_MAX_LINE]
        line = line[_MAX_LINE - OVERLAP :]
    yield line


def _decoded(file: BinaryIO) -> Iterator[str]:
    """Yield the text of a file, in UTF-8 or, as Windows redirects it, in UTF-16; wrong bytes become a mark."""
    chunk = file.read(_CHUNK_BYTES)
    decoder = codecs.getincrementaldecoder(_encoding(chunk))(errors="replace")
    while chunk:
        yield decoder.decode(chunk).replace("\0", "")
        chunk = file.read(_CHUNK_BYTES)
    yield decoder.decode(b"", final=True)


def _encoding(start: bytes) -> str:
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = start[:4096]
    for name, zeros in (("utf-16-le", sample[1::2]), ("utf-16-be", sample[0::2])):
        if len(sample) >= 16 and zeros.count(0) > 0.7 * len(zeros):
            return name
    return "utf-8-sig"
