"""Finds a Python that can run the worker: one that has torch and transformers, neither of which is imported to see."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..common import CannotTellError, InputError, expand_user, is_file, is_folder

PROBE_TIMEOUT_SECONDS = 20
_PROBE = """
import json, os, sys
def by_folder(name):
    for entry in sys.path:
        try:
            there = os.listdir(entry or ".")
        except OSError:
            continue
        if name in there:
            found = [f for f in there if f.startswith(name + "-") and f.endswith(".dist-info")]
            return found[0][len(name) + 1 : -len(".dist-info")] if len(found) == 1 else None
def by_metadata(name):
    import importlib.metadata, importlib.util
    try:
        return importlib.metadata.version(name) if importlib.util.find_spec(name) else None
    except (ImportError, ValueError):
        return None
found = {name: by_folder(name) or by_metadata(name) for name in ("torch", "transformers", "peft")}
print(json.dumps({name: version for name, version in found.items() if version}))
"""
"""Reads versions from folder names, in half of the time that importing ``importlib.metadata`` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python that has torch and transformers."""

    path: Path
    torch: str
    """Version."""
    transformers: str
    """Version."""
    peft: str | None = None
    """Version; None: not installed."""


def find_interpreters(python: str | None, environ: Mapping[str, str]) -> list[Path]:
    """Return the Pythons to probe, best first: the one that the user named, else active environments, then this one.

    Args:
        python: value of ``--python``, which is then the only one.
        environ: environment with VIRTUAL_ENV and CONDA_PREFIX.

    Raises:
        InputError: ``python`` does not exist.
    """
    if python is not None:
        path = expand_user(python)
        path = path / "bin" / "python" if is_folder(path) else path
        if not is_file(path):
            raise InputError(f"--python {python}: no such program; give the path of a Python that has torch")
        return [path.absolute()]  # not resolved: a virtual environment's Python is a link out of it
    return list(dict.fromkeys(path for path in _candidates(environ) if is_file(path)))


def choose_interpreter(python: str | None, environ: Mapping[str, str]) -> Interpreter:
    """Return the first Python that has torch and transformers.

    Raises:
        InputError: ``python`` does not exist.
        CannotTellError: none has them.
    """
    candidates = find_interpreters(python, environ)
    for path in candidates:
        found = probe_interpreter(path)
        if found is not None:
            return found
    names = ", ".join(str(path) for path in candidates) or "no Python at all"
    raise CannotTellError(
        f"no Python with torch and transformers was found ({names}); install vramtop's extra [torch], or give one "
        "with --python PATH"
    )


def probe_interpreter(path: Path) -> Interpreter | None:
    """Return the interpreter with its libraries' versions; None if one is missing or it does not run."""
    try:
        answer = subprocess.run([path, "-c", _PROBE], capture_output=True, timeout=PROBE_TIMEOUT_SECONDS, check=True)
        found = msgspec.json.decode(answer.stdout, type=dict[str, str])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not {"torch", "transformers"} <= found.keys():
        return None
    return Interpreter(path=path, torch=found["torch"], transformers=found["transformers"], peft=found.get("peft"))


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            yield Path(environ[variable]) / "bin" / "python"
    if sys.executable:
        yield Path(sys.executable)
