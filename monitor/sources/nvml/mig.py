"""The MIG devices of one GPU through NVML, with the memory of their GPU instances."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ...host.plain_text import sanitize_line
from ...snapshot.figures import Fault
from ...snapshot.snapshot import MigReading
from .device_calls import UNSUPPORTED_CODES, DeviceCalls, RefusedError, field_fault
from .process_rows import MAX_GPU_BYTES, NO_INSTANCE

MIG_MODE_INTERVAL_SECONDS = 10.0
"""Interval of queries of MIG mode, which only an administrator changes."""
LAYOUT_INTERVAL_SECONDS = 5.0
"""Interval of queries of the MIG devices, which may be created and destroyed at any time; NVML may reuse a handle."""
_EMPTY_SLOT_CODES = ("NOT_FOUND", "INVALID_ARGUMENT")
_MEMORY_INFO = ("nvmlDeviceGetMemoryInfo",)


class _Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG device in NVML's list, which may have gaps."""

    handle: Any
    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str | None


class NvmlMig:
    """The MIG devices of one GPU. If the GPU does not support MIG mode, that is queried only once.

    Args:
        nvml: the ``pynvml`` module, initialised.
        calls: of the GPU.
        clock: monotonic seconds.
    """

    def __init__(self, nvml: Any, calls: DeviceCalls, *, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._calls = calls
        self._clock = clock
        self._handle: Any = None
        self._on = False
        self._mode_at = 0.0
        self._slots: tuple[_Slot, ...] = ()
        self._layout_at = 0.0
        self._totals: dict[int, int] = {}
        """Total bytes of each GPU instance, as of the last reading."""
        self._unlisted: set[int] = set()
        """GPU instances in which processes run and that are not listed."""
        self._list_error: str | None = None
        """The driver's error code if the list may be incomplete."""

    def connect(self, handle: Any) -> None:
        """Use a new handle of the GPU."""
        self._handle = handle
        self._on, self._mode_at, self._layout_at = False, 0.0, 0.0
        self._slots, self._unlisted = (), set()

    def read(self) -> tuple[tuple[MigReading, ...] | None, tuple[Fault, ...]]:
        """Return the current readings of the devices, with faults; None if MIG mode is off or unknown.

        Raises:
            DeviceLostError: the GPU does not answer.
        """
        if not self._is_on():
            return None, ()
        known = self._clock() < self._layout_at
        if not known:
            self._list_devices()
        readings, code = self._read_memory()
        totals = ((self._totals.get(each.gpu_instance, each.total_bytes), each.total_bytes) for each in readings)
        # perhaps those devices no longer exist, or a handle refers to another GPU instance now
        if known and (code is not None or any(before != now for before, now in totals)):
            self._mode_at = 0.0
            if not self._is_on():
                return None, ()
            self._list_devices()
            readings, code = self._read_memory()
        self._totals = {each.gpu_instance: each.total_bytes for each in readings if each.total_bytes is not None}
        what = "the memory of its MIG devices" if self._list_error is None else "its MIG devices"
        code = self._list_error or code
        return readings, () if code is None else (field_fault("mig", code, what=what),)

    def processes(self, key: str, calls: tuple[str, ...], valid: Callable[[Any], bool]) -> list[Any] | None:
        """Return NVML's process entries of all MIG devices, for users who may not query those of the whole GPU.

        Args:
            key: of the list.
            calls: pynvml's names for it.
            valid: returns True if an answer is possible.

        Returns:
            None if they cannot be read.
        """
        entries: list[Any] = []
        try:
            for slot in self._slots:
                for entry in self._calls.query(f"{key} of {slot.uuid}", calls, slot.handle, valid=valid):
                    entry.gpuInstanceId, entry.computeInstanceId = slot.gpu_instance, slot.compute_instance
                    entries.append(entry)
        except RefusedError:
            return None
        return entries if self._on and self._slots else None

    def note_instances(self, instances: Iterable[int | None]) -> None:
        """Read the list again at the next reading if a process runs in a GPU instance that is not listed."""
        if not self._on:
            return
        listed = {slot.gpu_instance for slot in self._slots} | {None, NO_INSTANCE}
        new = set(instances) - listed - self._unlisted
        if new:
            self._unlisted |= {instance for instance in new if instance is not None}
            self._layout_at = 0.0

    def _is_on(self) -> bool:
        if self._clock() >= self._mode_at:
            self._mode_at = self._clock() + MIG_MODE_INTERVAL_SECONDS
            try:
                self._on = bool(self._calls.call("nvmlDeviceGetMigMode", self._handle)[0])  # now; [1] after a reset
            except RefusedError as refused:
                if refused.code in UNSUPPORTED_CODES:
                    self._on, self._mode_at = False, math.inf
        return self._on

    def _list_devices(self) -> None:
        """List the MIG devices; slots may be empty."""
        self._layout_at = self._clock() + LAYOUT_INTERVAL_SECONDS
        self._list_error = None
        slots = []
        try:
            count = int(self._calls.call("nvmlDeviceGetMaxMigDeviceCount", self._handle))
        except RefusedError as refused:
            self._list_error, count = refused.code, 0
        for number in range(count):
            try:
                slots.append(self._slot(number))
            except RefusedError as refused:
                if refused.code not in _EMPTY_SLOT_CODES:
                    self._list_error = refused.code
        self._slots = tuple(slots)
        if not slots:
            self._mode_at = 0.0  # perhaps MIG mode was switched off

    def _slot(self, number: int) -> _Slot:
        call = self._calls.call
        device = call("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, number)
        name = sanitize_line(self._calls.known("nvmlDeviceGetName", device) or "") or ""
        return _Slot(
            handle=device,
            uuid=sanitize_line(str(call("nvmlDeviceGetUUID", device))) or f"slot {number}",
            gpu_instance=int(call("nvmlDeviceGetGpuInstanceId", device)),
            compute_instance=int(call("nvmlDeviceGetComputeInstanceId", device)),
            profile=name.partition("MIG ")[2] or None,  # 1g.10gb, from NVIDIA A100-SXM4-80GB MIG 1g.10gb
        )

    def _read_memory(self) -> tuple[tuple[MigReading, ...], str | None]:
        """Return all devices with their memory, which is read once per GPU instance."""
        figures: dict[int, tuple[Any, int | None] | None] = {}
        code = None
        for slot in self._slots:
            if slot.gpu_instance not in figures:
                try:
                    figures[slot.gpu_instance] = self._memory(slot)
                except RefusedError as refused:
                    figures[slot.gpu_instance], code = None, refused.code
        return tuple(_reading(slot, figures[slot.gpu_instance]) for slot in self._slots), code

    def _memory(self, slot: _Slot) -> tuple[Any, int | None]:
        try:
            info = self._calls.query("mig memory v2", _MEMORY_INFO, slot.handle, self._nvml.nvmlMemory_v2)
        except RefusedError as refused:
            if refused.code not in UNSUPPORTED_CODES:
                raise
            return _checked(self._calls.call("nvmlDeviceGetMemoryInfo", slot.handle)), None
        return _checked(info), int(info.reserved)


def _checked(info: Any) -> Any:
    """Return memory info that is possible for a GPU instance; its reserved memory may be the whole GPU's."""
    if 0 < info.total <= MAX_GPU_BYTES and info.used <= info.total and info.free <= info.total:
        return info
    raise RefusedError("IMPLAUSIBLE")


def _reading(slot: _Slot, answer: tuple[Any, int | None] | None) -> MigReading:
    figures, reserved = answer or (None, None)
    return MigReading(
        uuid=slot.uuid,
        gpu_instance=slot.gpu_instance,
        compute_instance=slot.compute_instance,
        profile=slot.profile,
        total_bytes=None if figures is None else int(figures.total),
        used_bytes=None if figures is None else int(figures.used),
        free_bytes=None if figures is None else int(figures.free),
        reserved_bytes=reserved,
    )
