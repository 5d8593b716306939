"""Where a program's paths lead: its working folder, its home and its root, which need not be ours."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A program's view of the file system, reachable from here."""

    cwd: Path
    """Its working folder, as we reach it."""
    home: str | None = None
    """What ``~`` stands for, as we reach it."""
    root: Path | None = None
    """Its root folder, as we reach it (``/proc/PID/root`` of a container); None: ours."""
    others: tuple[Path, ...] = ()
    """Folders to look in where a relative path leads nowhere from ``cwd``; for a program whose folder is not known."""

    def path(self, text: str) -> Path:
        """A path that the program was given, as we reach it. Links are not followed: those of ``/proc`` lead home."""
        text = text.replace("\0", "")  # which no path has, but YAML can spell
        if text == "~" or text.startswith("~/"):
            return Path(os.path.normpath(f"{self.home or '~'}{text[1:]}"))
        if text.startswith("/"):
            inside = self.root is not None and not text.startswith(f"{self.root}/")
            return Path(os.path.normpath(f"{self.root}{text}" if inside else text))
        places = [Path(os.path.normpath(folder / text)) for folder in (self.cwd, *self.others)]
        return next((path for path in places if os.access(path, os.F_OK)), places[0])
