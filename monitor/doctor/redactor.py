"""Removes from a bug report the names of users and hosts, and the folders in which users keep their work."""

import os
import pwd
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

_SAME_EVERYWHERE = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/dev", "/nix/store", "/run/opengl-driver", "/opt/conda"),
)
"""Folders whose contents have the same names on every machine; a folder elsewhere may be named after anything."""
_GENERIC_PATH_PART = re.compile(
    r"bin|\.local|share|lib\d*|site-packages|dist-packages|python[0-9.]*|vramtop|.*\.so[0-9.]*|.*\.json"
)
_GENERIC_NAMES = frozenset({
    "root", "user", "admin", "nobody", "ubuntu", "debian", "fedora", "centos", "ec2-user", "jovyan", "nvidia", "linux",
    "localhost", "localdomain", "home", "python", "torch", "vramtop", "docker", "conda", "container", "none", "runner",
})  # fmt: skip
"""Accounts of images and words of the report itself, which identify no user or host."""
_MIN_DISTINCT_CHARACTERS = 5
"""A name of this length is not a part of another word by chance."""
_MIN_NAME_CHARACTERS = 2
_HOMES = re.compile(r"(/(?:home|Users|homes)/)[^/\s:]+")


class Redactor:
    """Removes names and home folders.

    Args:
        home: home folder of the user.
        names: names of the user and of the host.
    """

    def __init__(self, home: Path, names: Iterable[str]) -> None:
        self._home = PurePosixPath(home)
        wanted = {name.lower() for name in names if len(name) >= _MIN_NAME_CHARACTERS} - _GENERIC_NAMES
        parts = [
            re.escape(name)
            if len(name) >= _MIN_DISTINCT_CHARACTERS
            else rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
            for name in sorted(wanted, key=len, reverse=True)
        ]
        self._names = re.compile("|".join(parts), re.IGNORECASE) if parts else None

    def path(self, path: str | Path) -> str:
        """Return a path without the parts that may name a user: ``~/.../bin/python3``, ``/usr/lib/x.so``."""
        pure = PurePosixPath(path)
        if any(pure.is_relative_to(folder) for folder in _SAME_EVERYWHERE):
            return self.text(str(pure))
        at_home = pure.is_relative_to(self._home)
        start = "~" if at_home else ""
        parts = pure.relative_to(self._home).parts if at_home else pure.parts[1 if pure.is_absolute() else 0 :]
        kept: list[str] = []
        for part in reversed(parts):
            if not _GENERIC_PATH_PART.fullmatch(part):
                break
            kept.insert(0, part)
        hidden = ["..."] if len(kept) < len(parts) else []
        return self.text("/".join([start, *hidden, *kept]) or "/")

    def text(self, text: str) -> str:
        """Return the text without names and home folders."""
        home = str(self._home)
        if len(home) > 1:
            text = re.sub(rf"{re.escape(home)}(?![^/\s:])", "~", text)
        text = _HOMES.sub(r"\1...", text)
        return self._names.sub("...", text) if self._names else text

    def redact_json(self, value: Any) -> Any:
        """Return a JSON value with all of its texts redacted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.redact_json(each) for key, each in value.items()}
        return [self.redact_json(each) for each in value] if isinstance(value, list | tuple) else value


def make_redactor(environ: Mapping[str, str]) -> Redactor:
    """Return a redactor for this user and this host."""
    names = [environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "HOST")]
    names += [socket.gethostname(), socket.gethostname().partition(".")[0]]
    home = environ.get("HOME")
    with suppress(KeyError):  # the user of a container, without a name
        entry = pwd.getpwuid(os.getuid())
        names += [entry.pw_name, *entry.pw_gecos.split(",")[0].split()]
        home = home or entry.pw_dir
    folder = Path(home or "/")
    return Redactor(folder, [*names, folder.name])
