"""A program that is known by its command line: what kind of process it is, and how its processes are recognised."""

from dataclasses import dataclass
from typing import Literal

ProcessKind = Literal["training", "server", "notebook", "desktop", "helper", "other", "unknown"]
"""What a process is. ``training``: a Python program that may train, which only reading it tells; ``unknown``: its
command line cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProgram:
    """One row of the tables: a program, and the marks of which any one identifies its processes."""

    kind: ProcessKind
    name: str | None
    """Name for people, such as ``vLLM`` or ``Jupyter kernel``; None: its command says it better."""
    executables: tuple[str, ...] = ()
    """Names of the file that runs, also of a script that Python runs; with ``*`` at the end, their beginnings."""
    modules: tuple[str, ...] = ()
    """Modules that ``python -m`` runs, or packages whose modules it runs."""
    scripts: tuple[str, ...] = ()
    """Ends of the path of a script, such as ``ComfyUI/main.py``."""
    titles: tuple[str, ...] = ()
    """Beginnings of the title that its processes give themselves in place of their command line."""
    code: tuple[str, ...] = ()
    """Parts of the code that ``python -c`` runs."""
    has_job: bool = False
    """Its launch line tells how much memory it takes, although it does not train.

    Not set for notebooks: which of their cells will run is not known, so that they are read only when asked for.
    """
    with_word: tuple[str, ...] = ()
    """One of these words must follow as well, such as a subcommand; empty: none."""

    @property
    def may_have_job(self) -> bool:
        """True if reading the process may tell what it trains, or how much memory it takes."""
        return self.has_job or self.kind in ("training", "unknown")
