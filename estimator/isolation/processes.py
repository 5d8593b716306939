"""All processes that one has started, through however many others."""

import contextlib
import os


def descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs, as far as the kernel tells (``CONFIG_PROC_CHILDREN``)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                for child in map(int, file.read().split()):
                    found += [child, *descendants(child)]
    return found
