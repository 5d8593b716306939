"""Rehearsals that are kept: a program is not run again while all that it depends on is known and the same.

That is its environment, arguments, interpreter and libraries, and every file that it or what it starts has looked for,
read or listed. What it asks of the network is not known later, so such a rehearsal is not kept.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..isolation.seen import LISTED, UNKNOWN, USED, signature
from ..job.settings import Parallel
from .answer_cache import cache_file, read_cached, worker_digest, write_cached
from .isolated_run import Report
from .traced_step import StepSummary

MOST_KEPT = 50
"""Rehearsals that are kept; the oldest are removed."""
_KIND, _VERSION = "rehearsals", 4
SET_BY_REHEARSAL = {
    "CUDA_VISIBLE_DEVICES": "",
    **dict.fromkeys(("WANDB_MODE", "COMET_MODE", "SWANLAB_MODE"), "disabled"),
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "NEPTUNE_MODE": "debug",
    "MPLBACKEND": "Agg",
    **dict.fromkeys(("HF_HUB_DISABLE_TELEMETRY", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"), "1"),
}
"""Variables of every rehearsal: loggers that upload are off, and no CUDA context is made."""
_NOISE = frozenset((
    "_", "COLORFGBG", "COLORTERM", "COLUMNS", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "EDITOR", "GPG_AGENT_INFO",
    "GPG_TTY", "HISTCONTROL", "HISTFILE", "HISTFILESIZE", "HISTSIZE", "INVOCATION_ID", "JOURNAL_STREAM", "LESS",
    "LESSCLOSE", "LESSOPEN", "LINES", "LS_COLORS", "MAIL", "MANPATH", "MOTD_SHOWN", "NOTIFY_SOCKET", "OLDPWD",
    "PAGER", "PS1", "PS2", "PS4", "PWD", "SHELL", "SHLVL", "STY", "TERM", "TERMINFO", "TMPDIR", "VISUAL",
    "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY",
))  # fmt: skip
_NOISE_PREFIXES = (
    "ALACRITTY_", "GNOME_", "ITERM_", "KITTY_", "SSH_", "TERM_", "TMUX", "VSCODE_", "VTE_", "WEZTERM_", "XDG_SEAT",
    "XDG_SESSION_", "XDG_VTNR",
)  # fmt: skip
"""Variables of the terminal and the session; a program may depend on all others. ``TMPDIR`` is the keeper's."""


class OptimizerSteps(msgspec.Struct, frozen=True):
    """How often an optimizer has stepped."""

    optimizer: str
    steps: int


class PeakBytes(msgspec.Struct, frozen=True):
    """Highest bytes of torch's allocator."""

    allocated: int
    reserved: int


class ConvolutionFacts(msgspec.Struct, frozen=True):
    """What is known of cuDNN's workspaces in a program that runs convolutions."""

    unmeasured: tuple[str, ...]
    """Kinds of convolutions of which no workspace was measured."""
    benchmark: bool
    expected: PeakBytes
    low: PeakBytes
    """With the smallest workspaces that the rule allows for."""
    high: PeakBytes
    """With the largest ones."""
    errors: tuple[int, int] | None
    """How far reserved bytes were measured to lie below ``low``, and above ``high``; None: it was not measured."""


class RehearsalAnswer(StepSummary, frozen=True, kw_only=True):
    """What the program in the other interpreter has written."""

    ended: str
    line: str
    steps: list[OptimizerSteps]
    trained: int
    doubts: list[str]
    seconds: float
    host_bytes: int
    versions: dict[str, str]
    trains: bool = True
    """False: the program has neither run backward nor made an optimizer, and what it did is a forward pass."""
    doubt_kinds: tuple[str, ...] = ()
    """Kinds of doubts that the range depends on: ``sizes``, ``recurrent``, ``compiled``."""
    assumed_bytes: int = 0
    """Bytes at the peak that a real run may not have: those of elements that values take."""
    parameters: int = 0
    convolutions: ConvolutionFacts | None = None
    """None: cuDNN has run none."""
    files: tuple[str, ...] = ()
    """Files that were loaded before the program began: modules of Python and torch."""
    folders: tuple[str, ...] = ()
    """Folders that modules are looked for in."""
    world_size: int = 1
    """Ranks of the program; what is told is of one of them."""
    parallel: Parallel = Parallel()
    """Spread of the program over its ranks."""
    groups: tuple[int, ...] = ()
    """Sizes of the process groups on GPUs that this rank belongs to."""
    gpus: tuple[tuple[int, int], ...] = ()
    """The GPUs that the process used, the fullest first, each with the most bytes that torch reserved on it."""
    multiplies: bool = True
    """True if the program multiplied matrices on the GPU: then cuBLAS holds workspaces."""
    error: str | None = None
    missing_data: str | None = None
    """The data set that is missing, and the line that asked for it; None: the program failed for another reason."""
    missing_repository: str | None = None
    """The model of the hub that is neither there nor on this machine; None: the program failed for another reason."""
    hub_answers: bool = True
    """False: it is missing because the hub cannot be reached."""
    reserved: tuple[int, ...] = ()
    """Bytes that the allocator holds at each moment of the timeline."""
    peak_reserved: int = 0
    step: int = 0
    """With the peak; one more than were asked for: it is after them."""
    growth: tuple[tuple[str, int], ...] = ()
    """Lines of the program, and the bytes that each leaves allocated in every step, the largest first."""
    evaluation_growth: tuple[tuple[str, int], ...] = ()
    """Lines of the program, and the bytes that each leaves allocated in every batch of evaluation."""
    epoch_growth: tuple[tuple[str, int], ...] = ()
    """Lines of the program, and the bytes that each leaves allocated from one evaluation or checkpoint to the next."""
    evaluation_rise: int = 0
    """Bytes by which each evaluation batch raises the peak. A list that is copied to append to it counts twice."""
    batches_left: int | None = 0
    """Batches of evaluation that were left out; None: an unknown number."""
    steps_seen: int = 0
    """Number of steps over which ``growth`` was observed."""


class KeptRehearsal(msgspec.Struct, frozen=True):
    """A rehearsed program."""

    words: list[str]
    """What its interpreter was given."""
    folder: str
    python: str
    time: float
    """Unix seconds."""
    paths: dict[str, tuple[int, str]]
    """How the program used each path, and what stood there (``isolation.seen``)."""
    variables: dict[str, str]
    """A digest of the value of each of its variables, those of ``salt`` together with it."""
    salt: str
    answer: RehearsalAnswer
    refused: str | None = None
    """Why this rehearsal is not kept, such as network access; None: it is."""

    def what_changed(self, environ: Mapping[str, str] | None) -> str | None:
        """Return what the program depends on and is no longer the same, as the beginning of a sentence; None: nothing.

        Args:
            environ: the environment that it would have; None: the same.
        """
        if environ is not None:
            now = _digests(environ, self.salt)
            other = sorted(name for name in {*now, *self.variables} if now.get(name) != self.variables.get(name))
            if other:
                return f"the variable {other[0]} has changed" if len(other) == 1 else f"{_listed(other)} differ"
        folders: dict[str, str] = {}
        changed = (path for path, (use, was) in self.paths.items() if signature(path, use, folders) != was)
        return next((f"{path} has changed" for path in changed), None)

    @property
    def date(self) -> str:
        """When it was rehearsed, in words."""
        return f"{datetime.fromtimestamp(self.time):%Y-%m-%d %H:%M}"


def key_of(python: Path, words: Sequence[str], folder: str, plan: Mapping[str, Any]) -> str:
    """Return the name under which a rehearsal is kept.

    Args:
        python: the interpreter.
        words: what it is given.
        folder: in which it is started.
        plan: settings of the rehearsal.
    """
    host = os.uname().nodename  # machines may share a cache, but not their processors, drivers and local files
    return cache_file(_KIND, [str(python), words, folder, plan, worker_digest(), host]).stem


def find(name: str) -> KeptRehearsal | None:
    """Return the rehearsal of that name, whatever has changed since."""
    return read_cached(_file(name), _VERSION, KeptRehearsal) if name.isalnum() else None


def of_answer(
    python: Path,
    words: Sequence[str],
    folder: str,
    environ: Mapping[str, str],
    *,
    answer: RehearsalAnswer,
    report: Report,
) -> KeptRehearsal:
    """Return the rehearsal that was just made.

    Args:
        python: the interpreter.
        words: what it was given.
        folder: in which it was started.
        environ: its environment.
        answer: what the program took.
        report: what it looked at.
    """
    paths, folders = dict(report.paths), dict[str, str]()
    for use, names in ((USED, (str(python), *answer.files)), (LISTED, answer.folders)):
        for path in names:
            if path not in paths or paths[path][0] < use:
                paths[path] = (use, signature(path, use, folders))
    salt = os.urandom(8).hex()
    return KeptRehearsal(
        words=[*words],
        folder=folder,
        python=str(python),
        time=time.time(),
        paths=paths,
        variables=_digests(environ, salt),
        salt=salt,
        answer=msgspec.structs.replace(answer, files=(), folders=()),
        refused=_why_refused(answer, report, paths),
    )


def _why_refused(answer: RehearsalAnswer, report: Report, paths: Mapping[str, tuple[int, str]]) -> str | None:
    if answer.ended == "time":
        return "it reached its time limit"
    if not report.complete:
        return "vramtop could not record everything that it depends on"
    if report.addresses:
        return f"it used the network ({_listed(report.addresses)}), which --offline prevents"
    unknown = next((path for path, (_, was) in paths.items() if UNKNOWN in was or "special" in was), None)
    return f"it read {unknown}, whose changes cannot be detected" if unknown else None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"{' and '.join(names[:2])}" if not more else f"{', '.join(names[:2])}{more}"


def _digests(environ: Mapping[str, str], salt: str) -> dict[str, str]:
    """Return digests of variables: their values may be secrets."""
    return {
        name: hashlib.sha256(f"{salt}{text}".encode(errors="surrogateescape")).hexdigest()[:16]
        for name, text in environ.items()
        if name not in SET_BY_REHEARSAL and name not in _NOISE and not name.startswith(_NOISE_PREFIXES)
    }


def keep(name: str, rehearsal: KeptRehearsal) -> None:
    """Keep a rehearsal."""
    write_cached(_file(name), _VERSION, rehearsal)
    for old in _newest_first()[MOST_KEPT:]:
        with contextlib.suppress(OSError):
            old.unlink()


def of_run(
    python: Path, words: Sequence[str], folder: str, environ: Mapping[str, str]
) -> tuple[str, KeptRehearsal] | None:
    """Return the newest rehearsal of a program that runs: the same Python, script, arguments, folder and environment.

    Args:
        python: its interpreter.
        words: what its interpreter was given.
        folder: its folder.
        environ: its environment.
    """
    for file in _newest_first():
        kept = read_cached(file, _VERSION, KeptRehearsal)
        if kept is None or kept.folder != folder or kept.words[1:] != words[1:] or not _is_same(python, kept.python):
            continue
        if _script(kept.words, folder) == _script(words, folder) and kept.what_changed(environ) is None:
            return file.stem, kept
    return None


def _is_same(python: Path, other: str) -> bool:
    """Return True for two names of an interpreter in one environment: ``python`` and ``python3``."""
    return str(python.parent) == str(Path(other).parent) and os.path.realpath(python) == os.path.realpath(other)


def _script(words: Sequence[str], folder: str) -> str:
    return words[0] if words[0].startswith("-") else str(Path(folder, words[0]).resolve())


def _file(name: str) -> Path:
    return cache_file(_KIND, None).with_name(f"{name}.json")


def _newest_first() -> list[Path]:
    def changed(file: Path) -> float:
        try:
            return file.stat().st_mtime
        except OSError:
            return 0.0

    return sorted(_file("any").parent.glob("*.json"), key=changed, reverse=True)
