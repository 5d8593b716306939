"""``vramtop snapshot PID``: have a running process with the probe write a memory snapshot now."""

import argparse
import shlex
from collections.abc import Sequence

from vramtop.estimator.common.sizes import size_text
from vramtop.monitor.probe.ask_snapshot import ask_for_snapshot

from ...draw.text_output import detect_output
from ..json_text import json_text
from ..progress import Progress


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Print where the snapshot is; exit code 0.

    Raises:
        InputError: there is no such process.
        CannotTellError: it has no probe, is another user's, uses no GPU, or does not answer.
    """
    with Progress(quiet=options.json) as progress:
        progress(f"waiting for process {options.process}")
        written = ask_for_snapshot(options.process, timeout=options.timeout)
    if options.json:
        print(json_text({"schema": 1, "pid": options.process, "file": written.file, "bytes": written.bytes}))
        return 0
    output = detect_output(ascii_only=options.ascii)
    print(output.text(f"{written.file} ({size_text(written.bytes)})"))
    print(output.text(f"vramtop explain {shlex.quote(written.file)}"))
    return 0
