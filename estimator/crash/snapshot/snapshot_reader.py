"""Reads a memory snapshot, pickled or as JSON, into plain records, in a process of its own with bounds.

A pickle can ask for calls: here it gets none (``_PlainUnpickler``). What it may still do, take memory and time without
end or break the interpreter by nesting, ends that process.

Schema: ``_snapshot()`` in ``torch/cuda/memory.py`` of torch 2.13; older ones keep the stack of a block in ``history``
(torch 1.13, ``_block_extra_legacy`` in ``torch/cuda/_memory_viz.py``), and ``torch.cuda.memory_snapshot()`` returns the
segments alone.
"""

import gc
import json
import math
import os
import pickle
import resource
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, NoReturn

import msgspec

from ...common.errors import InputError
from ...common.limits import SNAPSHOT, SNAPSHOT_BLOCKS, SNAPSHOT_EVENTS, SNAPSHOT_JSON, SNAPSHOT_READER, LimitError
from ...trace.start_python import safe_environment
from .records import BlockGroup, FailedAllocation, MemorySnapshot
from .source_files import SourceFiles
from .stacks import UNRECORDED, ModelPart, Stack, StackComponent, Stacks, module_of

HeldBlock = tuple[int, int, Stack]
"""Address, size and stack of a block that is held at the end."""


_MAX_BYTES = 2**50
_MAX_GROUPS = 200
_START_BYTES = 4096
_CHUNK_BYTES = 2**20
_REFUSED = 3
_PROGRAM = f"from {__name__} import main; main()"
_DAMAGED = "the pickle is incomplete: cut off, or damaged"
EXTRA_KEY = "vramtop"
"""Key of the facts that vramtop adds to its snapshots: the GPU's capacity, and whose snapshot it is."""


def is_snapshot(start: bytes) -> bool:
    """Return True if a file that begins so may be a snapshot: a pickle, or JSON with a snapshot's keys."""
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    text = start.lstrip()[:_START_BYTES]
    return text[:1] in (b"{", b"[") and any(
        key in text for key in (b'"segments"', b'"device_traces"', b'"total_size"', b'"segment_type"')
    )


def read_snapshot(
    file: BinaryIO, *, device: int | None = None, progress: Callable[[str], None] | None = None
) -> MemorySnapshot:
    """Return the snapshot of one GPU of the file, as another process reads it.

    Args:
        file: read to its end.
        device: index of the GPU; None: that of the last failure, else the one with the most memory.
        progress: called with what is being done.

    Raises:
        InputError: it is not a memory snapshot, has nothing of this GPU, or exceeds a limit.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(device)],
        cwd="/",
        env=safe_environment(os.environ, Path(sys.executable)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as reader:
        try:
            with suppress(BrokenPipeError):  # it has seen enough
                _copy(file, reader.stdin, progress)
            if progress:
                progress("assigning the snapshot's memory")
            answer = reader.communicate()[0]
        except BaseException:
            reader.kill()
            raise
    if reader.returncode == _REFUSED:
        raise InputError(answer.decode())
    if reader.returncode == -signal.SIGXCPU:
        raise InputError(str(SNAPSHOT_READER.too_long()))
    if reader.returncode == -signal.SIGKILL:
        raise InputError("this machine has too little memory to read it")
    if reader.returncode:
        raise InputError(_DAMAGED)
    return msgspec.json.decode(answer, type=MemorySnapshot)


def _copy(file: BinaryIO, to: IO[bytes] | None, progress: Callable[[str], None] | None) -> None:
    """Give a file to another process, and tell how far it is."""
    whole, size, most = "", 0, SNAPSHOT.bytes or 0
    with suppress(OSError, ValueError):
        facts = os.fstat(file.fileno())
        whole = f" of {facts.st_size / 1e6:,.0f}" if stat.S_ISREG(facts.st_mode) else ""
    while to and (data := file.read(_CHUNK_BYTES)):
        size += len(data)
        if size > most:
            raise InputError(str(SNAPSHOT.too_large()))
        to.write(data)
        if progress:
            progress(f"reading the snapshot: {size / 1e6:,.0f}{whole} MB")


def main() -> NoReturn:
    """Read the snapshot on standard input within the limits; print its records as JSON, or a sentence."""
    seconds, most = math.ceil(SNAPSHOT_READER.seconds or 0), SNAPSHOT_READER.bytes or 0
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))  # a signal that says why, then the end
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # millions of containers without a cycle take a third longer with it
    try:
        answer, code = msgspec.json.encode(parse_snapshot(sys.stdin.buffer, json.loads(sys.argv[1]))), 0
    except InputError as error:
        answer, code = error.message.encode(), _REFUSED
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    os._exit(code)  # what was read is not torn down


def parse_snapshot(file: BinaryIO, device: int | None = None) -> MemorySnapshot:
    """Return the snapshot of one GPU of the file; without bounds, so for files that are trusted alone.

    Raises:
        InputError: it is not a memory snapshot, has nothing of this GPU, or exceeds a limit.
    """
    try:
        is_pickle = not hasattr(file, "peek") or file.peek(1)[:1] == b"\x80"
        data = load_plain_pickle(file) if is_pickle else _load_json(file)
        return _Reader(_segments_of(data)).read(device)
    except MemoryError:
        limit = (SNAPSHOT_READER.bytes or 0) >> 30
        raise InputError(f"reading it takes more memory than this machine or the limit of {limit} GiB allows") from None
    except LimitError as error:
        raise InputError(str(error)) from None


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, texts and numbers; whatever could be called has to be looked up, which is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        del module, name
        raise InputError("it holds objects, so it is not a memory snapshot; nothing in it was executed")

    def persistent_load(self, key: object) -> NoReturn:
        self.find_class("", str(key))


def load_plain_pickle(file: BinaryIO) -> Any:
    """Return what a pickle holds: plain containers, texts and numbers.

    Raises:
        InputError: it is not a pickle, is cut off, or holds other things.
    """
    try:
        return _PlainUnpickler(file, encoding="utf-8", errors="replace").load()
    except (InputError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - opcodes on the wrong values end in errors of any kind
        raise InputError(_DAMAGED) from None


class Entry(NamedTuple):
    """A block of memory, or an event of the history."""

    kind: Any
    """State of the block, or what happened; None: neither is known."""
    address: int | None
    """Its address; of a failure the free memory."""
    size: int | None
    frames: Any
    """List or tuple of dictionaries; None: not recorded."""


def _entry_of(value: Any) -> Entry | None:
    """Return the entry that a dictionary is; None: it is no dictionary."""
    if not isinstance(value, dict):
        return None
    get, size = value.get, value.get("size")
    history = get("history")
    first = history[0] if isinstance(history, list) and history else None
    return Entry(
        get("state", get("action")),
        _count_of(get("address", get("device_free", get("addr")))),
        (_count_of(size) or 0) if type(size) is int else None,
        get("frames") if "frames" in value else first.get("frames") if isinstance(first, dict) else None,
    )


def _count_of(value: Any) -> int | None:
    """Return a size, address or index; None for what is none."""
    return value if type(value) is int and 0 <= value < 2**64 else None


def _segments_of(data: Any) -> dict[str, Any]:
    """Return the dictionary with segments that a file holds."""
    if isinstance(data, list) and all(isinstance(each, dict) for each in data):
        data = {"segments": data}
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        raise InputError(
            "it is not a memory snapshot: torch.cuda.memory._dump_snapshot(FILE) writes one, a dictionary with segments"
        )
    return data


def _load_json(file: BinaryIO) -> Any:
    most = SNAPSHOT_JSON.bytes or 0
    text = file.read(most + 1)
    if len(text) > most:
        raise InputError(f"{SNAPSHOT_JSON.too_large()}; give the pickle, which is read in pieces")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("the JSON is incomplete or invalid") from None


class _Reader:
    """Reads a GPU's part, once: the file's blocks and events go as they are read, or they would be there twice.

    Args:
        data: the reader's own.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        extra = data.get(EXTRA_KEY)
        self._extra: dict[str, Any] = extra if isinstance(extra, dict) else {}
        self._stacks = Stacks()
        traces = data.pop("device_traces", None)
        self._traces = [_entries(each) for each in _list(traces)]
        self._segments = [each for each in _list(data.pop("segments")) if isinstance(each, dict) and _reserved(each)]

    def read(self, device: int | None) -> MemorySnapshot:
        used = sorted({_index(each) for each in self._segments})
        failing = [at for at, trace in enumerate(self._traces) if any(each.kind == "oom" for each in trace)]
        traced = [at for at, trace in enumerate(self._traces) if trace]
        devices = tuple(sorted({*used, *traced}))
        if device is None:
            device = failing[-1] if failing else max(devices, key=self._reserved, default=None)
        if device is None or device not in devices:
            have = f"; it has GPU {', '.join(map(str, devices))}" if devices else ": the process had not used a GPU"
            raise InputError(f"it has nothing about GPU {device}{have}" if device is not None else f"it is empty{have}")
        return self._of(device, devices)

    def _reserved(self, device: int) -> int:
        return sum(_reserved(each) for each in self._segments if _index(each) == device)

    def _of(self, device: int, devices: tuple[int, ...]) -> MemorySnapshot:
        segments, reserved = [each for each in self._segments if _index(each) == device], self._reserved(device)
        trace = self._traces[device] if device < len(self._traces) else []
        space = self._space(segments, self._allocations(trace))
        failed = self._failed(trace)
        has_stacks = self._stacks.has_places
        _settle(space.held, has_stacks=has_stacks)
        written = self._extra.get("time")
        sources = SourceFiles(self._stacks.frames, until=written if type(written) in (int, float) else None)
        components, groups = _grouped(space.held, sources)
        allocated = sum(size for _, size, _ in space.held)
        return MemorySnapshot(
            device=device,
            devices=devices,
            reserved_bytes=reserved,
            allocated_bytes=allocated,
            unallocated_bytes=reserved - allocated - space.waiting,
            waiting_bytes=space.waiting,
            free_blocks=space.free_blocks,
            largest_free_bytes=space.largest_free,
            private_free_bytes=space.private_free,
            segments=len(segments),
            expandable_segments=any(each.get("is_expandable") is True for each in segments),
            groups=groups[:_MAX_GROUPS],
            components=components,
            parts=_parts(groups),
            failed=failed,
            has_history=bool(trace),
            has_stacks=has_stacks,
            total_bytes=self._total(device),
            allowed_bytes=self._allowed(device),
        )

    def _space(self, segments: Iterable[dict[str, Any]], allocated: Mapping[int, Stack]) -> "_Space":
        space = _Space()
        for segment, address, size, block in _blocks(segments):
            pool = segment.get("segment_pool_id")
            if block.kind == "inactive" and isinstance(pool, tuple | list) and any(pool):
                space.private_free += size
            elif block.kind == "inactive":
                space.free_blocks += 1
                space.largest_free = max(space.largest_free, size)
            elif block.kind in ("active_awaiting_free", "active_pending_free"):
                space.waiting += size
            else:
                # an empty list: the stack was not recorded, or has no Python frame, which the history tells apart
                known = self._stacks.stack(block.frames) if block.frames else allocated.get(address, UNRECORDED)
                space.held.append((address, size, known))
        return space

    def _allocations(self, trace: list[Entry]) -> dict[int, Stack]:
        """Return the stack of the last allocation at each address that a history has."""
        if len(trace) > (SNAPSHOT_EVENTS.items or 0):
            raise InputError(f"{SNAPSHOT_EVENTS.too_many('entries')}; record with a smaller max_entries")
        return {each.address or 0: self._stacks.stack(each.frames) for each in trace if each.kind == "alloc"}

    def _failed(self, trace: Iterable[Entry]) -> FailedAllocation | None:
        last = None
        for entry in trace:
            last = entry if entry.kind == "oom" else last
        if last is None:
            return None
        stack, free = self._stacks.stack(last.frames), last.address
        return FailedAllocation(
            tried_bytes=last.size or 0,
            free_bytes=free if free is not None and free < _MAX_BYTES else None,
            component=stack.component,
            phase=stack.phase,
            place=None if stack.place is None else str(stack.place),
        )

    def _allowed(self, device: int) -> int | None:
        """Return the limit of ``set_per_process_memory_fraction``, which torch gives its observers as the capacity."""
        failure = self._extra.get("failure")
        if not isinstance(failure, dict) or failure.get("device") != device:
            return None
        told, total = _count_of(failure.get("total_bytes")) or 0, self._total(device)
        return told if total is not None and 0 < told < total else None

    def _total(self, device: int) -> int | None:
        totals = self._extra.get("total_bytes")
        found = totals.get(str(device)) if isinstance(totals, dict) else None
        return found if type(found) is int and 0 < found < _MAX_BYTES else None


class _Space(msgspec.Struct):
    """The blocks of a GPU."""

    held: list[HeldBlock] = []
    """Blocks that tensors hold."""
    waiting: int = 0
    private_free: int = 0
    free_blocks: int = 0
    largest_free: int = 0


def _settle(held: list[HeldBlock], *, has_stacks: bool) -> None:
    """Make what autograd holds a gradient where it has a weight's size; without stacks nothing is known.

    Each weight has one gradient, which may have half or twice its width.
    """
    left = Counter(size for _, size, stack in held if stack.component == "weights")
    known: dict[tuple[int, StackComponent], Stack] = {}
    for at, (address, size, stack) in enumerate(held):
        component: StackComponent = stack.component if has_stacks else "unknown"
        if component == "gradients or temporary":
            like = next((each for each in (size, 2 * size, size // 2) if left[each] > 0), None)
            if like is not None:
                left[like] -= 1
                component = "gradients"
        if component != stack.component:
            key = id(stack), component
            if key not in known:
                known[key] = msgspec.structs.replace(stack, component=component)
            held[at] = address, size, known[key]


def _grouped(
    held: Iterable[HeldBlock], sources: SourceFiles
) -> tuple[dict[StackComponent, int], tuple[BlockGroup, ...]]:
    """Return the bytes of each component, and all groups, both with the largest first."""
    sizes: dict[int, tuple[Stack, list[int]]] = {}
    for _, size, stack in held:
        sizes.setdefault(id(stack), (stack, []))[1].append(size)
    totals: dict[StackComponent, int] = {}
    groups: dict[object, BlockGroup] = {}
    for stack, each in sizes.values():
        totals[stack.component] = totals.get(stack.component, 0) + sum(each)
        where = module_of(stack.frames, sources)
        key = (stack.component, stack.place, where)
        known = groups.get(key)
        groups[key] = BlockGroup(
            component=stack.component,
            place=None if stack.place is None else str(stack.place),
            module=where and where.path,
            module_class=where and where.class_name,
            part=where and where.part,
            bytes=sum(each) + (known.bytes if known else 0),
            blocks=len(each) + (known.blocks if known else 0),
            largest_bytes=max((known.largest_bytes if known else 0, max(each))),
        )
    largest = sorted(groups.values(), key=lambda group: -group.bytes)
    return dict(sorted(totals.items(), key=lambda item: -item[1])), tuple(largest)


def _parts(groups: Iterable[BlockGroup]) -> dict[StackComponent, dict[ModelPart, int]]:
    found: dict[StackComponent, dict[ModelPart, int]] = {}
    for group in groups:
        if group.part is not None:
            parts = found.setdefault(group.component, {})
            parts[group.part] = parts.get(group.part, 0) + group.bytes
    return {name: dict(sorted(parts.items(), key=lambda item: -item[1])) for name, parts in found.items()}


def _blocks(segments: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int, int, Entry]]:
    """Yield each block with its segment, address and size."""
    count, most = 0, SNAPSHOT_BLOCKS.items or 0
    for segment in segments:
        address = _count_of(segment.get("address")) or 0
        blocks = _list(segment.pop("blocks", None))
        for at, each in enumerate(blocks):
            block, blocks[at] = _entry_of(each), None
            if block is None:
                continue
            count += 1
            size = block.size
            if size is None:
                raise InputError("it is damaged: a block of memory in it has no size")
            if count > most:
                raise SNAPSHOT_BLOCKS.too_many("blocks, which no GPU holds")
            yield segment, address if block.address is None else block.address, size, block
            address += size


def _list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else []


def _entries(values: Any) -> list[Entry]:
    """Return the entries of a list, which they replace one by one."""
    found = _list(values)
    for at, each in enumerate(found):
        found[at] = _entry_of(each)
    return [each for each in found if each is not None]


def _reserved(segment: Mapping[str, Any]) -> int:
    return _count_of(segment.get("total_size")) or 0


def _index(segment: Mapping[str, Any]) -> int:
    """Return the GPU of a segment; older snapshots of one GPU do not say it."""
    return _count_of(segment.get("device")) or 0
