"""The MIG devices of one GPU, as NVML lists them: which there are, and how much of its memory each has free."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...host.plain_text import sanitize_line
from ...snapshot.snapshot import Fault, MigReading
from .device_calls import DeviceCalls, RefusedError
from .error_messages import UNSUPPORTED_CODES, field_fault
from .processes import MAX_GPU_BYTES

MIG_MODE_INTERVAL_SECONDS = 10.0
"""Only an administrator changes it."""
LAYOUT_INTERVAL_SECONDS = 5.0
"""MIG devices are made and destroyed while the driver runs, and NVML may use a handle again for another one."""

_NO_INSTANCE = 0xFFFFFFFF
_EMPTY_SLOT = ("NOT_FOUND", "INVALID_ARGUMENT")
_MEMORY_INFO = ("nvmlDeviceGetMemoryInfo",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    handle: Any
    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str | None


class NvmlMig:
    """The MIG devices of one GPU. Where it has no MIG mode, that is asked once.

    Args:
        nvml: the ``pynvml`` module, initialised.
        calls: of the GPU.
        clock: seconds that never run backwards.
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
        """Memory of each GPU instance, in bytes, as it was read last."""
        self._strange: set[int] = set()
        """Instances that processes were said to run in, and that are not listed."""
        self._refused: str | None = None
        """The driver's word for why the list may lack devices."""

    def connect(self, handle: Any) -> None:
        """Begin anew with this handle of the GPU."""
        self._handle = handle
        self._on, self._mode_at, self._layout_at = False, 0.0, 0.0
        self._slots, self._strange = (), set()

    def read(self) -> tuple[tuple[MigReading, ...] | None, tuple[Fault, ...]]:
        """The devices as they are now, and what could not be read; None where MIG mode is off or not known.

        Raises:
            DeviceLostError: the GPU does not answer.
        """
        if not self._is_on():
            return None, ()
        known = self._clock() < self._layout_at
        if not known:
            self._find()
        readings, code = self._read_memory()
        if known and (code is not None or self._has_changed(readings)):  # perhaps those devices are no more
            self._mode_at = 0.0
            if not self._is_on():
                return None, ()
            self._find()
            readings, code = self._read_memory()
        self._totals = {each.gpu_instance: each.total_bytes for each in readings if each.total_bytes is not None}
        what = "the memory of its MIG devices" if self._refused is None else "its MIG devices"
        code = self._refused or code
        return readings, () if code is None else (field_fault("mig", code, what=what),)

    def processes(self, key: str, calls: tuple[str, ...], valid: Callable[[Any], bool]) -> list[Any] | None:
        """NVML's entries over all devices, for who may not ask for those of the whole GPU; None: not to be had.

        Args:
            key: of the list.
            calls: pynvml's names for it.
            valid: whether an answer can be true.
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

    def look_for(self, instances: Iterable[int | None]) -> None:
        """Look for new devices at the next reading where a process runs in a GPU instance that is not listed."""
        if not self._on:
            return
        listed = {slot.gpu_instance for slot in self._slots} | {None, _NO_INSTANCE}
        new = set(instances) - listed - self._strange
        if new:
            self._strange |= {instance for instance in new if instance is not None}
            self._layout_at = 0.0

    def _has_changed(self, readings: tuple[MigReading, ...]) -> bool:
        """A GPU instance has other memory than before: its handle means another one now."""
        return any(self._totals.get(each.gpu_instance, each.total_bytes) != each.total_bytes for each in readings)

    def _is_on(self) -> bool:
        if self._clock() >= self._mode_at:
            self._mode_at = self._clock() + MIG_MODE_INTERVAL_SECONDS
            try:
                self._on = bool(self._calls.call("nvmlDeviceGetMigMode", self._handle)[0])  # now; [1] after a reset
            except RefusedError as refused:
                if refused.code in UNSUPPORTED_CODES:
                    self._on, self._mode_at = False, math.inf
        return self._on

    def _find(self) -> None:
        """Slots may be sparse."""
        self._layout_at = self._clock() + LAYOUT_INTERVAL_SECONDS
        self._refused = None
        slots = []
        try:
            count = int(self._calls.call("nvmlDeviceGetMaxMigDeviceCount", self._handle))
        except RefusedError as refused:
            self._refused, count = refused.code, 0
        for number in range(count):
            try:
                slots.append(self._slot(number))
            except RefusedError as refused:
                if refused.code not in _EMPTY_SLOT:
                    self._refused = refused.code
        self._slots = tuple(slots)
        if not slots:
            self._mode_at = 0.0  # perhaps it was switched off

    def _slot(self, number: int) -> _Slot:
        call = self._calls.call
        device = call("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, number)
        return _Slot(
            handle=device,
            uuid=sanitize_line(str(call("nvmlDeviceGetUUID", device))) or f"slot {number}",
            gpu_instance=int(call("nvmlDeviceGetGpuInstanceId", device)),
            compute_instance=int(call("nvmlDeviceGetComputeInstanceId", device)),
            profile=self._profile(device),
        )

    def _profile(self, device: Any) -> str | None:
        """The last part of its name: ``1g.10gb`` of ``NVIDIA A100-SXM4-80GB MIG 1g.10gb``."""
        try:
            name = sanitize_line(self._calls.call("nvmlDeviceGetName", device)) or ""
        except RefusedError:
            return None
        _, mark, profile = name.rpartition("MIG ")
        return profile or None if mark else None

    def _read_memory(self) -> tuple[tuple[MigReading, ...], str | None]:
        """All devices with their memory; it belongs to the GPU instance, and is asked once for each of these."""
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
            return _plausible(self._calls.call("nvmlDeviceGetMemoryInfo", slot.handle)), None
        return _plausible(info), int(info.reserved)


def _plausible(info: Any) -> Any:
    """The answer, where it can be a GPU instance's memory; what it says is reserved may be the whole GPU's."""
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
