"""Asking NVML: one call at a time, its refusals remembered so that a call known to be useless is not made each tick."""

from collections.abc import Callable
from typing import Any

from .error_messages import DEVICE_CODES, MACHINE_CODES, UNSUPPORTED_CODES, code_of

RETRY_REFUSED_SECONDS = 60.0
"""A call that was refused for good is tried again after this."""


class RefusedError(Exception):
    """One figure is not to be had.

    Args:
        code: the driver's word.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class DeviceLostError(Exception):
    """The device as a whole does not answer.

    Args:
        code: the driver's word.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class DeviceCalls:
    """Calls of one device. What concerns the machine as a whole (``MACHINE_CODES``) stays pynvml's own exception.

    Args:
        nvml: the ``pynvml`` module, initialised.
        clock: seconds that never run backwards.
    """

    def __init__(self, nvml: Any, *, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self.pending_call: str | None = None
        """The call that has not come back; may be looked at from another thread."""
        self._refused: dict[str, tuple[str, float]] = {}

    def query(self, key: str, calls: tuple[str, ...], *args: Any, valid: Callable[[Any], bool] = lambda _: True) -> Any:
        """The first valid answer of several versions of a call.

        Args:
            key: under what a refusal is remembered.
            calls: pynvml's names for it, the best first; the next is for drivers that do not have this one.
            args: what each of them is called with.
            valid: whether an answer can be true.

        Raises:
            RefusedError: none of them gave an answer, now or less than a minute ago.
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

    def call(self, call: str, *args: Any) -> Any:
        """One call; one that this pynvml does not have counts as one that the driver does not have.

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
        except UnicodeDecodeError as error:  # pynvml takes every text for UTF-8
            return error.object.decode(errors="replace")
        except self._nvml.NVMLError as error:
            code = code_of(self._nvml, error)
            if code in MACHINE_CODES:
                raise
            raise (DeviceLostError if code in DEVICE_CODES else RefusedError)(code) from None
        finally:
            self.pending_call = None
