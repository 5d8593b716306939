"""The file of ``--out``, of any command."""

from pathlib import Path

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.private_files import write_private


def write_out(file: Path | str, text: str, *, overwrite: bool = True) -> None:
    """Write the file; one that exists already is replaced only with ``overwrite``.

    Raises:
        InputError: it exists, or cannot be written.
    """
    try:
        write_private(Path(file), text.encode(), new=not overwrite)
    except FileExistsError:
        raise InputError(
            f"{file} already exists; name another file with --out, or replace it with --overwrite"
        ) from None
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror}") from None
