"""Jupyter notebooks as scripts: the cells that ran, without what only IPython understands.

Format: nbformat's ``notebook_format`` (version 4). Nothing is run.
"""

import ast
import itertools
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...common.errors import InputError
from ...common.untrusted_files import TooLargeError, check_nesting, read_file

_MAX_BYTES = 32 << 20
"""Outputs are saved in the file too, pictures among them."""
_MAX_CODE = 3 * 2**16
"""Characters of code, as many as of a script."""
_MAGIC = re.compile(r"^(\s*)([!?]|%{1,2}\w|\w+(\.\w+)*\?{1,2}\s*$)")
_ASSIGNED = re.compile(r"^(\s*)([A-Za-z_][\w, ]*?)\s*=\s*[!%](?!=)")
"""``files = !ls`` and ``x = %sql ...``: a value that only IPython knows."""
_ENVIRONMENT = re.compile(r"^(\s*)%(?:set_)?env\s+(\w+)(?:\s*=\s*|\s+)(.+?)\s*$")
_FOLDER = re.compile(r"^(\s*)%cd\s+(.+?)\s*$")
_RUN = re.compile(r"^(\s*)%run\s+(?:-\S+\s+)*(\S+\.py)((?:\s+\S+)*)\s*$")
_FILE = re.compile(r"%%(?:writefile|file)\s+((?:-a\s+)?)(\S+)\s*$")
_TIMED = re.compile(r"^(\s*)%(?:time|memit|prun)\s+(.+)$")
_TRANSPARENT_CELLS = ("time", "timeit", "capture", "prun", "memit", "python", "python3")
"""Magics of a whole cell (``%%time``) that run the rest of it as Python."""
UNKNOWN_VALUE = "__known_to_ipython_only__"
"""Stands in the code for a value that a shell line or a magic returns."""


class NotebookCode(msgspec.Struct, frozen=True, kw_only=True):
    """The code of a notebook as one script."""

    text: str
    places: tuple[tuple[int, int], ...]
    """For each line of the text: the number of its cell, from 1, and its line there."""
    doubts: tuple[str, ...]
    """What is uncertain about it, one sentence each."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Magics and shell lines that are not in the text, with the numbers of their cells."""

    @property
    def cells(self) -> list[tuple[int, str]]:
        """The number of each cell with its code, in the order of the text."""
        placed = zip(self.places, self.text.split("\n"), strict=False)  # an empty text has a line and no place
        by_cell = itertools.groupby(placed, key=lambda each: each[0][0])
        return [(number, "\n".join(line for _, line in lines)) for number, lines in by_cell]

    def place(self, line: int) -> str:
        """Return where a line of the text stands: ``cell 3 line 2``."""
        if not 1 <= line <= len(self.places):
            return f"line {line}"
        cell, inner = self.places[line - 1]
        return f"cell {cell} line {inner}"


class _Cell(msgspec.Struct, frozen=True):
    number: int
    lines: list[str]
    count: int | None
    """Number of its last execution; None: it has not run, or it is running."""
    is_parameters: bool


def read_notebook(
    path: Path, *, started_at: float | None = None, parameters: Mapping[str, Any] | None = None
) -> NotebookCode:
    """Return the code of a notebook: the cells that ran in the order they ran in, or all where none is known to have.

    Args:
        path: the notebook.
        started_at: when its kernel started, in Unix seconds; execution counts saved before are another kernel's.
            None: it runs from top to bottom.
        parameters: values that papermill sets after the cell with the tag ``parameters``.

    Raises:
        InputError: it cannot be read, or is no notebook.
    """
    cells = list(_code_cells(_table(path), path))
    doubts: list[str] = []
    if started_at is not None:
        cells, doubt = _cells_that_ran(cells, path, started_at)
        doubts.append(doubt)
    text: list[str] = []
    places: list[tuple[int, int]] = []
    left_out: list[tuple[int, str]] = []
    given = "\n".join(f"{name} = {value!r}" for name, value in (parameters or {}).items() if name.isidentifier())
    if given and not any(cell.is_parameters for cell in cells):
        cells = [_Cell(0, [], None, True), *cells]
    for cell in cells:
        lines, ipython = _python_lines(cell.lines)
        left_out += [(cell.number, line) for line in ipython]
        if not _is_python("\n".join(lines)):
            doubts.append(f"{path.name}: vramtop cannot read cell {cell.number} as Python; it is not counted.")
            lines = []
        if cell.is_parameters and given:
            lines += given.splitlines()
        text += lines
        places += [(cell.number, line + 1) for line in range(len(lines))]
    joined = "\n".join(text)
    if len(joined) > _MAX_CODE:
        raise InputError(f"{path}: too large to be read as a script: {len(joined):,} characters of code")
    return NotebookCode(text=joined, places=tuple(places), doubts=tuple(doubts), left_out=tuple(left_out))


def _table(path: Path) -> Mapping[str, Any]:
    try:
        table = json.loads(read_file(path, _MAX_BYTES).decode("utf-8-sig"))
        check_nesting(table)
    except TooLargeError:
        raise InputError(f"{path}: too large to be read as a notebook") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a notebook: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("cells"), list):
        raise InputError(f"{path}: not a notebook: it has no cells")
    return table


def _code_cells(table: Mapping[str, Any], path: Path) -> Iterator[_Cell]:
    kernel, described = (_inner(table, "metadata", name) for name in ("kernelspec", "language_info"))
    language = kernel.get("language") or described.get("name")
    if isinstance(language, str) and not language.lower().startswith(("python", "ipython")):
        raise InputError(f"{path}: a notebook in {language[:40]}; expected Python")
    for number, cell in enumerate(table["cells"], start=1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            text = "".join(map(str, source)) if isinstance(source, list) else str(source)
            count = cell.get("execution_count")
            tags = _inner(cell, "metadata").get("tags")
            is_parameters = isinstance(tags, list) and "parameters" in tags
            yield _Cell(number, text.splitlines(), count if type(count) is int else None, is_parameters)


def _inner(table: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = table.get(key)
        table = value if isinstance(value, dict) else {}
    return table


def _cells_that_ran(cells: Sequence[_Cell], path: Path, started_at: float) -> tuple[list[_Cell], str]:
    """Return the cells that this kernel ran, in its order, and a sentence on what that leaves open.

    A cell has its count when it has finished: the one below the last that did is probably running.
    """
    try:
        saved_since = path.stat().st_mtime >= started_at
    except OSError:
        saved_since = False
    ran = sorted((cell for cell in cells if cell.count is not None), key=lambda cell: cell.count or 0)
    if saved_since and ran:
        running = next((cell for cell in cells if cell.count is None and cell.number > ran[-1].number), None)
        ran += [running] if running is not None else []
        return ran, f"{path.name}: only cells that had run when it was last saved are read; later changes are not."
    why = "no cell had run when it was saved" if saved_since else "it was not saved after its kernel started"
    return list(cells), f"{path.name}: {why}, so all cells are read in order; the real run may differ."


def _python_lines(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a cell's lines as Python, as many as it has, and those for IPython only, which become ``pass``."""
    if _is_python("\n".join(lines)):  # in a string, a line may look like a shell line
        return list(lines), []
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    if (whole := re.match(r"%%(\w+)", lines[first])) is not None:
        if (file := _FILE.match(lines[first])) is not None:
            text = "\n".join(lines[first + 1 :]) + "\n"
            written = f"with open({file[2]!r}, {'a' if file[1] else 'w'!r}) as _: _.write({text!r})"
            return [written if index == first else "" for index in range(len(lines))], []
        if whole[1] not in _TRANSPARENT_CELLS:
            return [""] * len(lines), [lines[first]]
        lines = ["" if index == first else line for index, line in enumerate(lines)]
    python: list[str] = []
    left_out: list[str] = []
    goes_on = False
    for line in lines:
        text = "" if goes_on else _python_line(line)
        goes_on = (goes_on or text != line) and line.endswith("\\")
        if text.endswith(("pass", UNKNOWN_VALUE)) and text != line:
            left_out.append(line.rstrip("\\").strip())
        python.append(text)
    return python, left_out


def _python_line(line: str) -> str:
    if (timed := _TIMED.match(line)) is not None:
        return f"{timed[1]}{timed[2]}"
    if (variable := _ENVIRONMENT.match(line)) is not None:
        return f"{variable[1]}import os; os.environ[{variable[2]!r}] = {variable[3]!r}"
    if (folder := _FOLDER.match(line)) is not None:
        return f"{folder[1]}import os; os.chdir(os.path.expanduser({folder[2].strip(chr(34) + chr(39))!r}))"
    if (run := _RUN.match(line)) is not None:
        return f"{run[1]}get_ipython().run_line_magic('run', {f'{run[2]}{run[3]}'!r})"
    if (assigned := _ASSIGNED.match(line)) is not None:
        return f"{assigned[1]}{assigned[2]} = {UNKNOWN_VALUE}"
    magic = _MAGIC.match(line)
    return f"{magic[1]}pass" if magic is not None else line


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():  # its own syntax warnings would go to the terminal
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
