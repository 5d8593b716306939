"""Where a program's paths lead: its working folder, its home and its root, which need not be ours."""

import os
from dataclasses import dataclass
from pathlib import Path

_MOST_LINKS = 40
"""As Linux follows (path_resolution(7))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemView:
    """A program's view of the file system, reachable from here."""

    cwd: Path
    """Its working folder, as we reach it."""
    home: str | None = None
    """What ``~`` stands for, as we reach it."""
    root: Path | None = None
    """Its root folder, as we reach it (``/proc/PID/root`` of a container); None: ours."""
    fallback_folders: tuple[Path, ...] = ()
    """Folders to look in where a relative path leads nowhere from ``cwd``; for a program whose folder is not known."""

    def resolve(self, text: str) -> Path:
        """A path that the program was given, as we reach it. Links are followed below another root only."""
        text = text.replace("\0", "")  # which no path has, but YAML can spell
        if text == "~" or text.startswith("~/"):
            return Path(os.path.normpath(f"{self.home or '~'}{text[1:]}"))
        if text.startswith("/"):
            inside = self.root is not None and not text.startswith(f"{self.root}/")
            return self._followed(os.path.normpath(f"{self.root}{text}" if inside else text))
        places = [self._followed(os.path.normpath(folder / text)) for folder in (self.cwd, *self.fallback_folders)]
        return next((path for path in places if os.access(path, os.F_OK)), places[0])

    def _followed(self, path: str) -> Path:
        return Path(path) if self.root is None else follow_links(self.root, path)


def follow_links(root: Path, path: str) -> Path:
    """A path below another root with its links followed there: an absolute link would lead into our own root.

    Args:
        root: as it is reached from here.
        path: below it.
    """
    if not path.startswith(f"{root}/"):
        return Path(path)
    ahead = path[len(str(root)) :].split("/")[::-1]
    done: list[str] = []
    links = 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            done = done[:-1]
        elif part not in ("", "."):
            done.append(part)
            target = _link(root.joinpath(*done)) if links < _MOST_LINKS else None
            if target is not None:
                links += 1
                done = [] if target.startswith("/") else done[:-1]
                ahead += target.split("/")[::-1]
    return root.joinpath(*done)


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - its text counts, slashes and all
    except OSError:
        return None
