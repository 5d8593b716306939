"""The doctor's page as lines of text."""

from collections.abc import Iterable, Iterator, Sequence

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.doctor.data_folder import DataFolderFacts
from vramtop.monitor.doctor.driver_facts import DriverFacts, GpuFacts
from vramtop.monitor.doctor.interpreters import InterpreterFacts
from vramtop.monitor.doctor.issues import Issue, Severity
from vramtop.monitor.doctor.permissions import PermissionFacts
from vramtop.monitor.doctor.report import DoctorReport
from vramtop.monitor.doctor.system import SystemFacts

from ..draw.palette import CHECKS, Mark
from ..draw.text_output import TextOutput
from ..tty.terminal_facts import TerminalFacts

_LABEL = 10
_SEPARATOR = " · "
_MARKS: dict[Severity, Mark] = {
    "error": CHECKS["failure"],
    "warning": CHECKS["warning"],
    "note": CHECKS["skipped"],
}
_WITHOUT = ("name", "uuid")
"""Abilities that go without saying."""


def doctor_lines(page: DoctorReport, shown: TerminalFacts, found: Sequence[Issue], terminal: TextOutput) -> list[str]:
    """What is wrong, and then everything.

    Args:
        page: what was found out.
        shown: of the terminal.
        found: what is wrong, the worst first.
        terminal: what the output can show.
    """
    lines = [terminal.paint("vramtop doctor", None, bold=True), ""]
    for finding in found:
        mark = _MARKS[finding.severity]
        first, *others = terminal.wrapped(f"{mark.letter} {finding.sentence}", further="  ")
        lines += [terminal.paint(first, None, bold=finding.severity == "error"), *others]
    if not found:
        lines.append(terminal.text("✓ nothing that is wrong was found"))
    lines.append("")
    for label, words in _entries(page, shown):
        lines += terminal.wrapped(f"{label:<{_LABEL}}{words}", further=" " * _LABEL)
    return lines


def _entries(page: DoctorReport, shown: TerminalFacts) -> Iterator[tuple[str, str]]:
    yield from _system(page.system)
    yield from _driver(page.driver)
    for gpu in page.driver.gpus:
        yield from _gpu(gpu)
    yield from _access(page.access)
    yield from _terminal(shown)
    for python in page.pythons:
        yield "torch", _python(python)
    yield "files", _files(page.files)
    if page.system.environment:
        yield "settings", ", ".join(f"{name}={value}" for name, value in page.system.environment.items())


def _system(system: SystemFacts) -> Iterator[tuple[str, str]]:
    packages = dict(system.packages)
    own = packages.pop("vramtop-budget", "(not installed)")
    yield (
        "vramtop",
        _joined([own, f"Python {system.python}", *(f"{name} {number}" for name, number in packages.items())]),
    )
    processors = f"{system.processors} processors" if system.processors else None
    yield "system", _joined([system.kernel, system.machine, system.distribution, system.libc, processors])
    limit = system.memory_limit_bytes
    allowed = "no limit of a control group" if limit is None else f"{format_gib(limit)} GiB allowed by a control group"
    container = f"container: {', '.join(system.container)}" if system.container else "no sign of a container"
    pids = {True: "pids of its own", False: "the machine's own pids", None: None}[system.own_pid_namespace]
    wsl = "WSL" if system.wsl else None
    yield "", _joined([f"{format_gib(system.memory_bytes)} GiB of RAM", allowed, container, pids, wsl])


def _driver(driver: DriverFacts) -> Iterator[tuple[str, str]]:
    versions = {"NVML": driver.nvml_version, "CUDA": driver.cuda_version}
    took = None if driver.init_seconds is None else f"started in {driver.init_seconds:.2f} s"
    said = [f"{name} {version}" for name, version in versions.items() if version]
    count = f"{len(driver.gpus)} GPU{'' if len(driver.gpus) == 1 else 's'}" if driver.driver_version else None
    yield "driver", _joined([driver.driver_version or "n/a", *said, count, took])
    yield "", _joined([
        f"library {driver.library or 'n/a'}",
        f"kernel module {driver.kernel_module or 'n/a'}",
    ])  # fmt: skip


def _gpu(gpu: GpuFacts) -> Iterator[tuple[str, str]]:
    mode = None if gpu.compute_mode is None else f"compute mode {gpu.compute_mode}"
    memory = f"memory info {gpu.memory_info}" if gpu.memory_info else "no memory info"
    slots = None if gpu.mig_slots is None else f"{gpu.mig_slots} MIG slots"
    yield f"GPU {gpu.index}", _joined([gpu.name or "n/a", gpu.uuid, memory, mode, slots, gpu.lost])
    if gpu.unanswered:
        yield "", f"no answer to {gpu.unanswered}; what comes after it was not asked"
    if gpu.total_bytes is not None:
        sizes = {"used": gpu.used_bytes, "free": gpu.free_bytes, "reserved": gpu.reserved_bytes}
        parts = ", ".join(f"{format_gib(size)} {name}" for name, size in sizes.items() if size is not None)
        yield "", f"{format_gib(gpu.total_bytes)} GiB: {parts}"
    able = [ability for ability, word in gpu.abilities.items() if word == "yes" and ability not in _WITHOUT]
    other = [f"{ability} {word}" for ability, word in gpu.abilities.items() if word != "yes"]
    if able or other:
        told = f"tells {', '.join(map(_spaced, able))}" if able else None
        yield "", _joined([told, *map(_spaced, other)])
    if gpu.processes is not None:
        noun = "process" if gpu.processes == 1 else "processes"
        words = f"{gpu.processes} {noun}: {gpu.processes_seen} seen from here, {gpu.processes_of_others} of others"
        yield "", words
    if gpu.slowest_call:
        yield "", f"slowest call {gpu.slowest_call}, {(gpu.slowest_seconds or 0) * 1000:.1f} ms"


def _access(access: PermissionFacts) -> Iterator[tuple[str, str]]:
    devices = [f"{device.path} {device.mode}{'' if device.usable else ' (refused)'}" for device in access.devices]
    yield "devices", _joined(devices) or "no device file of the driver's"
    hides = f"hidepid={access.hidepid}" if access.hidepid else None
    others = "other users' processes are seen" if access.sees_others else "no other user's process is seen"
    pidfd = "pidfd" if access.pidfd else "no pidfd"
    yield "rights", _joined(["root" if access.root else "not root", others, hides, pidfd, "ptrace is not needed"])


def _terminal(shown: TerminalFacts) -> Iterator[tuple[str, str]]:
    size = None if shown.columns is None else f"{shown.columns}x{shown.lines}"
    ends = {"input": shown.input_is_terminal, "output": shown.output_is_terminal}
    pipes = [f"{end} is no terminal" for end, there in ends.items() if not there]
    within = f"within {', '.join(shown.within)}" if shown.within else None
    colours = {"none": "no colours", "true": "true colour"}.get(shown.colours, f"{shown.colours} colours")
    parts = [f"TERM={shown.term or '(not set)'}", size, shown.encoding, colours, within, *pipes]
    yield "terminal", _joined([*parts, "ASCII only" if shown.ascii_only else None])


def _python(python: InterpreterFacts) -> str:
    if not python.answered:
        found = "has not answered in time"
    elif python.torch is None:
        found = "no torch with transformers, or does not run"
    else:
        peft = f", peft {python.peft}" if python.peft else ""
        found = f"torch {python.torch}, transformers {python.transformers}{peft}"
    return f"{python.path} ({python.named_by}): {found}"


def _files(files: DataFolderFacts) -> str:
    state = ("" if files.writable else " (cannot be written)") if files.there else " (not there yet)"
    each = [f"{file.name} {file.size_bytes} B {file.mode} {file.state}" for file in files.files]
    aside = f"{files.set_aside} set aside" if files.set_aside else None
    return _joined([f"{files.folder}{state}", *each, aside])


def _joined(parts: Iterable[str | None]) -> str:
    return _SEPARATOR.join(part for part in parts if part)


def _spaced(ability: str) -> str:
    return ability.replace("_", " ", ability.split(" ", 1)[0].count("_"))
