"""A view of the files for the program's Python, where the kernel gives none: whatever it changes, none of them changes.

The program's paths stand below a folder that is thrown away: ``/home/ana`` is ``files/home/ana``. What is real is a
link there, to its path after a second slash; a folder's has a slash in the end, too. Before a folder is changed, its
link becomes a folder of links; before a file is changed, its link becomes a copy. The kernel follows the links, and
processes that fork see the same files. Other programs and compiled libraries see them by relative paths; by absolute
ones, what is real.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import importlib
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .imports import after_import

_SEEN = ("stat", "statvfs", "access", "listdir", "scandir", "chdir", "getxattr", "listxattr")
_CHANGING = ("open", "truncate", "chmod", "chown", "lchown", "utime", "setxattr", "removexattr")
_FUNCTIONS = {
    **dict.fromkeys(_SEEN, ("_seen",)),
    **dict.fromkeys(("lstat", "readlink"), ("_itself",)),
    **dict.fromkeys(("mkdir", "mkfifo", "mknod"), ("_made",)),
    **dict.fromkeys(("rmdir", "unlink", "remove"), ("_entry",)),
    **dict.fromkeys(("rename", "replace"), ("_entry", "_entry")),
    **dict.fromkeys(_CHANGING, ("_own",)),
    "link": ("_own", "_made"),
    "symlink": ("_stored", "_made"),
}
"""Which method of ``Scratch`` tells where each path of a function of ``os`` stands."""
_ON_LINKS = ("lchown", "rename", "replace")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FREE = ("/dev/", "/proc/", "/sys/")
_AT_FDCWD, _EXCHANGE = -100, 2


class Scratch:
    """Redirects Python's functions.

    Args:
        folder: gets the files; exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self._files = f"{self.folder}/files"
        self._os = SimpleNamespace(**vars(os))
        self._open = io.open
        os.mkdir(self._files)
        self._fill(self._files, "/")

    def install(self) -> None:
        """Redirect from now on, for good; also what modules have kept."""
        os.chdir(self._own(os.getcwd()))  # other programs find it, too; a keeper that comes later sees no listing
        changed = {getattr(os, name): self._redirected(name) for name in _FUNCTIONS if hasattr(os, name)}
        for group in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            group.update([new for plain, new in changed.items() if plain in group])
        changed[os.getcwd] = lambda: self._absolute("")
        changed[os.getcwdb] = lambda: os.fsencode(self._absolute(""))
        changed[io.open] = self._open_file
        changed[io.open_code] = lambda path: self._open_file(path, "rb")
        by_id = {id(plain): new for plain, new in changed.items()}
        modules = [module for name, module in list(sys.modules.items()) if name not in {"posix", "_io"}]
        keepers = [each for module in modules if module.__name__.startswith(("pathlib", "glob"))
                   for each in vars(module).values() if isinstance(each, type)]  # fmt: skip
        for owner in (*modules, *keepers):
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                new = by_id.get(id(getattr(value, "__func__", value) if owner in keepers else value))
                if new is not None:
                    setattr(owner, name, staticmethod(new) if owner in keepers else new)
        importlib.reload(tempfile)  # it keeps some as defaults
        finder: Any = importlib._bootstrap_external
        finder._os, finder._io, sys.dont_write_bytecode = os, io, True
        after_import("pyarrow", self._redirect_arrow)
        after_import("sqlite3", self._redirect_sqlite)

    def refuse(self) -> None:
        """Refuse what Python's other functions would change, where no keeper does."""
        sys.addaudithook(self._audit)

    def _absolute(self, path: Any, folder: int | None = None) -> str:
        """Return a path as the program knows it."""
        base = self._os.readlink(f"/proc/self/fd/{folder}") if folder is not None else self._os.getcwd()
        text = f"/{os.path.normpath(os.path.join(base, os.fsdecode(path))).lstrip('/')}"
        return text[len(self._files) :] or "/" if f"{text}/".startswith(f"{self._files}/") else text

    def _is_free(self, path: str) -> bool:
        return f"{path}/".startswith((f"{self.folder}/", *_FREE))

    def _seen(self, path: str) -> str:
        """Return where to look for what is at a path, or behind it if it is a link."""
        return path if self._is_free(path) else f"{self._files}{path}"

    def _itself(self, path: str) -> str:
        """Return where to look for what is at a path, a link or not."""
        target = self._link(self._seen(path))
        return target[1:] if target.startswith("//") else self._seen(path)

    def _made(self, path: str) -> str:
        """Return where a path is made; one that exists is not."""
        return self._seen(path) if os.path.lexists(path) else self._named(path)

    def _entry(self, path: str) -> str:
        """Return where a path can be removed, or another moved to it."""
        place = self._named(path)
        target = self._link(place)
        if target.startswith("//") and target.endswith("/"):
            self._take(place, target)
        return place

    def _named(self, path: str) -> str:
        return path if self._is_free(path) else f"{self._own(os.path.dirname(path))}/{os.path.basename(path)}"

    def _own(self, path: str, *, follows: bool = True, is_emptied: bool = False) -> str:
        """Return where a path can be changed: if it is real, it becomes the program's own."""
        if path == "/":
            return self._files
        place = self._named(path)
        target = self._link(place)
        if target.startswith("//"):
            self._take(place, target, is_emptied=is_emptied)
        elif target and follows:
            return self._own(self._absolute(os.path.join(os.path.dirname(place), target)), is_emptied=is_emptied)
        return place

    def _link(self, place: str) -> str:
        """Return what a link leads to; "": it is none."""
        try:
            return str(self._os.readlink(place))
        except FileNotFoundError:
            real = self._absolute(place)
            with contextlib.suppress(OSError):
                if not self._os.access(os.path.dirname(real), os.R_OK):  # a folder that is not listed may be entered
                    target = f"/{real}/" if stat.S_ISDIR(self._os.stat(real).st_mode) else f"/{real}"
                    self._os.symlink(target, place)
                    return target
            return ""
        except (OSError, ValueError):
            return ""

    def _take(self, place: str, real: str, *, is_emptied: bool = False) -> None:
        """Put a folder of links, or a copy, where a link to a real one is."""
        part = f"{self.folder}/part"
        with self._open(f"{self.folder}/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._link(place) != real:
                return  # another thread or process has done it
            if is_emptied and not real.endswith("/"):
                self._os.unlink(place)
                self._open(place, "x").close()
                return
            found = self._os.stat(real)
            if stat.S_ISDIR(found.st_mode):
                self._os.mkdir(part)
                self._fill(part, real[1:])
            elif stat.S_ISREG(found.st_mode):
                with self._open(part, "wb") as copy, self._open(real, "rb") as source:
                    shutil.copyfileobj(source, copy, 1 << 20)
            else:
                return
            self._os.chmod(part, stat.S_IMODE(found.st_mode) | stat.S_IRWXU)
            self._os.utime(part, ns=(found.st_atime_ns, found.st_mtime_ns))
            paths = os.fsencode(part), os.fsencode(place)
            if ctypes.CDLL(None).renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE) == 0:
                self._os.unlink(part)  # other threads have found one or the other
            else:
                self._os.unlink(place)
                self._os.rename(part, place)

    def _fill(self, place: str, real: str) -> None:
        with contextlib.suppress(PermissionError), self._os.scandir(real) as entries:
            for each in entries:
                target = f"/{each.path}/" if each.is_dir(follow_symlinks=False) else f"/{each.path}"
                if each.is_symlink():
                    target = self._stored(self._os.readlink(each.path))
                self._os.symlink(target, f"{place}/{each.name}")

    def _stored(self, target: str) -> str:
        """Return what a link holds that leads to a path of the program."""
        return self._seen(self._absolute(target)) if target.startswith("/") else target

    def _redirected(self, name: str) -> Callable[..., Any]:
        """Return a function of ``os`` for paths of the program."""
        plain, methods = getattr(self._os, name), _FUNCTIONS[name]
        words = (("src", "src_dir_fd"), ("dst", "dst_dir_fd")) if len(methods) == 2 else (("path", "dir_fd"),)

        @functools.wraps(plain)
        def run(*args: Any, **kwargs: Any) -> Any:
            given = [*args[: len(words)], *(kwargs.pop(word, None) for word, _ in words[len(args) :])]
            rest, folder = args[len(words) :], kwargs.pop("dir_fd", None)
            folders = [kwargs.pop(word, folder) for _, word in words]
            if name in {"listdir", "scandir"} and isinstance(given[0], int):
                given, folders = ["."], given
            elif name in {"listdir", "scandir", "listxattr"} and given[0] is None:
                given = ["."]
            flags = kwargs.get("flags", rest[0] if rest else 0) if name == "open" else 0
            follows = kwargs.get("follow_symlinks", name not in _ON_LINKS) and not flags & os.O_NOFOLLOW

            def place(path: Any, folder: int | None, method: str) -> Any:
                if not isinstance(path, (str, bytes, os.PathLike)) or not os.fspath(path):
                    return path
                if name == "open" and not flags & _WRITE_FLAGS:
                    method = "_seen"
                elif name in {"rename", "replace"} and self._is_free(self._absolute(given[1])):
                    method = "_own"  # a link to a real file is none for what is not redirected
                if method == "_own":
                    found = self._own(
                        self._absolute(path, folder), follows=follows, is_emptied=bool(flags & os.O_TRUNC)
                    )
                elif method == "_stored":
                    found = self._stored(os.fsdecode(path))
                else:
                    method = "_itself" if method == "_seen" and not follows else method
                    found = getattr(self, method)(self._absolute(path, folder))
                return os.fsencode(found) if isinstance(os.fspath(path), bytes) else found

            try:
                result = plain(*map(place, given, folders, methods), *rest, **kwargs)
            except OSError as error:
                if error.filename is not None:
                    error.filename = given[0]
                if error.filename2 is not None:
                    error.filename2 = given[1]
                raise
            if name == "scandir":
                return _Entries(result, None if isinstance(folders[0], int) else given[0])
            if name == "readlink" and os.fsdecode(result).startswith(f"{self._files}/"):
                text = self._absolute(result)
                return os.fsencode(text) if isinstance(result, bytes) else text
            return result

        return run

    def _open_file(self, file: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < 7 and kwargs.get("opener") is None:  # its last
            kwargs["opener"] = lambda path, flags: os.open(path, flags, 0o666)
        return self._open(file, *args, **kwargs)

    def _redirect_arrow(self, arrow: Any) -> None:
        """Redirect the files of pyarrow, which opens them below Python; data sets are kept in such."""
        for name in ("OSFile", "memory_map"):
            plain = getattr(arrow, name)

            def run(path: Any, mode: str = "r", *args: Any, plain: Any = plain, **kwargs: Any) -> Any:
                place = self._own if set(mode) & set("wa+") else self._seen
                return plain(place(self._absolute(path)), mode, *args, **kwargs)

            setattr(arrow, name, run)

    def _redirect_sqlite(self, module: Any) -> None:
        """Redirect databases, with the changes that stand beside one."""
        plain = module.connect

        @functools.wraps(plain)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            text = os.fsdecode(database)
            if text and not text.startswith((":memory:", "file:")):
                database, _ = [self._own(self._absolute(f"{text}{end}")) for end in ("", "-wal")]
            return plain(database, *args, **kwargs)

        module.connect = module.dbapi2.connect = connect

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        name = event.replace("os.", "")
        if name in {*_SEEN, "lstat", "readlink"} or (name == "open" and not (args[2] or 0) & _WRITE_FLAGS):
            return
        paths = args[: len(_FUNCTIONS.get(name, ()))]
        for path in paths[1:] if name in {"link", "symlink"} else paths:
            is_opened_next = sys._getframe(1).f_code is Scratch._open_file.__code__
            if isinstance(path, (str, bytes)) and not is_opened_next:
                text = os.path.normpath(os.path.join(self._os.getcwd(), os.fsdecode(path)))
                if not self._is_free(text):
                    raise PermissionError(13, "a rehearsal must not change files", text)


class _Entries:
    """What ``os.scandir`` returns, with links to real files told as what they lead to."""

    def __init__(self, entries: Any, folder: Any) -> None:
        self._entries, self._folder = entries, folder
        self.close = entries.close

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> _Entry:
        return _Entry(next(self._entries), self._folder)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Entry(os.PathLike):  # type: ignore[type-arg]
    """An ``os.DirEntry``."""

    def __init__(self, entry: Any, folder: Any) -> None:
        self._entry, self.name, self._full = entry, entry.name, entry.path
        self.path = self.name if folder is None else os.path.join(folder, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._full, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_symlink(self) -> bool:
        return bool(self._entry.is_symlink() and os.path.islink(self._full))

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is("is_dir", stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is("is_file", stat.S_ISREG, follow_symlinks)

    def is_junction(self) -> bool:
        return False

    def _is(self, name: str, test: Callable[[int], bool], follows: bool) -> bool:
        if not self._entry.is_symlink():
            return bool(getattr(self._entry, name)())
        with contextlib.suppress(OSError):
            return test(self.stat(follow_symlinks=follows).st_mode)
        return False
