"""Calls of NVML for one device, and its error codes as sentences: for the machine, for one device, for one field.

Refusals are remembered, so that a useless call is not repeated at every tick.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from vramtop.estimator.common.errors import CannotTellError

from ...host.kernel_files import file_text
from ...snapshot.figures import ASLEEP, NOT_LISTED, Fault

RETRY_REFUSED_SECONDS = 60.0
"""Waiting time before a call that was refused permanently is tried again."""


class RefusedError(Exception):
    """The driver does not report one figure.

    Args:
        code: the driver's error code.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class DeviceLostError(Exception):
    """The device as a whole does not answer.

    Args:
        code: the driver's error code.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class DeviceCalls:
    """Calls for one device. Errors of the whole machine (``MACHINE_CODES``) are raised as pynvml's own exceptions.

    Args:
        nvml: the ``pynvml`` module, initialised.
        clock: monotonic seconds.
    """

    def __init__(self, nvml: Any, *, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self.pending_call: str | None = None
        """The call that is running; may be read from another thread."""
        self._refused: dict[str, tuple[str, float]] = {}

    def query(self, key: str, calls: tuple[str, ...], *args: Any, valid: Callable[[Any], bool] = lambda _: True) -> Any:
        """Return the first valid answer of several versions of a call.

        Args:
            key: under which a refusal is remembered.
            calls: pynvml's names for it, in order of preference; later ones are for drivers without the earlier ones.
            args: arguments of each of them.
            valid: returns True if an answer is possible.

        Raises:
            RefusedError: none of them gave a valid answer, now or less than a minute ago.
            DeviceLostError: the device as a whole does not answer.
        """
        code, until = self._refused.get(key, ("", 0.0))
        if code and self._clock() < until:
            raise RefusedError(code)
        for call in calls:
            try:
                answer = self.call(call, *args)
            except RefusedError as refused:
                code = refused.code
                if code != "FUNCTION_NOT_FOUND":
                    break
            else:
                if valid(answer):
                    self._refused.pop(key, None)
                    return answer
                code = "IMPLAUSIBLE"
        if code in UNSUPPORTED_CODES or code == "NO_PERMISSION":
            self._refused[key] = code, self._clock() + RETRY_REFUSED_SECONDS
        raise RefusedError(code)

    def known(self, call: str, *args: Any) -> Any:
        """Make one call; returns None if the driver does not report the figure.

        Raises:
            DeviceLostError: the device as a whole does not answer.
        """
        try:
            return self.call(call, *args)
        except RefusedError:
            return None

    def call(self, call: str, *args: Any) -> Any:
        """Make one call; a call that this pynvml lacks counts as one that the driver lacks.

        Raises:
            RefusedError: it gave no answer.
            DeviceLostError: the device as a whole does not answer.
        """
        function = getattr(self._nvml, call, None)
        if function is None:
            raise RefusedError("FUNCTION_NOT_FOUND")
        self.pending_call = call
        try:
            return function(*args)
        except UnicodeDecodeError as error:  # pynvml decodes all text as UTF-8
            return error.object.decode(errors="replace")
        except self._nvml.NVMLError as error:
            code = code_of(self._nvml, error)
            if code in MACHINE_CODES:
                raise
            raise (DeviceLostError if code in DEVICE_CODES else RefusedError)(code) from None
        finally:
            self.pending_call = None


DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
OWN_MAPS_FILE = Path("/proc/self/maps")
UNSUPPORTED_CODES = frozenset({"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"})
"""The call fails in the same way every time."""
DEVICE_CODES = frozenset({"GPU_IS_LOST", "RESET_REQUIRED"})
"""The whole device fails, whatever was called."""
MACHINE_CODES = frozenset({"UNINITIALIZED", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"})
"""NVML as a whole fails, whatever was called."""
_DRIVER_MESSAGES = {
    "LIBRARY_NOT_FOUND": "no NVIDIA driver here: libnvidia-ml.so.1 was not found; install the driver, or start the "
    "container with the NVIDIA runtime (docker run --gpus all)",
    "DRIVER_NOT_LOADED": "the NVIDIA driver is installed but its kernel module is not loaded; load it with "
    "'sudo modprobe nvidia' or reboot",
    "NO_PERMISSION": "this user may not open the NVIDIA devices; check who may read and write /dev/nvidiactl and "
    "/dev/nvidia0",
    "UNINITIALIZED": "the NVIDIA driver was shut down and does not start again; try again, or reload its kernel module",
}
_DEVICE_MESSAGES = {
    "GPU_IS_LOST": "the GPU no longer answers: it has fallen off the bus or is otherwise inaccessible; the kernel log "
    "says why, and it needs a GPU reset or a reboot",
    "RESET_REQUIRED": "the GPU must be reset before it can be used again (nvidia-smi --gpu-reset)",
    "NO_PERMISSION": "this user may not open this GPU",
    NOT_LISTED: "the driver no longer lists this GPU",
    "UNKNOWN": "the driver cannot reach this GPU (UNKNOWN); the kernel log (dmesg) may say why",
    ASLEEP: "this GPU is asleep to save power; vramtop does not query it, as that would wake it",
}
_FIELD_MESSAGES = {
    "NOT_SUPPORTED": "this GPU does not report {what}",
    "FUNCTION_NOT_FOUND": "the installed driver is too old to report {what}",
    "ARGUMENT_VERSION_MISMATCH": "the installed driver is too old to report {what}",
    "NO_PERMISSION": "the driver does not let this user read {what}",
    "IMPLAUSIBLE": "the driver's figures for {what} are implausible",
}


class NoDriverError(CannotTellError):
    """NVML cannot be used on this machine, or not now."""

    title = "No NVIDIA driver"


def code_of(nvml: Any, error: Any) -> str:
    """Return the code of an ``NVMLError``, such as ``GPU_IS_LOST``; ``ERROR_1234`` if pynvml has no name for it."""
    return _codes(nvml).get(error.value, f"ERROR_{error.value}")


@cache
def _codes(nvml: Any) -> dict[int, str]:
    prefix = "NVML_ERROR_"
    return {value: name.removeprefix(prefix) for name, value in vars(nvml).items() if name.startswith(prefix)}


def no_driver_error(nvml: Any, error: Any, *, was_open: bool = False) -> NoDriverError:
    """Return the exception for an NVML that cannot be used.

    Args:
        nvml: the ``pynvml`` module.
        error: its ``NVMLError``.
        was_open: NVML worked earlier in this process, which keeps the library that it has loaded.
    """
    code = code_of(nvml, error)
    if code == "LIB_RM_VERSION_MISMATCH":
        return NoDriverError(_mismatch(_library_version(nvml), _kernel_version(), was_open=was_open))
    return NoDriverError(
        _DRIVER_MESSAGES.get(
            code, f"the NVIDIA driver could not be started ({code}); the kernel log (dmesg) may say why"
        )
    )


def driver_hang_error(call: str, seconds: float) -> NoDriverError:
    """Return the exception for a driver that hangs while it is started.

    Args:
        call: that is running.
        seconds: for which it has been running.
    """
    return NoDriverError(
        f"the NVIDIA driver hangs: {call} has not returned for {seconds:.0f} s; the kernel log (dmesg) may say why"
    )


def device_fault(code: str) -> Fault:
    """Return a fault of a whole device."""
    return Fault(
        field=None, code=code, message=_DEVICE_MESSAGES.get(code, f"the driver cannot reach this GPU ({code})")
    )


def field_fault(field: str, code: str, *, what: str) -> Fault:
    """Return a fault of one field of a reading.

    Args:
        field: its name in ``GpuReading``.
        code: the driver's error code.
        what: the field in words, such as ``its temperature``.
    """
    sentence = _FIELD_MESSAGES.get(code, "the driver could not read {what} ({code})")
    return Fault(field=field, code=code, message=sentence.format(what=what, code=code))


def _mismatch(library: str | None, kernel: str | None, *, was_open: bool) -> str:
    versions = f"(library {library or 'unknown'}, kernel module {kernel or 'unknown'})"
    if was_open:
        return (
            f"the NVIDIA driver was updated while vramtop ran, and the old library is still loaded in it {versions}; "
            "quit vramtop and start it again"
        )
    if library and kernel and _numbers(library) < _numbers(kernel):
        return (
            f"the NVIDIA library here is older than the loaded kernel module {versions}; start the container again, "
            "or install the library of the loaded driver"
        )
    return (
        f"the NVIDIA driver was updated while its old kernel module stayed loaded {versions}; reboot, or unload and "
        "load the nvidia modules"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _library_version(nvml: Any) -> str | None:
    """Return the library's version, which needs no initialised driver: ``550.54.15`` from ``12.550.54.15``."""
    try:
        version = str(nvml.nvmlSystemGetNVMLVersion())
    except nvml.NVMLError:
        named = re.search(r"/libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)\b", file_text(OWN_MAPS_FILE))  # the loaded file
        return named[1] if named else None
    cuda, _, driver = version.partition(".")
    return driver if "." in driver and len(cuda) <= 2 else version


def _kernel_version() -> str | None:
    """Return the kernel module's version, from the line ``NVRM version: NVIDIA UNIX ... 535.104.05  Sat Aug ...``."""
    text = file_text(DRIVER_VERSION_FILE)
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return match[1] if match else None
