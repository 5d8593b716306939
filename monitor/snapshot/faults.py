"""Fault: what could not be read, and why.

Codes are NVML's own, or those that vramtop adds, which are named here.
"""

import msgspec

NO_ANSWER = "NO_ANSWER"
"""Fault code: a driver call has not returned; the figures of the reading are from an earlier one."""
HOST_MEMORY = "HOST_MEMORY"
"""Fault code: the GPU has no memory of its own; the figures are the host's."""
NO_DRIVER = "NO_DRIVER"
"""Fault code: this machine's GPUs cannot be read at all."""
NOT_LISTED = "NOT_LISTED"
"""Fault code: the driver listed this GPU before, and does not any more."""
ASLEEP = "ASLEEP"
"""Fault code: the GPU is suspended to save power, and not queried, as that would wake it. It is not lost."""


FIRST_SAMPLE = "FIRST_SAMPLE"
"""Fault code: the figure is a rate, and there is one sample so far."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A failure to read something, with its reason."""

    field: str | None
    """The field of the reading that is unknown because of it; None: the fault is of the whole device or machine."""
    code: str
    """The driver's error code, such as ``NOT_SUPPORTED``."""
    message: str
    """One sentence for the user."""
