"""Files and folders move between overlays and their layers: where the kernel refuses it (EXDEV), they are copied.

``mv`` does the same. What is one file system outside may be several overlays in a program's view.
"""

from __future__ import annotations

import errno
import functools
import os
import pathlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def install() -> None:
    """Change ``os.rename`` and ``os.replace``, which pathlib and shutil use, for good."""
    for name in ("rename", "replace"):
        moving = _moving(getattr(os, name))
        setattr(os, name, moving)
        if hasattr(pathlib, "_NormalAccessor"):  # before Python 3.11, which keeps functions of ``os``
            setattr(pathlib._NormalAccessor, name, staticmethod(moving))


def _moving(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def move(src: Any, dst: Any, **folders: Any) -> None:
        try:
            plain(src, dst, **folders)
        except OSError as error:
            source, target = Path(os.fsdecode(src)), Path(os.fsdecode(dst))
            if error.errno != errno.EXDEV or folders:
                raise
        else:
            return
        if source.is_symlink() or not source.is_dir():
            part = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copy2(source, part, follow_symlinks=False)
            plain(part, target)
            source.unlink()
            return
        if target.is_symlink() or target.exists():
            target.rmdir()  # an empty folder may be replaced; anything else is an error, as it is of rename
        shutil.copytree(source, target, symlinks=True)
        shutil.rmtree(source)

    return move
