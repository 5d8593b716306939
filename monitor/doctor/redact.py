"""What must not stand in a bug report: names of people and hosts, and where on the disk they keep their work."""

import os
import pwd
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

_SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/dev",
    "/nix/store",
    "/run/opengl-driver",
    "/opt/conda",
)
"""What lies there has the same name on every machine; a folder elsewhere may be named after anything."""
_TELLING = re.compile(
    r"bin|\.local|share|lib\d*|site-packages|dist-packages|python[0-9.]*|vramtop|.*\.so[0-9.]*|.*\.json"
)
_OF_NOBODY = frozenset({
    "root", "user", "admin", "nobody", "ubuntu", "debian", "fedora", "centos", "ec2-user", "jovyan", "nvidia", "linux",
    "localhost", "localdomain", "home", "python", "torch", "vramtop", "docker", "conda", "container", "none", "runner",
})  # fmt: skip
"""Accounts of images and words of the report itself: they tell nobody's name."""
_DISTINCT = 5
"""A name of so many letters is no part of another word by chance."""
_LEAST = 2
_HOMES = re.compile(r"(/(?:home|Users|homes)/)[^/\s:]+")


class Redactor:
    """Takes out what tells who and where.

    Args:
        home: of the user.
        names: of the user and of the host.
    """

    def __init__(self, home: Path, names: Iterable[str]) -> None:
        self._home = PurePosixPath(home)
        wanted = {name.lower() for name in names if len(name) >= _LEAST} - _OF_NOBODY
        parts = [
            re.escape(name) if len(name) >= _DISTINCT else rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
            for name in sorted(wanted, key=len, reverse=True)
        ]
        self._names = re.compile("|".join(parts), re.IGNORECASE) if parts else None

    def path(self, path: str | Path) -> str:
        """Where something lies, as far as it says nothing of the user: ``~/.../bin/python3``, ``/usr/lib/x.so``."""
        pure = PurePosixPath(path)
        if any(pure.is_relative_to(folder) for folder in _SYSTEM):
            return self.text(str(pure))
        kept: list[str] = []
        for part in reversed(pure.parts[1:] if pure.is_absolute() else pure.parts):
            if not _TELLING.fullmatch(part):
                break
            kept.insert(0, part)
        at_home = pure.is_relative_to(self._home)
        start = "~" if at_home else ""
        depth = len(pure.parts) - (len(self._home.parts) if at_home else 1)
        hidden = ["..."] if len(kept) < depth else []
        return self.text("/".join([start, *hidden, *kept]) or "/")

    def text(self, text: str) -> str:
        """The text without names and homes."""
        home = str(self._home)
        if len(home) > 1:
            text = re.sub(rf"{re.escape(home)}(?![^/\s:])", "~", text)
        text = _HOMES.sub(r"\1...", text)
        return self._names.sub("...", text) if self._names else text

    def everything(self, value: Any) -> Any:
        """The same for all texts in a value of JSON."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.everything(each) for key, each in value.items()}
        return [self.everything(each) for each in value] if isinstance(value, list | tuple) else value


def redactor(environ: Mapping[str, str]) -> Redactor:
    """For this user, this host."""
    names = [environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "HOST")]
    names += [socket.gethostname(), socket.gethostname().partition(".")[0]]
    try:
        entry = pwd.getpwuid(os.getuid())
        names += [entry.pw_name, *entry.pw_gecos.split(",")[0].split()]
        home = environ.get("HOME") or entry.pw_dir
    except KeyError:  # a container's user without a name
        home = environ.get("HOME") or "/"
    return Redactor(Path(home), [*names, Path(home).name])
