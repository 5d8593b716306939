"""Reads a memory snapshot, pickled or as JSON, into plain records.

Schema: ``_snapshot()`` in ``torch/cuda/memory.py`` of torch 2.13; older ones keep the stack of a block in ``history``
(torch 1.13, ``_block_extra_legacy`` in ``torch/cuda/_memory_viz.py``), and ``torch.cuda.memory_snapshot()`` returns the
segments alone.
"""

import gc
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ...common import InputError
from .modules import ModelPart, ModulePlace, module_of
from .plain_pickle import load_plain_pickle
from .records import BlockGroup, FailedAllocation, MemorySnapshot
from .replay import Event, replay
from .source_files import SourceFiles
from .stacks import UNRECORDED, Stack, StackComponent, Stacks

MAX_JSON_BYTES = 256 * 2**20
_MAX_BLOCKS = 4_000_000
_MAX_EVENTS = 4_000_000
_MAX_BYTES = 2**50
_MAX_GROUPS = 200
_START_BYTES = 4096
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


def read_snapshot(file: BinaryIO, *, device: int | None = None) -> MemorySnapshot:
    """Return the snapshot of one GPU of the file.

    Args:
        file: buffered and seekable, or a pipe of which nothing was read.
        device: index of the GPU; None: that of the last failure, else the one with the most memory.

    Raises:
        InputError: it is not a memory snapshot, or has nothing of this GPU.
    """
    first = file.peek(1)[:1] if hasattr(file, "peek") else b"\x80"
    with _without_collections():
        return _Reader(_segments_of(load_plain_pickle(file) if first == b"\x80" else _load_json(file))).read(device)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pause the collection of reference cycles: millions of containers without one take a third longer with it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
    text = file.read(MAX_JSON_BYTES + 1)
    if len(text) > MAX_JSON_BYTES:
        raise InputError(f"JSON of more than {MAX_JSON_BYTES // 2**20} MiB; give the pickle, which is read in pieces")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("the JSON is incomplete or invalid") from None


class _Reader:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self._stacks = Stacks()
        traces = data.get("device_traces")
        self._traces: list[Any] = traces if isinstance(traces, list) else []
        self._segments = [each for each in _dicts(data["segments"]) if _count(each.get("total_size"))]

    def read(self, device: int | None) -> MemorySnapshot:
        used = sorted({_count(each.get("device")) for each in self._segments})
        failing = [at for at, trace in enumerate(self._traces) if any(_action(each) == "oom" for each in _dicts(trace))]
        traced = [at for at, trace in enumerate(self._traces) if isinstance(trace, list) and trace]
        devices = tuple(sorted({*used, *traced}))
        if device is None:
            device = failing[-1] if failing else max(devices, key=self._reserved, default=None)
        if device is None or device not in devices:
            have = f"; it has GPU {', '.join(map(str, devices))}" if devices else ": the process had not used a GPU"
            raise InputError(f"it has nothing about GPU {device}{have}" if device is not None else f"it is empty{have}")
        return self._of(device, devices)

    def _reserved(self, device: int) -> int:
        return sum(_count(each.get("total_size")) for each in self._segments if _count(each.get("device")) == device)

    def _of(self, device: int, devices: tuple[int, ...]) -> MemorySnapshot:
        segments = [each for each in self._segments if _count(each.get("device")) == device]
        events = list(self._events(device))
        space = self._space(segments, {event.address: stack for event, stack in events if event.action == "alloc"})
        stacks = [stack for _, stack in (*space.held.values(), *events)]
        has_stacks = any(stack.place is not None for stack in {id(each): each for each in stacks}.values())
        settled = list(_settled(space, has_stacks=has_stacks))
        components, groups = _grouped(settled, self._module_finder())
        names = {address: (size, component) for address, size, component, _ in settled}
        reserved = sum(_count(each.get("total_size")) for each in segments)
        return MemorySnapshot(
            device=device,
            devices=devices,
            reserved_bytes=reserved,
            allocated_bytes=sum(size for size, _ in space.held.values()),
            waiting_bytes=space.waiting,
            free_blocks=space.free_blocks,
            largest_free_bytes=space.largest_free,
            private_free_bytes=space.private_free,
            segments=len(segments),
            expandable=any(each.get("is_expandable") is True for each in segments),
            groups=groups[:_MAX_GROUPS],
            components=components,
            parts=_parts(groups),
            failed=self._failed(device),
            timeline=replay([_settled_event(event, names) for event, _ in events], names, reserved),
            has_stacks=has_stacks,
            total_bytes=self._total(device),
            allowed_bytes=self._allowed(device),
        )

    def _space(self, segments: Iterable[dict[str, Any]], allocated: Mapping[int, Stack]) -> "_Space":
        space = _Space()
        for segment, address, block in _blocks(segments):
            size, state = _count(block.get("size")), block.get("state")
            if state == "inactive" and _is_private(segment):
                space.private_free += size
            elif state == "inactive":
                space.free_blocks += 1
                space.largest_free = max(space.largest_free, size)
            elif state in ("active_awaiting_free", "active_pending_free"):
                space.waiting += size
            else:
                frames = _frames_of(block)
                # an empty list: the stack was not recorded, or has no Python frame, which the history tells apart
                stack = self._stacks.stack(frames) if frames else allocated.get(address, UNRECORDED)
                space.held[address] = (size, stack)
        return space

    def _entries(self, device: int) -> Iterator[dict[str, Any]]:
        trace = self._traces[device] if device < len(self._traces) else []
        for at, entry in enumerate(_dicts(trace)):
            if at >= _MAX_EVENTS:
                raise InputError(
                    f"its history has more than {_MAX_EVENTS:,} entries; record with a smaller max_entries"
                )
            yield entry

    def _events(self, device: int) -> Iterator[tuple[Event, Stack]]:
        read = self._stacks.stack
        for entry in self._entries(device):
            stack, get = read(entry.get("frames")), entry.get
            yield Event(_action(entry), _count(get("addr")), _count(get("size")), stack.component, stack.phase), stack

    def _failed(self, device: int) -> FailedAllocation | None:
        last = None
        for entry in self._entries(device):
            last = entry if _action(entry) == "oom" else last
        if last is None:
            return None
        stack = self._stacks.stack(last.get("frames"))
        free = last.get("device_free", last.get("addr"))
        return FailedAllocation(
            tried_bytes=_count(last.get("size")),
            free_bytes=free if type(free) is int and 0 <= free < _MAX_BYTES else None,
            component=stack.component,
            phase=stack.phase,
            place=stack.place,
        )

    def _allowed(self, device: int) -> int | None:
        """Return the limit of ``set_per_process_memory_fraction``, which torch gives its observers as the capacity."""
        extra = self._data.get(EXTRA_KEY)
        failure = extra.get("failure") if isinstance(extra, dict) else None
        if not isinstance(failure, dict) or failure.get("device") != device:
            return None
        told, total = _count(failure.get("total_bytes")), self._total(device)
        return told if total is not None and 0 < told < total else None

    def _module_finder(self) -> Callable[[Stack], ModulePlace | None]:
        """Return what finds the module of a stack, once for each, when all stacks have been read."""
        extra = self._data.get(EXTRA_KEY)
        written = extra.get("time") if isinstance(extra, dict) else None
        sources = SourceFiles(self._stacks.frames, until=written if type(written) in (int, float) else None)
        known: dict[int, ModulePlace | None] = {}

        def find(stack: Stack) -> ModulePlace | None:
            if id(stack) not in known:
                known[id(stack)] = module_of(stack.frames, sources)
            return known[id(stack)]

        return find

    def _total(self, device: int) -> int | None:
        extra = self._data.get(EXTRA_KEY)
        totals = extra.get("total_bytes") if isinstance(extra, dict) else None
        found = totals.get(str(device)) if isinstance(totals, dict) else None
        return found if type(found) is int and 0 < found < _MAX_BYTES else None


@dataclass(slots=True)
class _Space:
    """The blocks of a GPU."""

    held: dict[int, tuple[int, Stack]] = field(default_factory=dict)
    """Size and stack of those that tensors hold, by address."""
    waiting: int = 0
    private_free: int = 0
    free_blocks: int = 0
    largest_free: int = 0


def _settled(space: _Space, *, has_stacks: bool) -> Iterator[tuple[int, int, StackComponent, Stack]]:
    """Yield address, size and component of each block; what autograd holds is a gradient where it has a weight's size.

    Each weight has one gradient, which may have half or twice its width.
    """
    left = Counter(size for size, stack in space.held.values() if stack.component == "weights")
    for address, (size, stack) in space.held.items():
        component: StackComponent = stack.component if has_stacks else "unknown"
        if component == "gradients or temporary":
            like = next((each for each in (size, 2 * size, size // 2) if left[each] > 0), None)
            if like is not None:
                left[like] -= 1
                component = "gradients"
        yield address, size, component, stack


def _settled_event(event: Event, names: Mapping[int, tuple[int, StackComponent]]) -> Event:
    """Return the event with the component that its block has at the end, if it is the same block."""
    size, component = names.get(event.address, (0, event.component))
    if event.component != "gradients or temporary" or component != "gradients" or size < event.size:
        return event
    return Event(event.action, event.address, event.size, component, event.phase)


def _grouped(
    blocks: Iterable[tuple[int, int, StackComponent, Stack]], module: Callable[[Stack], ModulePlace | None]
) -> tuple[dict[StackComponent, int], tuple[BlockGroup, ...]]:
    """Return the bytes of each component, and all groups, both with the largest first."""
    totals: dict[StackComponent, int] = {}
    groups: dict[object, BlockGroup] = {}
    for _, size, component, stack in blocks:
        totals[component] = totals.get(component, 0) + size
        where = module(stack)
        key = (component, stack.place, where)
        known = groups.get(key)
        groups[key] = BlockGroup(
            component=component,
            place=stack.place,
            module=where,
            bytes=size + (known.bytes if known else 0),
            blocks=1 + (known.blocks if known else 0),
            largest_bytes=max(size, known.largest_bytes if known else 0),
        )
    largest = sorted(groups.values(), key=lambda group: -group.bytes)
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    return dict(ordered), tuple(largest)


def _parts(groups: Iterable[BlockGroup]) -> dict[StackComponent, dict[ModelPart, int]]:
    found: dict[StackComponent, dict[ModelPart, int]] = {}
    for group in groups:
        if group.module is not None:
            parts = found.setdefault(group.component, {})
            parts[group.module.part] = parts.get(group.module.part, 0) + group.bytes
    return {name: dict(sorted(parts.items(), key=lambda item: -item[1])) for name, parts in found.items()}


def _blocks(segments: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int, dict[str, Any]]]:
    count = 0
    for segment in segments:
        address = _count(segment.get("address"))
        for block in _dicts(segment.get("blocks")):
            count += 1
            if type(block.get("size")) is not int:
                raise InputError("it is damaged: a block of memory in it has no size")
            if count > _MAX_BLOCKS:
                raise InputError(f"it has more than {_MAX_BLOCKS:,} blocks, which no GPU holds")
            own = block.get("address")
            yield segment, own if type(own) is int else address, block
            address += _count(block.get("size"))


def _frames_of(block: Mapping[str, Any]) -> Any:
    if "frames" in block:
        return block["frames"]
    history = block.get("history")
    first = history[0] if isinstance(history, list) and history else None
    return first.get("frames") if isinstance(first, dict) else None


def _is_private(segment: Mapping[str, Any]) -> bool:
    pool = segment.get("segment_pool_id")
    return isinstance(pool, tuple | list) and any(pool)


def _dicts(values: Any) -> Iterator[dict[str, Any]]:
    return (each for each in (values if isinstance(values, list) else ()) if isinstance(each, dict))


def _action(entry: Mapping[str, Any]) -> str:
    action = entry.get("action", "")
    return action if type(action) is str else ""


def _count(value: Any) -> int:
    """Return a size, address or index; 0 for what is none."""
    return value if type(value) is int and 0 <= value < 2**64 else 0
