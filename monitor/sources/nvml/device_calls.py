"""Calls of NVML for one device; refusals are remembered, so that a useless call is not repeated at every tick."""

from collections.abc import Callable
from typing import Any

from .nvml_errors import DEVICE_CODES, MACHINE_CODES, UNSUPPORTED_CODES, code_of

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
