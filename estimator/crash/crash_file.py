"""A file that a dead run has left, whichever it is: a log or a memory snapshot."""

import codecs
import io
import re
import shlex
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from ..common.errors import InputError
from ..common.paths import expand_user
from ..common.untrusted_files import open_file
from .records import CrashLog, Failure, FailureKind, OtherProcess, OutOfMemory, StackFrame, own_frame, phase_of
from .snapshot.records import MemorySnapshot
from .snapshot.snapshot_reader import is_snapshot, read_snapshot

# Lines of a job log, of any length and encoding, in bounded memory: with their rank, without what terminals obey.


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


# Torch's out-of-memory messages, in every wording since torch 1.0, as figures.
#
# Wordings: ``c10/cuda/CUDACachingAllocator.cpp`` of torch 1.10 (``(GPU 0; ... total capacity; ... already
# allocated;``, before 1.4 with ``cached``), 2.1 (``GPU 0 has a total capacty of``, spelt so), 2.2 and later
# (``capacity``, private pools, other processes); ``CUDAMallocAsyncAllocator.cpp``;
# ``c10/xpu/XPUCachingAllocator.cpp``; ``aten/src/ATen/mps/MPSAllocator.mm``. ROCm says HIP in CUDA's place, torch_npu
# NPU.


_SIZE = r"(\d+(?:\.\d+)?) ?(bytes|[KMGTPE]i?B|B)"
_HEAD = re.compile(rf"\b([A-Za-z]{{2,12}}) out of memory\. Tried to allocate {_SIZE}")
_DEVICE = re.compile(r"\((?:GPU|NPU|MLU|XPU|DCU|GCU) (\d+);?")
_NEW_DEVICE = re.compile(r"\b(?:GPU|NPU|XPU) ?(\d*) has a total capac(?:i)?ty of")
_FIELDS = {
    name: re.compile(pattern)
    for name, pattern in {
        "total": rf"{_SIZE} total capacity|has a total capac(?:i)?ty of {_SIZE}",
        "free": rf"; {_SIZE} free[;)]|of which {_SIZE} is free",
        "allowed": rf"{_SIZE} allowed;",
        "allocated": rf"{_SIZE} already allocated|Of the allocated memory {_SIZE} is allocated by PyTorch",
        "reserved": rf"{_SIZE} (?:reserved in total by PyTorch|cached)",
        "unallocated": rf"{_SIZE} is reserved by PyTorch but unallocated",
        "pools": rf"with {_SIZE} allocated in private pools",
        "process": rf"this process has {_SIZE} memory in use",
    }.items()
}
_PROCESS = re.compile(rf"\bProcess (\d{{1,10}}) has {_SIZE} memory in use")
_ASYNC = re.compile(
    rf"Allocation on device (\d+) would exceed allowed memory\. \(out of memory\) ?Currently allocated ?: ?{_SIZE} ?"
    rf"Requested ?: ?{_SIZE} ?Device limit ?: ?{_SIZE} ?Free \(according to CUDA\) ?: ?{_SIZE}"
)
_MPS = re.compile(
    rf"MPS backend out of memory \(MPS allocated: {_SIZE}, other allocations: {_SIZE}, max allowed: {_SIZE}\)\. "
    rf"Tried to allocate {_SIZE}"
)
_END = re.compile(
    r"reserved in total by PyTorch|\d+ ?(?:[KMG]i)?B cached|reserved by PyTorch but unallocated|on \w+ pool"
)
_UNITS = {"bytes": 1, "B": 1} | {
    f"{letter}{i}B": (1024 if i else 1000) ** power for power, letter in enumerate("KMGTPE", 1) for i in ("i", "")
}
_MAX_BYTES = 2**50
"""Larger figures are -1 as an unsigned number: NVML did not know."""
_MAX_OTHERS = 64


def parse_message(text: str) -> OutOfMemory | None:
    """Return the figures of the first out-of-memory message in a text; None if there is none.

    Args:
        text: line breaks and indentation do not matter.
    """
    text = " ".join(text.split())
    return _allocator_message(text) or _async_message(text) or _mps_message(text)


def is_complete(text: str) -> bool:
    """Return True if nothing that follows belongs to the message, as far as it has figures."""
    text = " ".join(text.split())
    return bool(_END.search(text) or _ASYNC.search(text))


def _allocator_message(text: str) -> OutOfMemory | None:
    head = _HEAD.search(text)
    if head is None:
        return None
    following = _HEAD.search(text, head.end())
    body = text[head.start() : following.start() if following else None]
    figures = {name: _field(pattern, body) for name, pattern in _FIELDS.items()}
    device = _DEVICE.search(body) or _NEW_DEVICE.search(body)
    allocated, unallocated = figures["allocated"], figures["unallocated"]
    if unallocated is None and allocated is not None and figures["reserved"] is not None:
        before_1_4 = "cached" in body and "reserved in total" not in body
        unallocated = figures["reserved"] if before_1_4 else max(0, figures["reserved"] - allocated)
    others = [
        OtherProcess(pid=int(pid), used_bytes=used)
        for pid, number, unit in _PROCESS.findall(body)[:_MAX_OTHERS]
        if (used := _bytes(number, unit)) is not None
    ]
    process = figures["process"] or None  # 0 bytes: NVML could not attribute them, as in a container
    if process is None and allocated is not None and unallocated is not None:
        process, others = _own_process(others, allocated + unallocated)
    return OutOfMemory(
        backend=head[1].upper() if len(head[1]) <= 4 else head[1],
        gpu=int(device[1]) if device and device[1] else None,
        tried_bytes=_bytes(head[2], head[3]),
        total_bytes=figures["total"],
        free_bytes=figures["free"],
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        private_pool_bytes=figures["pools"],
        process_bytes=process,
        allowed_bytes=figures["allowed"],
        others=tuple(others),
    )


def _own_process(others: list[OtherProcess], reserved: int) -> tuple[int | None, list[OtherProcess]]:
    """Return what the process itself holds, and the others.

    In a container its pid differs from the one that the driver knows, so that torch lists it as another process.
    """
    large = [other for other in others if other.used_bytes >= reserved]
    if len(large) != 1:
        return None, others
    return large[0].used_bytes, [other for other in others if other is not large[0]]


def _async_message(text: str) -> OutOfMemory | None:
    match = _ASYNC.search(text)
    if match is None:
        return None
    return OutOfMemory(
        backend="CUDA",
        gpu=int(match[1]),
        allocated_bytes=_bytes(match[2], match[3]),
        tried_bytes=_bytes(match[4], match[5]),
        total_bytes=_bytes(match[6], match[7]),
        free_bytes=_bytes(match[8], match[9]),
        unallocated_bytes=None,
    )


def _mps_message(text: str) -> OutOfMemory | None:
    match = _MPS.search(text)
    if match is None:
        return None
    return OutOfMemory(
        backend="MPS",
        gpu=None,
        allocated_bytes=_bytes(match[1], match[2]),
        allowed_bytes=_bytes(match[5], match[6]),
        tried_bytes=_bytes(match[7], match[8]),
        total_bytes=None,
        free_bytes=None,
        unallocated_bytes=None,
    )


def _field(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    number, unit = (each for each in match.groups() if each is not None)
    return _bytes(number, unit)


def _bytes(number: str, unit: str) -> int | None:
    size = float(number) * _UNITS[unit] if len(number) <= 24 else float("inf")
    return round(size) if size < _MAX_BYTES else None


# Failures of memory that torch's allocator does not report: libraries on the GPU, CPU RAM, killed processes.


_PATTERNS: tuple[tuple[FailureKind, bool, str], ...] = (
    # the kernel, systemd, Kubernetes and Slurm name the killer
    ("killed", True, r"[Mm]emory cgroup out of memory|Out of memory: Kill(?:ed)? process \d+|invoked oom-killer"),
    ("killed", True, r"Detected \d+ oom[-_ ]kill event|task \d+[^:]{0,80}: Out Of Memory|State=OUT_OF_MEMORY"),
    ("killed", True, r"\bOOMKilled\b(?!\W{1,4}false)"),
    ("killed", True, r"oom-kill:constraint=|killed by the OOM killer|exceeded (?:step|job) memory limit"),
    # a SIGKILL without its sender
    (
        "killed",
        False,
        r"exit ?code {0,9}[:=]? {0,9}(?:-9|137)\b|return code {0,9}=? {0,9}(?:-9|137)\b|Signal 9 \(SIGKILL\)",
    ),
    ("killed", False, r"^(?:\S+: line \d+: +\d+ )?Killed(?: {2,}.*)?$|died with <Signals\.SIGKILL: 9>"),
    ("killed", False, r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal: Killed|exited unexpectedly)"),
    ("killed", False, r"A worker process managed by the executor was unexpectedly terminated|was killed by SIGKILL"),
    # CPU RAM
    ("host", True, r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate \d+"),
    ("host", True, r"_ArrayMemoryError|^(?:numpy\.\S*)?MemoryError\b|\bstd::bad_alloc\b|Cannot allocate memory"),
    ("host", True, r"insufficient shared memory \(shm\)|cudaHostAlloc.{0,80}(?:fail|error)|\bENOMEM\b"),
    # GPU memory, asked for by others than torch's allocator
    ("gpu library", True, r"CUDA (?:driver )?error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"),
    ("gpu library", True, r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED"),
    (
        "gpu library",
        True,
        r"(?:Cuda|CUDA|Hip|HIP) failure(?: \d+)? '?out of memory|Failed to CUDA (?:calloc|host alloc)",
    ),
    # torch asks NVML for the processes while it writes its message, and fails in that
    ("gpu library", True, r"NVML_SUCCESS == \w+ ?INTERNAL ASSERT FAILED at .{0,60}CUDACachingAllocator"),
    ("gpu library", True, r"OutOfMemoryError: ?(?:CUDA out of memory\.?)?\s*$|hipErrorOutOfMemory"),
)
_COMPILED = tuple((kind, sure, re.compile(pattern)) for kind, sure, pattern in _PATTERNS)
_WORDS = (
    *("memory", "Memory", "oom", "OOM", "Out Of", "Kill", "killed", "SIGKILL", "-9", "137", "_ALLOC_", "CUDA calloc"),
    *("CUDA host alloc", "bad_alloc", "ENOMEM", "CUDACachingAllocator", "DataLoader worker", "unexpectedly terminated"),
    *("cudaHostAlloc", "OUT_OF_MEMORY"),
)
"""Words of which every failure's line contains at least one; lines without any are skipped."""
_HOST_BYTES = re.compile(r"you tried to allocate (\d{1,18}) bytes|Unable to allocate (\d+(?:\.\d+)?) ([KMGT])iB")


@dataclass(frozen=True, slots=True)
class OtherFailure:
    """Kind of failure that a line reports."""

    kind: FailureKind
    sure: bool
    tried_host_bytes: int | None


def find_other_failure(line: str) -> OtherFailure | None:
    """Return the failure that a line of a log reports; None if it reports none."""
    if not any(word in line for word in _WORDS):
        return None
    for kind, sure, pattern in _COMPILED:
        if pattern.search(line):
            return OtherFailure(kind, sure, _host_bytes(line) if kind == "host" else None)
    return None


def _host_bytes(line: str) -> int | None:
    match = _HOST_BYTES.search(line)
    if match is None:
        return None
    return int(match[1]) if match[1] else round(float(match[2]) * 1024 ** ("KMGT".index(match[3]) + 1))


# Reads a job log of any length for failures of memory: one pass, bounded memory, one failure once per rank.


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


_START_BYTES = 4096


def read_crash_file(
    name: str, *, device: int | None = None, progress: Callable[[str], None] | None = None
) -> CrashLog | MemorySnapshot:
    """Read a log or a memory snapshot.

    Args:
        name: of a regular file.
        device: in a snapshot, the GPU; None: the one that failed.
        progress: called with what is being done.

    Raises:
        InputError: it cannot be read, or is neither.
    """
    try:
        with open_file(Path(expand_user(name))) as file:
            return read_crash_stream(file, name=name, device=device, progress=progress)
    except OSError as error:
        how = "; write COMMAND | vramtop explain -" if Path(expand_user(name)).is_fifo() else ""
        raise InputError(f"{name}: cannot be read: {error.strerror or error}{how}") from None


def read_crash_stream(
    file: BinaryIO, *, name: str, device: int | None = None, progress: Callable[[str], None] | None = None
) -> CrashLog | MemorySnapshot:
    """Read a log or a memory snapshot from an open file or a pipe.

    Args:
        file: read from where it stands.
        name: for errors.
        device: in a snapshot, the GPU; None: the one that failed.
        progress: called with what is being done.

    Raises:
        InputError: it is neither.
    """
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", file))
    try:
        start = buffered.peek(_START_BYTES)[:_START_BYTES]
        _require_readable(start, name)
        return read_snapshot(buffered, device=device, progress=progress) if is_snapshot(start) else read_log(buffered)
    except InputError as error:
        raise InputError(f"{name}: {error.message}") from None


def _require_readable(start: bytes, name: str) -> None:
    if not start.strip():
        raise InputError("it is empty")
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        command = f"gzip -dc {shlex.quote(name)} | vramtop explain -"
        raise InputError(f"it is compressed; decompress it first, such as: {command}")
    if start.startswith(b"PK\x03\x04"):
        raise InputError("it is an archive, as torch.save writes; a memory snapshot is written by _dump_snapshot(FILE)")
