"""The metrics in a file for node_exporter's textfile collector, replaced as a whole at each writing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.private_files import write_private

if TYPE_CHECKING:
    from pathlib import Path

    from .metrics_text import MetricsText


class TextFile:
    """Writes the metrics to a file.

    Args:
        path: of the file; node_exporter reads only names that end in ``.prom``.
        text: of the metrics, without those of the process.

    Raises:
        InputError: the name does not end so, or the folder does not exist.
    """

    def __init__(self, path: Path, text: MetricsText) -> None:
        if path.suffix != ".prom":
            raise InputError(f"--textfile {path}: node_exporter reads only files whose names end in .prom")
        if not path.parent.is_dir():
            raise InputError(f"--textfile {path}: no such folder {path.parent}")
        self._path = path
        self._text = text

    def write(self) -> None:
        """Replace the file: a reader sees the old or the new one.

        Raises:
            InputError: it cannot be written.
        """
        try:
            write_private(self._path, self._text.encode()[0], mode=0o644)  # node_exporter, another user, reads it
        except OSError as error:
            raise InputError(f"--textfile {self._path}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the file: node_exporter would serve its figures for ever."""
        with contextlib.suppress(OSError):
            self._path.unlink()
