"""Reads a job log of any length for failures of memory: one pass, bounded memory, one failure once per rank."""

import re
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from ..budget import PhaseName
from ..common.records import replace
from .log_lines import MAX_LINE, OVERLAP, LogBlock, LogLine, line_pieces, log_line, read_blocks
from .records import CrashLog, Failure, StackFrame, own_frame, phase_of
from .torch_messages import is_complete, parse_message
from .wordings import (
    AFTER_FAULT,
    BROKEN,
    CAUGHT,
    ENDED,
    PINNED,
    Wording,
    find_wording,
    fold,
    further,
    lines_that_may_go_on,
    lines_that_may_say,
    lines_that_may_say_killed,
    lines_with,
    may_say_killed,
)


def read_log(file: BinaryIO, *, progress: Callable[[str], None] | None = None) -> CrashLog:
    """Return the failures of memory in a log.

    Args:
        file: read once from where it stands, in pieces; a pipe will do.
        progress: called with what is being done.
    """
    reader, last = _Reader(), 0
    for block in read_blocks(file, progress):
        last = block.number + len(block.lines) - 1
        reader.take_block(block)
    reader.finish()
    failures = tuple(reader.failures)
    return CrashLog(failures=failures, lines=last, unkept=reader.unkept, launch_line=reader.launch_line)


MAX_FAILURES = 256
_MAX_STREAMS = 4096
_MAX_FRAMES = 200
_MAX_MESSAGE_LINES = 12
"""Lines over which a message may be wrapped."""
_MAX_MESSAGE = 8000
_MOST_MIXED = 2000
"""Lines of a log in which all of a message stands, when many ranks print theirs at once."""
_MOST_FIGURES = 5000
"""Lines after a failure in which its further figures may stand: TensorFlow lists its chunks before it sums them up."""
_MOST_TALK = 20
"""An unknown wording within this many lines after a failure is taken to be about that failure."""
_MAX_UNKNOWN = 8
"""Lines of unknown wordings that are kept."""
_MAX_TEXT = 300
_FRAME = re.compile(r'\bFile "([^"]{1,500})", line (\d{1,9}), in (.{1,200})$')
"""Collectors of logs put a time before it, exception groups a line."""
_OTHER_FRAME = re.compile(
    r"[│|] +(?P<rich>\S{1,500}\.py):(?P<at>\d{1,9}) in (?P<name>\S{1,200})"
    r"|^File (?P<ipython>\S{1,500}\.py):(?P<line>\d{1,9}), in (?P<function>[^\s(]{1,200})"
    r"|^Cell (?P<cell>In ?\[\d{1,9}\]), line (?P<of>\d{1,9})"
)
"""Frames of rich, and of IPython."""
_MESSAGE = re.compile(r"out of memory\b", re.IGNORECASE)
_WITH_FIGURES = re.compile(r"[A-Za-z]{2,12} out of memory\. *(?:Tried to allocate|$)|allowed memory\. \(out")
_RANK = re.compile(r"\brank {1,9}: (\d{1,6}) \(local_rank: \d+\)")
_INLINE_RANK = re.compile(r"\[rank ?(\d{1,6})\]:? *[\w.]*$")
"""Right before the message, where something else begins the line."""
_OF_RANK = re.compile(r"\b(?:exitcode|traceback) {1,9}: ")
"""Lines of torchrun's summary that follow that of the rank."""
_PROGRESS = re.compile(
    r"^(?P<what>[^%|]{0,60}?)\d{1,3}%\|[^|]{0,400}\|\s*(?P<done>\d{1,9})/(?P<all>\d{1,9}) \[\d+:\d\d"
)
_STEP = re.compile(
    r"(?:^|[\s\[(])(?:epoch|step|iter(?:ation)?)s?[ :=#\[]{1,3}(?P<done>\d{1,9})\b.{0,200}\b(?:train_)?loss\b",
    re.IGNORECASE,
)
"""A line that a program's own loop prints."""
_TRAINING_BAR = re.compile(r"\s*(?:(?i:train|step|epoch|iter)[^|]*)?")
"""Text before the progress bar of a training loop; the Trainer writes none, loading and tokenizing do."""
_LAUNCH = re.compile(
    r"(?:^|\s)(?:\++ |\$ |cmd ?[=:] |command: |Running: |Executing: )"
    r"((?:[\w./-]*/)?(?:torchrun|accelerate|deepspeed|python[\d.]*|srun|mpirun|litgpt|axolotl|llamafactory-cli|tune|uv)\s\S.*)$",
    re.IGNORECASE,
)
_MAX_LAUNCH = 8000
_LAUNCH_MARKS = (b"+", b"$", b"cmd", b"command:", b"running:", b"executing:")
_LAUNCHERS = tuple(b"torchrun accelerate deepspeed python srun mpirun litgpt axolotl llamafactorycli tune uv".split())
_ALWAYS_READ = (b'file"', b"traceback(most", b"(localrank", b"py:in", b"py:,in", b"cellin[")
"""Folded words of lines that tell the code and the rank of a failure."""
_MAX_PLACES = 2 * _MAX_FRAMES
"""Lines of a block without a failure in which the tracebacks stand that a failure of the next block may have."""
_BY_NUMBER = (b"code", b"exitstatus", b"nonzero", b"bysignal", b"onsignal", b"tosignal", b"]error", b"[errno]")
"""Words of lines in which a number that is folded decides what they say."""
_BAR = b"%|"
_MAX_SILENT = 10_000
_SILENT_LENGTH = range(24, 400)
"""Folded lines that are remembered as saying nothing: a short one may differ from another in what is folded."""


class _Stream(msgspec.Struct):
    """State of reading one stream of the log, such as the lines of one rank."""

    frames: deque[list[str]] = msgspec.field(default_factory=lambda: deque(maxlen=_MAX_FRAMES))
    """Frames of the latest traceback, outermost first: file, line, function, and source if the traceback has it."""
    source_at: tuple[int, int] = (0, 0)
    """Number and column of the line in which the source of the last frame may stand."""
    message: list[str] = []
    """Lines of a message that may go on; empty: none."""
    begun: LogLine | None = None
    """The line in which it began."""
    steps: int | None = None
    latest: int | None = None
    """Index of the latest failure."""
    least_later: int | None = None
    """Lowest count of steps since then."""
    fault: str | None = None
    """Words of a kernel that failed: errors of libraries that follow say nothing of memory."""
    figures: tuple[int, int, Wording, dict[str, str]] | None = None
    """A failure whose further figures may follow: its index, its line, its wording and what is known."""


class _Reader:
    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.unkept = 0
        self.launch_line: str | None = None
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._seen: dict[object, int] = {}
        self._reported_rank: int | None = None
        self._steps: int | None = None
        self._bars: dict[bytes, bytes] = {}
        """The latest progress bar by what stands before it: only the one before a failure, or the last, counts."""
        self._silent: set[bytes] = set()
        """Folded lines that had a word that matters, and said nothing."""
        self._read_all_until = 0
        """Number of the last line that may belong to a message or to the figures of a failure."""

    def take_block(self, block: LogBlock) -> None:
        """Read the lines of a block that may matter. Lines of one kind are equal when folded, so few are looked at."""
        folded = fold(b"\n".join(block.lines)).split(b"\n")
        kinds = b"\n".join(set(folded))
        matter, bars = self._kinds_that_say(kinds) - self._silent, lines_with(kinds, (_BAR,))
        if weak := lines_that_may_say_killed(kinds) - matter - self._silent:
            lines = zip(folded, block.lines, strict=True)
            matter |= {kind for kind, line in lines if kind in weak and may_say_killed(line)}
        if len(self.failures) >= MAX_FAILURES:
            self.unkept += sum(kind in matter for kind in folded) if matter else 0
            return
        if not matter and len(bars) == 1 and block.number > self._read_all_until:
            (bar,) = bars
            self._keep_bar(bar, dict(zip(folded, block.lines, strict=True))[bar])
            return
        places = lines_with(kinds, _ALWAYS_READ)
        if not matter and not places and not bars and block.number > self._read_all_until:
            return
        # a failure of a later block has its traceback at the end of this one
        first = 0 if matter or block.number <= self._read_all_until else len(folded) - _MAX_PLACES
        matter |= places
        of_source = False
        for at, (kind, line) in enumerate(zip(folded, block.lines, strict=True)):
            number = block.number + at
            wanted = of_source or (kind in matter and kind not in self._silent)
            if number <= self._read_all_until or (wanted and at >= first):
                self._count_bars()
                self._take_raw(number, line, kind, goes_on=block.goes_on and at == 0)
                of_source = b'file"' in kind
            elif kind in bars:
                self._keep_bar(kind, line)

    def _kinds_that_say(self, kinds: bytes) -> set[bytes]:
        """Return the folded lines that may say that memory ran out, that the program goes on, or how it was started."""
        found = lines_that_may_say(kinds)
        if any(mark in kinds for mark in _LAUNCH_MARKS):
            starts = lines_with(kinds, _LAUNCHERS)
            found |= {kind for kind in starts if any(mark in kind for mark in _LAUNCH_MARKS)}
        if found or self.failures:
            found |= lines_that_may_go_on(kinds)
        return found

    def _take_raw(self, number: int, raw: bytes, folded: bytes, *, goes_on: bool) -> None:
        said = False
        # a logger's JSON has a whole traceback in one field
        for line in raw.replace(b'\\"', b'"').split(b"\\n") if b"\\n  File" in raw else (raw,):
            for piece in line_pieces(line):
                said |= self.take(log_line(number, piece, goes_on=goes_on, is_cut=len(piece) == MAX_LINE))
                goes_on = True
            goes_on = False
        says_by_number = any(word in folded for word in _BY_NUMBER)
        if not (said or says_by_number) and len(folded) in _SILENT_LENGTH and len(self._silent) < _MAX_SILENT:
            self._silent.add(folded)

    def take(self, line: LogLine) -> bool:
        """Read a line; return False if it says nothing that matters, whatever its numbers are."""
        stream = self._stream(line.stream)
        text = line.text
        before = stream.begun.text if line.goes_on and stream.begun is not None else ""
        if len(before) > OVERLAP and _MESSAGE.search(before, len(before) - OVERLAP):
            stream.message, stream.begun = [], None  # this piece has it whole
        if stream.message:
            self._continue(stream, line)
        self._fill(stream, line)
        if "emory" in text and _MESSAGE.search(text) and _WITH_FIGURES.search(text):
            self._close(stream)
            stream.message, stream.begun = [text], line
            if is_complete(text):
                self._close(stream)
            else:
                self._read_all_until = max(self._read_all_until, line.number + _MOST_MIXED)
            return True
        if 'File "' in text and (frame := _FRAME.search(text)):
            stream.frames.append([frame[1], frame[2], frame[3].strip(), ""])
            stream.source_at = line.number + 1, frame.start() + 2
            return True
        if self._is_source(stream, line):
            stream.frames[-1][3] = text[stream.source_at[1] :].strip()[:_MAX_TEXT]
            return True
        if (other := _OTHER_FRAME.search(text)) is not None:
            parts = [each for each in other.groups() if each is not None]
            stream.frames.append([parts[0], parts[1], parts[2] if parts[2:] else "<module>", ""])
            return True
        if "Traceback (most recent call last)" in text:
            stream.frames.clear()
            return True
        return self._other(stream, line)

    def finish(self) -> None:
        self._count_bars()
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

    def _continue(self, stream: _Stream, line: LogLine) -> None:
        begun = stream.begun
        if begun is not None and line.number > begun.number + _MOST_MIXED:
            self._close(stream)
            return
        stream.message.append(line.text)
        size = sum(map(len, stream.message))
        if is_complete(" ".join(stream.message)) or len(stream.message) > _MAX_MESSAGE_LINES or size > _MAX_MESSAGE:
            self._close(stream)

    def _close(self, stream: _Stream) -> None:
        """Keep the message that was being read, if it has figures."""
        begun, lines = stream.begun, stream.message
        stream.message, stream.begun = [], None
        if begun is None:
            return
        whole = " ".join(lines)
        memory = parse_message(whole)
        at = _MESSAGE.search(begun.text)
        inline = _INLINE_RANK.search(begun.text[: at.start()].rpartition(": ")[0]) if at else None
        rank = begun.rank if inline is None or begun.rank is not None else int(inline[1])
        caught = CAUGHT.search(whole[:_MAX_MESSAGE]) is not None
        if memory is not None:
            found = Failure(kind="gpu", line=begun.number, text=begun.text, rank=rank, memory=memory, caught=caught)
            self._keep(stream, found, (rank, memory), also=memory)
        elif known := find_wording(begun.text):
            self._keep_wording(stream, begun, *known, caught=caught)

    @staticmethod
    def _is_source(stream: _Stream, line: LogLine) -> bool:
        """Return True for the line of a traceback that quotes the program: it stands two columns right of its frame."""
        number, column = stream.source_at
        indent = line.text[column - 2 : column]
        return line.number == number and indent == "  " and line.text[column : column + 1].strip() != ""

    def _other(self, stream: _Stream, line: LogLine) -> bool:
        text, said = line.text, line.number <= self._read_all_until
        # torchrun's summary names the rank before the exit code
        if "rank" in text and (rank := _RANK.search(text)) is not None:
            self._reported_rank, said = int(rank[1]), True
        if "%|" in text and (progress := _PROGRESS.search(text)):
            self._count_steps(stream, progress)
            said = True
        elif stream.latest is not None and (step := _STEP.search(text)):
            done = int(step["done"])
            stream.least_later = done - 1 if stream.least_later is None else stream.least_later
            self._count_later(stream, done)
            said = True
        if ENDED.search(text):
            for index in range(len(self.failures)):
                self._change(index, caught=True)
        if len(text) <= _MAX_LAUNCH and (launch := _LAUNCH.search(text)):
            self.launch_line, said = launch[1].strip(), True
        if fault := BROKEN.search(text):
            stream.fault, said = fault[0], True
        caught = CAUGHT.search(text) is not None
        if caught and stream.latest is not None and not self.failures[stream.latest].caught:
            self._change(stream.latest, caught=True)
        # what begins in the end of a piece stands in the next one too
        elif found := find_wording(text, before=len(text) - OVERLAP if line.is_cut else None):
            self._keep_wording(stream, line, *found, caught=caught)
            said = True
        return said or caught

    def _keep_bar(self, folded: bytes, line: bytes) -> None:
        self._bars[folded[: folded.index(_BAR)]] = line

    def _count_bars(self) -> None:
        for raw in self._bars.values():
            line = log_line(0, raw)
            if progress := _PROGRESS.search(line.text):
                self._count_steps(self._stream(line.stream), progress)
        self._bars.clear()

    def _count_steps(self, stream: _Stream, progress: re.Match[str]) -> None:
        """Keep the steps of a bar that has not reached its end: that of another loop may have."""
        done = int(progress["done"])
        if _TRAINING_BAR.fullmatch(progress["what"]) and done < int(progress["all"]):
            stream.steps = self._steps = done
            self._count_later(stream, done)

    def _count_later(self, stream: _Stream, done: int) -> None:
        if (latest := stream.latest) is None:
            return
        before = self.failures[latest].steps
        least = min(each for each in (done, before, stream.least_later) if each is not None)
        stream.least_later = least
        if done > least:
            self._change(latest, later_steps=done - least)

    def _keep_wording(
        self, stream: _Stream, line: LogLine, wording: Wording, found: dict[str, str], *, caught: bool = False
    ) -> None:
        innermost = stream.frames[-1][3] if stream.frames else ""
        if (
            wording.kind == "gpu library"
            and wording.source is None
            and ("pin_memory" in innermost or "pin memory" in line.text)
        ):
            wording = PINNED
        elif wording.kind == "gpu library" and stream.fault is not None:
            wording, found = AFTER_FAULT, {"fault": stream.fault}
        by_summary = self._reported_rank if line.rank is None and _OF_RANK.search(line.text) else None
        rank = line.rank if by_summary is None else by_summary
        failure = _told(
            Failure(
                kind=wording.kind,
                line=line.number,
                text=line.text,
                sure=wording.sure,
                source=wording.source,
                rank=rank,
                caught=wording.caught or caught,
            ),
            wording,
            found,
        )
        unknown = wording.kind == "not understood"
        if unknown and stream.latest is not None and line.number <= self.failures[stream.latest].line + _MOST_TALK:
            return
        if unknown and sum(each.kind == wording.kind for each in self.failures) >= _MAX_UNKNOWN:
            self.unkept += 1
            return
        of_wording = wording.kind, wording.source, wording.sure
        key = rank, of_wording, failure.tried_host_bytes, unknown and line.text[:_MAX_TEXT]
        index = self._keep(stream, failure, key)
        if index is not None and wording.figures:
            stream.figures = index, line.number, wording, found
            self._read_all_until = max(self._read_all_until, line.number + _MOST_FIGURES)

    def _fill(self, stream: _Stream, line: LogLine) -> None:
        """Add figures of the latest failure that stand in this line."""
        if stream.figures is None:
            return
        index, begun, wording, found = stream.figures
        if line.number > begun + _MOST_FIGURES:
            stream.figures = None
        elif more := further(wording, line.text[:_MAX_MESSAGE]):
            found |= {name: text for name, text in more.items() if name not in found}
            self.failures[index] = _told(self.failures[index], wording, found)

    @staticmethod
    def _where(stream: _Stream, failure: Failure) -> tuple[str | None, str | None, PhaseName | None]:
        """Return the place of a failure by the latest traceback, the source of its line, and the phase of the step."""
        if failure.kind not in ("gpu", "gpu library", "host"):
            return None, None, None
        frames = [StackFrame(file=file, line=int(at), function=name) for file, at, name, _ in stream.frames]
        own = own_frame(frames[::-1])
        code = next((each[3] for frame, each in zip(frames, stream.frames, strict=True) if frame is own), "")
        return None if own is None else str(own), code or None, phase_of(frames) if frames else None

    def _change(self, index: int, *, caught: bool = False, later_steps: int | None = None) -> None:
        known = self.failures[index]
        later = max((each for each in (known.later_steps, later_steps) if each is not None), default=None)
        self.failures[index] = replace(known, caught=known.caught or caught, later_steps=later)

    def _keep(self, stream: _Stream, failure: Failure, key: object, *, also: object = None) -> int | None:
        """Keep a failure, unless it was kept already; return its index, None if it was not kept.

        Args:
            stream: where it stands.
            failure: without its place.
            key: what loggers and launchers print again is one failure, unless the run had survived it meanwhile.
            also: a key of the same failure without a rank.
        """
        known = self._seen.get(key, self._seen.get(also) if failure.rank is None and also is not None else None)
        again = known is not None and not self.failures[known].survived
        place, code, phase = self._where(stream, failure)
        if known is not None and again:
            if self.failures[known].place is None:  # a program may print its message before the traceback
                self.failures[known] = replace(self.failures[known], phase=phase, place=place, code=code)
            stream.latest, stream.least_later = known, None
            return None
        if len(self.failures) >= MAX_FAILURES:
            self.unkept += 1
            return None
        kept = replace(
            failure,
            text=" ".join(failure.text.split())[:_MAX_TEXT],
            phase=phase,
            place=place,
            code=code,
            steps=self._steps if stream.steps is None else stream.steps,
        )
        index = -1 if stream.latest is None else stream.latest
        before = self.failures[index] if index >= 0 else None
        is_of_it = before and before.kind == "not understood" and failure.line <= before.line + _MOST_TALK
        if is_of_it and failure.sure:
            self.failures[index] = kept  # what was not understood spoke of this
        else:
            index = len(self.failures)
            self.failures.append(kept)
        self._seen[key] = index
        if also is not None:
            self._seen[also] = index
        stream.latest, stream.least_later = index, None
        return index


def _told(failure: Failure, wording: Wording, found: dict[str, str]) -> Failure:
    """Return the failure with the figures that are known of it, and what its wording says of them."""
    host = wording.size(found["tried"]) if wording.kind == "host" and "tried" in found else None
    return replace(failure, memory=wording.memory(found), tried_host_bytes=host, says=tuple(wording.sentences(found)))
