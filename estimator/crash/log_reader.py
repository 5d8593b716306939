"""Reads a job log of any length for failures of memory: one pass, bounded memory, one failure once per rank."""

import re
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import BinaryIO

from .log_lines import OVERLAP, LogLine, log_lines
from .messages import is_complete, parse_message
from .other_failures import find_other_failure
from .records import CrashLog, Failure, FailureKind, OutOfMemory, StackFrame
from .step_place import own_frame, phase_of

MAX_FAILURES = 256
_MAX_STREAMS = 4096
_MAX_FRAMES = 200
_MAX_MESSAGE_LINES = 12
"""Lines over which a message may be wrapped."""
_MAX_MESSAGE = 8000
_MAX_TEXT = 300
_FRAME = re.compile(r'\bFile "([^"]{1,500})", line (\d{1,9}), in (.{1,200})$')
"""Collectors of logs put a time before it, exception groups a line."""
_MESSAGE = re.compile(r"out of memory\b", re.IGNORECASE)
_WITH_FIGURES = re.compile(
    r"[A-Za-z]{2,12} out of memory\. *(?:Tried to allocate|$)|MPS backend out of memory|allowed memory\. \(out"
)
_RANK = re.compile(r"\brank {1,9}: (\d{1,6}) \(local_rank: \d+\)")
_INLINE_RANK = re.compile(r"\[rank ?(\d{1,6})\]:? *[\w.]*$")
"""Right before the message, where something else begins the line."""
_OF_RANK = re.compile(r"\b(?:exitcode|traceback) {1,9}: ")
"""Lines of torchrun's summary that follow that of the rank."""
_PROGRESS = re.compile(
    r"^(?P<what>[^%|]{0,60}?)\d{1,3}%\|[^|]{0,400}\|\s*(?P<done>\d{1,9})/(?P<all>\d{1,9}) \[\d+:\d\d"
)
_TRAINING_BAR = re.compile(r"\s*(?:(?i:train|step|epoch|iter)[^|]*)?")
"""Text before the progress bar of a training loop; the Trainer writes none, loading and tokenizing do."""
_LAUNCH = re.compile(
    r"(?:^|\s)(?:\++ |\$ |cmd ?[=:] |command: |Running: |Executing: )"
    r"((?:[\w./-]*/)?(?:torchrun|accelerate|deepspeed|python[\d.]*|srun|mpirun|litgpt|axolotl|llamafactory-cli|tune|uv)\s\S.*)$",
    re.IGNORECASE,
)
_MAX_LAUNCH = 8000


@dataclass(slots=True)
class _Stream:
    """State of reading one stream of the log, such as the lines of one rank."""

    frames: deque[StackFrame] = field(default_factory=lambda: deque(maxlen=_MAX_FRAMES))
    """Frames of the latest traceback, outermost first."""
    message: list[str] = field(default_factory=list)
    """Lines of a message that may go on; empty: none."""
    begun: LogLine | None = None
    """The line in which it began."""
    steps: int | None = None


class _Reader:
    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.unkept = 0
        self.launch_line: str | None = None
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._seen: set[object] = set()
        self._reported_rank: int | None = None
        self._steps: int | None = None

    def take(self, line: LogLine) -> None:
        stream = self._stream(line.stream)
        text = line.text
        if line.goes_on and stream.begun is not None and _begins_late(stream.begun.text):
            stream.message, stream.begun = [], None  # this piece has it whole
        if stream.message:
            self._continue(stream, text)
        if "emory" in text and _MESSAGE.search(text) and _WITH_FIGURES.search(text):
            self._close(stream)
            stream.message, stream.begun = [text], line
            if is_complete(text):
                self._close(stream)
            return
        if 'File "' in text and (frame := _FRAME.search(text)):
            stream.frames.append(StackFrame(file=frame[1], line=int(frame[2]), function=frame[3].strip()))
            return
        if "Traceback (most recent call last)" in text:
            stream.frames.clear()
            return
        self._other(stream, line)

    def finish(self) -> None:
        for stream in self._streams.values():
            self._close(stream)

    def _stream(self, name: str) -> _Stream:
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) >= _MAX_STREAMS:
                self._close(self._streams.popitem(last=False)[1])
            stream = self._streams[name] = _Stream()
        else:
            self._streams.move_to_end(name)
        return stream

    def _continue(self, stream: _Stream, text: str) -> None:
        stream.message.append(text)
        size = sum(map(len, stream.message))
        if is_complete(" ".join(stream.message)) or len(stream.message) > _MAX_MESSAGE_LINES or size > _MAX_MESSAGE:
            self._close(stream)

    def _close(self, stream: _Stream) -> None:
        """Keep the message that was being read, if it has figures."""
        begun, lines = stream.begun, stream.message
        stream.message, stream.begun = [], None
        if begun is None:
            return
        memory = parse_message(" ".join(lines))
        at = _MESSAGE.search(begun.text)
        inline = _INLINE_RANK.search(begun.text[: at.start()].rpartition(": ")[0]) if at else None
        rank = int(inline[1]) if inline and begun.rank is None else None
        if memory is not None:
            self._keep(stream, begun, "gpu", memory=memory, rank=rank)
        else:
            self._keep(stream, begun, "gpu library")

    def _other(self, stream: _Stream, line: LogLine) -> None:
        text = line.text
        # torchrun's summary names the rank before the exit code
        if "rank" in text and (rank := _RANK.search(text)) is not None:
            self._reported_rank = int(rank[1])
        if "/" in text and (progress := _PROGRESS.search(text)):
            self._count_steps(stream, progress)
        if len(text) <= _MAX_LAUNCH and (launch := _LAUNCH.search(text)):
            self.launch_line = launch[1].strip()
        found = find_other_failure(text)
        if found is not None:
            by_summary = self._reported_rank if line.rank is None and _OF_RANK.search(text) else None
            self._keep(
                stream, line, found.kind, sure=found.sure, tried_host_bytes=found.tried_host_bytes, rank=by_summary
            )

    def _count_steps(self, stream: _Stream, progress: re.Match[str]) -> None:
        """Keep the steps of a bar that has not reached its end: that of another loop may have."""
        if _TRAINING_BAR.fullmatch(progress["what"]) and int(progress["done"]) < int(progress["all"]):
            stream.steps = self._steps = int(progress["done"])

    def _keep(
        self,
        stream: _Stream,
        line: LogLine,
        kind: FailureKind,
        *,
        sure: bool = True,
        memory: OutOfMemory | None = None,
        tried_host_bytes: int | None = None,
        rank: int | None = None,
    ) -> None:
        rank = line.rank if rank is None else rank
        text = " ".join(line.text.split())[:_MAX_TEXT]
        # printed again by loggers and launchers
        key = (rank, memory) if memory else (rank, kind, sure, tried_host_bytes)
        again = key in self._seen or (rank is None and memory is not None and memory in self._seen)
        if not again:
            self._seen.update((key, memory))
        if again or len(self.failures) >= MAX_FAILURES:
            self.unkept += not again
            return
        frames = tuple(stream.frames) if kind in ("gpu", "gpu library", "host") else ()
        self.failures.append(
            Failure(
                kind=kind,
                line=line.number,
                text=text,
                sure=sure,
                rank=rank,
                memory=memory,
                phase=phase_of(frames) if frames else None,
                place=own_frame(frames[::-1]),
                tried_host_bytes=tried_host_bytes,
                steps=self._steps if stream.steps is None else stream.steps,
            )
        )


def _begins_late(text: str) -> bool:
    """Return True if the message of a line's piece stands in what the next piece repeats."""
    match = _MESSAGE.search(text, max(0, len(text) - OVERLAP))
    return match is not None and len(text) > OVERLAP


def read_log(file: BinaryIO) -> CrashLog:
    """Return the failures of memory in a log.

    Args:
        file: read once from where it stands, in pieces; a pipe will do.
    """
    reader, last = _Reader(), 0
    for line in log_lines(file):
        last = line.number
        reader.take(line)
    reader.finish()
    return CrashLog(
        failures=tuple(reader.failures),
        lines=last,
        unkept=reader.unkept,
        launch_line=reader.launch_line,
    )
