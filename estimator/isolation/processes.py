"""All processes that one has started, through however many others."""

import os


def descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs, as far as the kernel tells (``CONFIG_PROC_CHILDREN``)."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:  # it has ended
        pass
    return found + [each for child in found for each in descendants(child)]
