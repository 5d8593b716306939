"""The file system as a program sees it: its working folder, home and root may differ from ours."""

import os
from pathlib import Path

import msgspec

_MAX_LINKS = 40
"""Linux follows as many symbolic links in one path (path_resolution(7))."""


class FilesystemView(msgspec.Struct, frozen=True, kw_only=True):
    """A program's working folder, home and root, as paths that can be opened from here."""

    cwd: Path
    """The working folder."""
    home: str | None = None
    """The folder that ``~`` stands for."""
    root: Path | None = None
    """The root folder (``/proc/PID/root`` for a container); None: the same as ours."""
    fallback_folders: tuple[Path, ...] = ()
    """Folders to search when a relative path does not exist below ``cwd``, for a program whose folder is unknown."""

    def resolve(self, text: str) -> Path:
        """Return a path that the program was given as one that can be opened from here.

        Symbolic links are followed only below another root.
        """
        text = _openable(text)
        if text == "~" or text.startswith("~/"):
            return Path(os.path.normpath(f"{self.home or '~'}{text[1:]}"))
        if text.startswith("/"):
            inside = self.root is not None and not text.startswith(f"{self.root}/")
            return self._follow_links(os.path.normpath(f"{self.root}{text}" if inside else text))
        paths = [self._follow_links(os.path.normpath(folder / text)) for folder in (self.cwd, *self.fallback_folders)]
        return next((path for path in paths if os.access(path, os.F_OK)), paths[0])

    def _follow_links(self, path: str) -> Path:
        return Path(path) if self.root is None else follow_links(self.root, path)


def follow_links(root: Path, path: str) -> Path:
    """Resolve the symbolic links of a path below another root; an absolute link would otherwise lead into our root.

    Args:
        root: the other root, as it is reached from here.
        path: a path below it.
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
            target = _link_target(root.joinpath(*done)) if links < _MAX_LINKS else None
            if target is not None:
                links += 1
                done = [] if target.startswith("/") else done[:-1]
                ahead += target.split("/")[::-1]
    return root.joinpath(*done)


def _openable(text: str) -> str:
    """Remove what no path has but YAML can spell: null characters, and surrogates that stand for no byte."""
    text = text.replace("\0", "")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _link_target(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - the exact text counts, with its slashes
    except OSError:
        return None
