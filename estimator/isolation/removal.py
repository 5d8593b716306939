"""What a program leaves behind: the processes that it has started, through however many others, and a folder.

The folder is removed with all that is in it, however deep, closed or long its paths are; no link is followed.
"""

import os
import stat


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


def remove(folder: str) -> None:
    """Remove a folder as far as this user may: folders below are moved up to it one after the other, and emptied."""
    waiting, moved = [folder], 0
    while waiting:
        at = waiting.pop()
        try:
            os.chmod(at, stat.S_IRWXU)
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in os.scandir(at)]
        except OSError:  # it is not there, or another user's
            continue
        for name, is_folder in entries:
            path = f"{at}/{name}"
            try:
                if not is_folder:
                    os.unlink(path)
                    continue
                os.chmod(path, stat.S_IRWXU)
                if at != folder:
                    moved += 1
                    os.rename(path, f"{folder}/.{moved}.{name[:40]}")
                    path = f"{folder}/.{moved}.{name[:40]}"
                waiting.append(path)
            except OSError:
                continue
        if at != folder:
            _remove_empty(at)
    _remove_empty(folder)


def _remove_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:  # what is another user's stays
        pass
