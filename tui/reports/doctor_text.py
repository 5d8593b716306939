"""The report of ``vramtop doctor`` as lines of text."""

from collections.abc import Iterable, Iterator, Sequence

from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.common.version import DISTRIBUTION
from vramtop.monitor.doctor.driver_facts import DriverFacts, GpuFacts
from vramtop.monitor.doctor.report import DoctorReport, InterpreterFacts, Issue, Severity
from vramtop.monitor.doctor.system import DataFolderFacts, PermissionFacts, SystemFacts

from ..draw.palette import CHECKS, Mark
from ..draw.text_output import TextOutput
from ..tty.terminal_facts import TerminalFacts

_LABEL_WIDTH = 10
_SEPARATOR = " · "
_MARKS: dict[Severity, Mark] = {
    "error": CHECKS["failure"],
    "warning": CHECKS["warning"],
    "note": CHECKS["skipped"],
}
_ALWAYS_AVAILABLE = ("name", "uuid")
"""NVML queries that every GPU answers."""


def doctor_lines(
    report: DoctorReport,
    terminal: TerminalFacts,
    issues: Sequence[Issue],
    output: TextOutput,
    *,
    changed_settings: Sequence[str] = (),
) -> list[str]:
    """Return the issues, and then all facts.

    Args:
        report: facts about the machine.
        terminal: facts about the terminal.
        issues: the worst first.
        output: what the output can show.
        changed_settings: names of the settings that are not at their defaults.
    """
    lines = [output.paint("vramtop doctor", None, bold=True), ""]
    for issue in issues:
        mark = _MARKS[issue.severity]
        first, *others = output.wrapped(f"{mark.letter} {issue.sentence}", further="  ")
        lines += [output.paint(first, None, bold=issue.severity == "error"), *others]
    if not issues:
        lines.append(output.text("✓ no problems found"))
    lines.append("")
    changed = (("settings", f"not at their defaults: {', '.join(changed_settings)}"),) if changed_settings else ()
    for label, text in (*_entries(report, terminal), *changed):
        lines += output.wrapped(f"{label:<{_LABEL_WIDTH}}{text}", further=" " * _LABEL_WIDTH)
    return lines


def _entries(report: DoctorReport, terminal: TerminalFacts) -> Iterator[tuple[str, str]]:
    yield from _system(report.system)
    yield from _driver(report.driver)
    for gpu in report.driver.gpus:
        yield from _gpu(gpu)
    yield from _access(report.access)
    yield from _terminal(terminal)
    for python in report.pythons:
        yield "torch", _python(python)
    yield "files", _files(report.files)
    if report.system.environment:
        yield "variables", ", ".join(f"{name}={value}" for name, value in report.system.environment.items())


def _system(system: SystemFacts) -> Iterator[tuple[str, str]]:
    packages = dict(system.packages)
    own = packages.pop(DISTRIBUTION, "(not installed)")
    yield (
        "vramtop",
        _joined([own, f"Python {system.python}", *(f"{name} {number}" for name, number in packages.items())]),
    )
    processors = f"{system.processors} processors" if system.processors else None
    yield "system", _joined([system.kernel, system.machine, system.distribution, system.libc, processors])
    limit = system.memory_limit_bytes
    allowed = "no cgroup limit" if limit is None else f"cgroup limit {format_gib(limit)} GiB"
    container = f"container: {', '.join(system.container)}" if system.container else "no container detected"
    pids = {True: "its own pid namespace", False: "the host's pid namespace", None: None}[system.own_pid_namespace]
    wsl = "WSL" if system.wsl else None
    yield "", _joined([f"{format_gib(system.memory_bytes)} GiB of RAM", allowed, container, pids, wsl])


def _driver(driver: DriverFacts) -> Iterator[tuple[str, str]]:
    versions = {"NVML": driver.nvml_version, "CUDA": driver.cuda_version}
    took = None if driver.init_seconds is None else f"started in {driver.init_seconds:.2f} s"
    versions_text = [f"{name} {version}" for name, version in versions.items() if version]
    count = f"{len(driver.gpus)} GPU{'' if len(driver.gpus) == 1 else 's'}" if driver.driver_version else None
    yield "driver", _joined([driver.driver_version or "n/a", *versions_text, count, took])
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
        yield "", f"no answer to {gpu.unanswered}; later queries were not made"
    if gpu.total_bytes is not None:
        sizes = {"used": gpu.used_bytes, "free": gpu.free_bytes, "reserved": gpu.reserved_bytes}
        parts = ", ".join(f"{format_gib(size)} {name}" for name, size in sizes.items() if size is not None)
        yield "", f"{format_gib(gpu.total_bytes)} GiB: {parts}"
    able = [ability for ability, word in gpu.abilities.items() if word == "yes" and ability not in _ALWAYS_AVAILABLE]
    other = [f"{ability} {word}" for ability, word in gpu.abilities.items() if word != "yes"]
    if able or other:
        supported = f"answers {', '.join(map(_spaced, able))}" if able else None
        yield "", _joined([supported, *map(_spaced, other)])
    if gpu.processes is not None:
        noun = "process" if gpu.processes == 1 else "processes"
        counts = f"{gpu.processes} {noun}: {gpu.processes_seen} visible from here, {gpu.processes_of_others} of others"
        yield "", counts
    if gpu.slowest_call:
        yield "", f"slowest call {gpu.slowest_call}, {(gpu.slowest_seconds or 0) * 1000:.1f} ms"


def _access(access: PermissionFacts) -> Iterator[tuple[str, str]]:
    devices = [f"{device.path} {device.mode}{'' if device.usable else ' (refused)'}" for device in access.devices]
    yield "devices", _joined(devices) or "no device file of the driver"
    hides = f"hidepid={access.hidepid}" if access.hidepid else None
    others = "other users' processes are visible" if access.sees_others else "no other user's process is visible"
    pidfd = "pidfd" if access.pidfd else "no pidfd"
    yield "rights", _joined(["root" if access.root else "not root", others, hides, pidfd, "ptrace is not needed"])


def _terminal(terminal: TerminalFacts) -> Iterator[tuple[str, str]]:
    size = None if terminal.columns is None else f"{terminal.columns}x{terminal.lines}"
    ends = {"input": terminal.input_is_terminal, "output": terminal.output_is_terminal}
    pipes = [f"{end} is not a terminal" for end, there in ends.items() if not there]
    within = f"within {', '.join(terminal.within)}" if terminal.within else None
    colours = {"none": "no colours", "true": "true colour"}.get(terminal.colours, f"{terminal.colours} colours")
    parts = [f"TERM={terminal.term or '(not set)'}", size, terminal.encoding, colours, within, *pipes]
    yield "terminal", _joined([*parts, "ASCII only" if terminal.ascii_only else None])


def _python(python: InterpreterFacts) -> str:
    if python.problem is not None:
        found = python.problem
    elif not python.answered:
        found = "did not answer in time"
    elif python.torch is None:
        found = "torch and transformers not both installed, or it does not run"
    else:
        peft = f", peft {python.peft}" if python.peft else ""
        found = f"torch {python.torch}, transformers {python.transformers}{peft}"
    return f"{python.path} ({python.named_by}): {found}"


def _files(files: DataFolderFacts) -> str:
    state = ("" if files.writable else " (cannot be written)") if files.there else " (does not exist yet)"
    each = [f"{file.name} {file.size_bytes} B {file.mode} {file.state}" for file in files.files]
    aside = f"{files.set_aside} set aside" if files.set_aside else None
    return _joined([f"{files.folder}{state}", *each, aside])


def _joined(parts: Iterable[str | None]) -> str:
    return _SEPARATOR.join(part for part in parts if part)


def _spaced(ability: str) -> str:
    return ability.replace("_", " ", ability.split(" ", 1)[0].count("_"))
