"""Reads a notebook that a launch line or a kernel runs: its cells as a script, and papermill's parameters."""

import ast
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..common.errors import InputError
from ..common.records import replace
from .program.program import Program
from .source.data_files import read_table
from .source.evidence import JobReading
from .source.notebooks import NotebookCode, read_notebook


def notebook_of_program(program: Program) -> NotebookCode | None:
    """Return the code of the notebook that a program runs; None if it runs none.

    Raises:
        InputError: the notebook cannot be read.
    """
    script = program.launch.script
    if script is None or not script.endswith(".ipynb"):
        return None
    path = program.filesystem.resolve(script)
    parameters, problem = papermill_parameters(program.launch.arguments, program.filesystem.resolve)
    if problem is not None:
        program.findings.warn(problem)
    return read_notebook(path, started_at=program.started_at, parameters=parameters)


def with_cells(reading: JobReading, notebook: NotebookCode, name: str) -> JobReading:
    """Return the reading with cells in the place of lines of the whole script: ``x.ipynb cell 3 line 2``."""
    line = re.compile(rf"(?<={re.escape(name)} )line (\d+)")

    def place(text: str) -> str:
        return line.sub(lambda match: notebook.place(int(match[1])), text)

    findings = tuple(replace(finding, origin=place(finding.origin)) for finding in reading.findings)
    return replace(reading, findings=findings, warnings=tuple(map(place, reading.warnings)))


def papermill_parameters(words: Sequence[str], resolve: Callable[[str], Path]) -> tuple[dict[str, Any], str | None]:
    """Return papermill's parameters, and why those of a file are not known, or None.

    Args:
        words: ``-p name value``, ``-r name text`` and ``-f file.yaml`` among others.
        resolve: finds a file by its name.
    """
    found: dict[str, Any] = {}
    problem = None
    for index, word in enumerate(words):
        if word in ("-p", "--parameters", "-r", "--parameters_raw") and index + 2 < len(words):
            text = words[index + 2]
            found[words[index + 1]] = text if word in ("-r", "--parameters_raw") else _value(text)
        elif word in ("-f", "--parameters_file") and index + 1 < len(words):
            try:
                found |= read_table(resolve(words[index + 1]))
            except InputError as error:
                problem = f"The notebook's parameters are not counted: {error.message}"
    return found, problem


def _value(text: str) -> Any:
    """Return a parameter as papermill understands its text."""
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
        return value if isinstance(value, bool | int | float | None) else text
    return text
