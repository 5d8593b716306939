"""Single questions to the driver about one GPU; a refusal becomes a fault of its field."""

from collections.abc import Callable, Sequence
from typing import Any

from ...snapshot.faults import Fault
from .device_calls import DeviceCalls, RefusedError
from .nvml_errors import field_fault

MEMORY_TEMPERATURE = 82
NVLINK_SPEED = 90
NVLINK_COUNT = 91
NVLINK_COUNTERS = (138, 139)
"""NVML's numbers of fields: KiB of data sent and received over NVLink."""
_ALL_LINKS = 0xFFFFFFFF
_FIELD_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of a field value, by NVML's number of its type."""


class Questions:
    """Asks for figures of one GPU.

    Args:
        calls: of the GPU.
        handle: of the GPU.
        clock: monotonic seconds.
    """

    def __init__(self, calls: DeviceCalls, handle: Any, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._handle = handle
        self.faults: dict[str, Fault] = {}
        """The latest fault of each field that has one."""
        self._calls = calls

    def ask(self, field: str, what: str, calls: str | tuple[str, ...], *args: Any) -> Any:
        """Return the answer; None if there is none, with a fault of the field.

        Args:
            field: of ``GpuDetails``; several questions may belong to one.
            what: the figure in words, such as ``its clocks``.
            calls: pynvml's name of the call, or several in order of preference.
            args: arguments after the handle.

        Raises:
            DeviceLostError: the GPU does not answer.
        """
        names = (calls,) if isinstance(calls, str) else calls
        try:
            answer = self._calls.query(f"{field} {names[0]} {args}", names, self._handle, *args)
        except (RefusedError, TypeError) as error:  # pynvml raises TypeError if the driver's answer is "not available"
            code = error.code if isinstance(error, RefusedError) else "NOT_SUPPORTED"
            self.faults[field] = field_fault(field, code, what=what)
            return None
        self.faults.pop(field, None)
        return answer

    def field_values(self, field: str, what: str, numbers: Sequence[int]) -> list[int | None]:
        """Return values of NVML's numbered fields, those of NVLinks summed over all links; None: unknown.

        Args:
            field: of ``GpuDetails``; gets a fault if all values are unknown.
            what: the figures in words.
            numbers: NVML's numbers.
        """
        wanted = [(number, _ALL_LINKS if number in NVLINK_COUNTERS else 0) for number in numbers]
        answers = self.ask(field, what, "nvmlDeviceGetFieldValues", wanted)
        if answers is None:
            return [None] * len(numbers)
        values = [_value(answer) for answer in answers]
        if not any(value is not None for value in values):
            self.faults[field] = field_fault(field, "NOT_SUPPORTED", what=what)
        return values


def _value(answer: Any) -> int | None:
    if answer.nvmlReturn != 0 or answer.valueType >= len(_FIELD_TYPES):
        return None
    return int(getattr(answer.value, _FIELD_TYPES[answer.valueType]))
