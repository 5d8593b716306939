"""``vramtop completion SHELL``: print completions for a shell, or the manual page; and the words that they ask for.

``make completion`` writes the files of ``shell/`` from the parsers; the wheel also installs them where shells look.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from vramtop.estimator.common.errors import CannotTellError

FILES = {"bash": "vramtop", "zsh": "_vramtop", "fish": "vramtop.fish", "man": "vramtop.1"}
"""Name of each in the folder."""
FOLDER = Path(__file__).parents[1] / "shell"


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Print the script or the page; exit code 0."""
    print((FOLDER / FILES[options.shell]).read_text(encoding="utf-8"), end="")
    return 0


def dynamic_words(kind: str = "") -> Iterator[str]:
    """Yield the words of ``vramtop __complete KIND``: models that are here, or processes on GPUs; none of others."""
    if kind == "models":
        from ...job.form.model_choices import cached_models, model_names

        yield from dict.fromkeys([*cached_models(), *(name.lower() for name in model_names() if "/" not in name)])
    if kind == "pids":
        from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

        with suppress(CannotTellError), closing(NvmlSource()) as source:
            source.open()
            yield from (str(process.pid) for _, process in source.read().processes())
