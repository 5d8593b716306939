"""Keeps what a program writes in a folder that is thrown away: it finds its own files there, and changes no others.

Files that it writes, folders that it makes and what it removes are seen by Python's own functions as if they were where
the program put them. An audit hook refuses every other write of Python's, so that nothing is changed by mistake. What
compiled libraries and other programs write is not seen.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from .libraries import after_import

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_READS = ("stat", "lstat", "statvfs", "access", "readlink", "listdir", "scandir", "chdir")
_WRITES = ("mkdir", "truncate", "chmod", "chown", "utime", "mkfifo", "setxattr")
_REMOVES = ("remove", "unlink", "rmdir")
_MOVES = ("rename", "replace", "link")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FREE = ("/dev/", "/proc/")
_REFUSED = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "os.chmod")


class Scratch:
    """Redirects writes.

    Args:
        folder: gets the files; exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self._gone: set[str] = set()
        self._plain = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
        self._open = io.open

    def install(self) -> None:
        """Redirect from now on, for good."""
        for name in (*_READS, *_WRITES, *_REMOVES, *_MOVES, "open", "symlink"):
            if hasattr(os, name):
                setattr(os, name, self._wrapped(name))
        for module in (builtins, io):
            module.open = self._open_file  # type: ignore[attr-defined]
        shutil.rmtree = self._remove_tree  # type: ignore[assignment]
        after_import("pyarrow", self._redirect_arrow)
        sys.addaudithook(self._refuse)

    def _redirect_arrow(self, arrow: Any) -> None:
        """Redirect the files of pyarrow, which opens them below Python; data sets are kept in such."""
        for name in ("OSFile", "memory_map"):
            plain = getattr(arrow, name)

            def run(path: Any, mode: str = "r", *args: Any, plain: Any = plain, **kwargs: Any) -> Any:
                text = self._absolute(path) or ""
                return plain(self._write(text) if set(mode) & set("wa+") else self._read(text), mode, *args, **kwargs)

            setattr(arrow, name, run)

    def _is_free(self, path: str) -> bool:
        return path.startswith((f"{self.folder}/", *_FREE)) or path == self.folder

    def _own(self, path: str) -> str:
        return f"{self.folder}/files{path}"

    def _absolute(self, path: Any, folder: int | None = None) -> str | None:
        """Return the path as text; None: it is none, or a file descriptor."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        text = os.fsdecode(path)
        if not text.startswith("/"):
            parent = (
                self._plain["readlink"](f"/proc/self/fd/{folder}") if folder is not None else self._plain["getcwd"]()
            )
            text = f"{parent}/{text}"
        text = os.path.normpath(text)
        own = f"{self.folder}/files/"
        return text[len(own) - 1 :] if text.startswith(own) else text

    def _read(self, path: str) -> str:
        """Return where a path is read."""
        if self._is_free(path):
            return path
        if path in self._gone:
            return f"{self.folder}/gone"
        own = self._own(path)
        return own if self._exists(own) and not self._is_below(path, own) else path

    def _is_below(self, path: str, own: str) -> bool:
        """Return True if a folder is the program's own only as the parent of its files, and was there before."""
        return self._is_folder(own) and self._is_folder(path)

    def _write(self, path: str) -> str:
        """Return where a path is written, with its folder and what it had."""
        if self._is_free(path):
            return path
        own, parent = self._own(path), os.path.dirname(path)
        if not self._exists(os.path.dirname(own)):
            if parent in self._gone or not self._is_folder(parent):
                raise FileNotFoundError(2, "No such file or directory", path)
            self._make_folders(os.path.dirname(own))
        if not self._exists(own) and path not in self._gone and self._is_file(path):
            self._copy(path, own)
        self._gone.discard(path)
        return own

    def _copy(self, path: str, target: str) -> None:
        with self._open(path, "rb") as source, self._open(target, "wb") as copy:
            shutil.copyfileobj(source, copy)

    def _make_folders(self, path: str) -> None:
        if not self._exists(path):
            self._make_folders(os.path.dirname(path))
            self._plain["mkdir"](path)

    def _exists(self, path: str) -> bool:
        try:
            self._plain["stat"](path)
        except (OSError, ValueError):
            return False
        return True

    def _is_folder(self, path: str) -> bool:
        try:
            return bool((self._plain["stat"](path).st_mode & 0o170000) == 0o040000)
        except (OSError, ValueError):
            return False

    def _is_file(self, path: str) -> bool:
        return self._exists(path) and not self._is_folder(path)

    def _wrapped(self, name: str) -> Callable[..., Any]:
        plain = self._plain[name]

        @functools.wraps(plain)
        def run(*args: Any, **kwargs: Any) -> Any:
            path = self._absolute(args[0] if args else kwargs.pop("path", "."), kwargs.pop("dir_fd", None))
            if path is None:
                return plain(*args, **kwargs)
            rest = args[1:]
            if name == "open":
                flags = rest[0] if rest else kwargs["flags"]
                return plain(self._write(path) if flags & _WRITE_FLAGS else self._read(path), *rest, **kwargs)
            if name in _REMOVES:
                return self._remove(path, plain)
            if name == "mkdir" and self._exists(self._read(path)):
                raise FileExistsError(17, "File exists", path)
            if name == "symlink":
                return plain(args[0], self._write(self._absolute(args[1]) or ""))
            if name in _MOVES:
                return self._move(name, path, self._absolute(rest[0]) or "")
            if name in ("listdir", "scandir") and not self._is_free(path) and self._is_folder(path):
                return self._merged(name, path)
            return plain((self._write if name in _WRITES else self._read)(path), *rest, **kwargs)

        return run

    def _merged(self, name: str, path: str) -> Any:
        own = self._own(path)
        if name == "listdir":
            names = set(self._plain[name](path)) | (set(self._plain[name](own)) if self._exists(own) else set())
            return sorted(each for each in names if f"{path}/{each}" not in self._gone)
        return self._plain[name](path)

    def _remove(self, path: str, plain: Callable[..., Any]) -> None:
        place = self._read(path)
        if not self._exists(place):
            raise FileNotFoundError(2, "No such file or directory", path)
        if place != path or self._is_free(path):
            plain(place)
        if not self._is_free(path):
            self._gone.add(path)

    def _remove_tree(self, path: Any, *_: Any, **__: Any) -> None:
        text = self._absolute(path)
        if text is not None and not self._is_free(text):
            self._gone.add(text)

    def _move(self, name: str, path: str, target: str) -> None:
        source = self._read(path)
        if source == path and not self._is_free(path):
            self._copy(path, self._write(target))
        else:
            self._plain[name](source, self._write(target))
        if name != "link" and not self._is_free(path):
            self._gone.add(path)

    def _open_file(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        path = self._absolute(file)
        if path is None:
            return self._open(file, mode, *args, **kwargs)
        if not set(mode) & set("wax+"):
            return self._open(self._read(path), mode, *args, **kwargs)
        return self._open(self._write(path), mode, *args, **kwargs)

    def _refuse(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(path, int) or not (isinstance(flags, int) and flags & _WRITE_FLAGS):
                return
        elif event not in _REFUSED:
            return
        path = args[0] if event != "os.symlink" else args[1]
        if isinstance(path, (str, bytes)):
            text = os.path.normpath(os.path.join(self._plain["getcwd"](), os.fsdecode(path)))
            if not self._is_free(text):
                raise PermissionError(13, "a rehearsal changes no files", text)
