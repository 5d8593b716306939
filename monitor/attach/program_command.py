"""The command line by which a running program's job is read, where its own names no script that can be opened."""

import os
from pathlib import Path

from vramtop.estimator.readers.source import FilesystemView

from ..host import ProcessInfo, ancestors

_NOTEBOOK = ".ipynb"
_MAX_NAMES = 3


def readable_command(program: ProcessInfo, root: Path | None) -> tuple[tuple[str, ...], str | None]:
    """Return the command line to read, and a sentence if it is that of a Jupyter kernel whose notebook is unknown.

    ``python - < train.py`` gets the file that is its standard input, a kernel the notebook that it runs.

    Args:
        program: the process.
        root: its root folder as it is reached from here; None: ours.
    """
    if program.launch.is_kernel:
        notebook = _notebook_of_kernel(program, root)
        return (program.argv, _unknown_notebook(program)) if notebook is None else (("python", notebook), None)
    if program.launch.script != "-":
        return program.argv, None
    try:
        file = os.readlink(f"/proc/{program.pid}/fd/0")  # noqa: PTH115 - a pipe's link is not a path
    except OSError:
        return program.argv, None
    if not file.startswith("/") or file.startswith("/dev/"):
        return program.argv, None
    at = program.argv.index("-")
    return (*program.argv[:at], file, *program.argv[at + 1 :]), None


def _notebook_of_kernel(kernel: ProcessInfo, root: Path | None) -> str | None:
    """Return a kernel's notebook: as the Jupyter server set it, or as the program that runs the notebook names it."""
    session = (kernel.environ or {}).get("JPY_SESSION_NAME", "")
    if session.endswith(_NOTEBOOK) and session.startswith("/"):
        return session
    for parent in ancestors(kernel):
        launch = parent.launch
        if "notebook" in launch.launchers and launch.script is not None and parent.cwd is not None:
            written = [word for word in launch.arguments if word.endswith(_NOTEBOOK)]
            names = [str(parent.cwd / name) for name in (*written, launch.script)]
            view = FilesystemView(cwd=parent.cwd, root=root)  # papermill saves what ran in a second notebook
            return next((name for name in names if os.access(view.resolve(name), os.R_OK)), names[-1])
    return None


def _unknown_notebook(kernel: ProcessInfo) -> str:
    try:
        found = sorted(path.name for path in (kernel.cwd or Path("/nonexistent")).glob(f"*{_NOTEBOOK}"))
    except OSError:
        found = []
    here = f" (its folder has {', '.join(found[:_MAX_NAMES])}{', ...' if len(found) > _MAX_NAMES else ''})"
    return (
        f"Process {kernel.pid} is a Jupyter kernel, and it is not known which notebook it runs"
        f"{here if found else ''}; vramtop estimate FILE{_NOTEBOOK} reads a notebook."
    )
