"""Measures vramtop's monitor on this machine: the driver's calls, attaching to a training, the dashboard, the probe."""

import argparse
import contextlib
import ctypes
import gzip
import inspect
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml
from programs import SIMULATED_GIB, Machine, ProgramError, errors_as, exit_code, machine, print_figures

from vramtop.monitor.snapshot.demand import DRIVER_FIGURES, HOST_FIGURES, CurrentDemand, Demand
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource


@dataclass(slots=True)
class Calls:
    """The calls of one function of NVML."""

    seconds: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    answer: str | None = None
    """The last answer; None: there was none."""


def main() -> int:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--cpu", action="store_true", help="there is no GPU: a tiny model and short times")
    parser.add_argument("--seconds", type=float, help="that the dashboard runs (default: 60; with --cpu 6)")
    options = parser.parse_args()
    with machine(cpu=options.cpu) as here, errors_as(options.what):
        MEASUREMENTS[options.what](here, options.seconds)
    return exit_code()


def measure_nvml(here: Machine, seconds: float | None) -> None:
    """Print what a reading takes, and every function of NVML that vramtop calls; on a GPU beside a training."""
    if here.simulated:
        from simulated_host import simulate

        simulate(1, SIMULATED_GIB, [os.getpid()])
    calls = record_calls()
    demand = CurrentDemand()
    source = NvmlSource(demand=demand)
    figures: dict[str, Any] = {}
    with errors_as("nvml readings"), contextlib.ExitStack() as stack:
        stack.callback(source.close)
        figures["init_seconds"] = seconds_of(source.open)
        figures["first_reading_seconds"] = seconds_of(source.read)
        if not here.cpu:
            with errors_as("nvml training"):
                stack.enter_context(here.training())
        count, pause = (5, 0.05) if here.cpu else (10, 0.5)
        figures["reading_seconds"] = median_seconds(source.read, count, pause)
        details = {gpu.index if gpu.uuid is None else gpu.uuid: "full" for gpu in source.read().gpus}
        demand.show(Demand(process_figures=DRIVER_FIGURES | HOST_FIGURES, gpus=details, host=True))
        figures["full_reading_seconds"] = median_seconds(source.read, count, pause)
        last = source.read()
        faults = [*last.faults, *(fault for gpu in last.gpus for fault in gpu.faults)]
        faults += [fault for gpu in last.gpus if gpu.details for fault in gpu.details.faults]
        figures |= {"gpus": len(last.gpus), "mig_devices": sum(len(gpu.mig or ()) for gpu in last.gpus)}
        figures |= {"processes": len(list(last.processes())), "faults": "; ".join(fault.message for fault in faults)}
    if figures:
        print_figures("nvml readings", **figures)
    for name, each in calls.items():
        milliseconds = sorted(taken * 1000 for taken in each.seconds)
        print_figures(
            name,
            calls=len(milliseconds),
            errors=each.errors.total(),
            error_names=", ".join(each.errors),
            min_ms=milliseconds[0],
            median_ms=statistics.median(milliseconds),
            max_ms=milliseconds[-1],
            answer=each.answer,
        )


def record_calls() -> dict[str, Calls]:
    """Have pynvml's functions note each call from outside of pynvml; the dictionary fills as they are called."""
    calls: dict[str, Calls] = {}

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_globals is vars(pynvml):
                return function(*args, **kwargs)
            notes = calls.setdefault(name, Calls())
            begun = time.perf_counter()
            try:
                answer = function(*args, **kwargs)
            except Exception as error:
                notes.errors[type(error).__name__.removeprefix("NVMLError_")] += 1
                raise
            finally:
                notes.seconds.append(time.perf_counter() - begun)
            notes.answer = short(answer)[:200]
            return answer

        return call

    for name, function in inspect.getmembers(pynvml, inspect.isfunction):
        if name.startswith("nvml"):
            setattr(pynvml, name, recorded(name, function))
    return calls


def short(answer: Any) -> str:
    """Return an answer of the driver as text, with the fields of its structures."""
    if isinstance(answer, (list, tuple, ctypes.Array)):
        return f"[{', '.join(map(short, answer))}]"
    structured = isinstance(answer, (ctypes.Structure, pynvml.nvmlFriendlyObject))
    return str(answer) if structured else repr(answer)


def seconds_of(action: Callable[[], Any]) -> float:
    """Return the elapsed time of an action."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def median_seconds(action: Callable[[], Any], count: int, pause: float) -> float:
    """Return the median time of an action that is done several times."""
    taken = []
    for _ in range(count):
        time.sleep(pause)
        taken.append(seconds_of(action))
    return statistics.median(taken)


def measure_attach(here: Machine, seconds: float | None) -> None:
    """Print what vramtop says of a training, with the right settings and with wrong ones."""
    with here.training() as training:
        pids = [training.pid]
        with errors_as("record"):
            path = here.folder / "recording.jsonl.gz"
            answer = here.vramtop("record", str(path), "--seconds", "3" if here.cpu else "10", pids=pids)
            lines = gzip.decompress(path.read_bytes()).splitlines() if path.exists() else []
            size = path.stat().st_size if lines else None
            print_figures("record", **answer.figures, readings=len(lines[1:]), file_bytes=size)
        with errors_as("once"):
            answer = here.vramtop("--once", "--json", pids=pids)
            rows = [row for gpu in answer.found.get("gpus", ()) for row in gpu["processes"] or ()]
            row = next((row for row in rows if row["pid"] == training.pid), None)
            facts = {key: row and row[key] for key in ("used_bytes", "job", "budget_bytes", "status")}
            print_figures("once", **answer.figures, listed=row is not None, **facts)
        large = 200_000 if here.cpu else 64
        for name, batch in (("attach", None), ("attach, batch too small", 1), ("attach, batch too large", large)):
            with errors_as(name):
                wrong = () if batch is None else ("--set", f"training.micro_batch={batch}")
                words = ("attach", str(training.pid), "--json", "--method", "formula", *wrong)
                answer = here.vramtop(*words, pids=pids)
                peak = (answer.found.get("budget") or {}).get("peak", {})
                print_figures(
                    name,
                    **answer.figures,
                    micro_batch=batch or here.batch,
                    **{key: answer.found.get(key) for key in ("status", "observed_bytes", "divergence")},
                    predicted_bytes=peak.get("device_bytes"),
                    low_bytes=peak.get("low_bytes"),
                    high_bytes=peak.get("high_bytes"),
                    missing=", ".join(answer.found.get("missing", ())),
                )


def measure_dashboard(here: Machine, seconds: float | None) -> None:
    """Print what the dashboard costs beside a training, and what nvitop does: half of the time without keys."""
    import bench

    seconds = seconds or (6.0 if here.cpu else 60.0)
    warm, runs = (1.0, 1) if here.cpu else (10.0, 3)
    with here.training() as training:
        bench.VRAMTOP = tuple(here.command(pids=[training.pid]))
        installed = bench.installed_monitors()
        for name in ("vramtop", "nvitop"):
            with errors_as(name):
                if name not in installed:
                    raise ProgramError(f"{name} is not installed")
                live, once = installed[name]
                print_figures(name, **bench.measure_monitor(live, once, seconds=seconds / 2, warm=warm, runs=runs))


def measure_probe(here: Machine, seconds: float | None) -> None:
    """Print what the probe adds to a step, of runs with and without it in turn."""
    steps, length, limit = (30, 32, 60.0) if here.cpu else (300, 256, 300.0)
    taken: dict[bool, list[float]] = {False: [], True: []}
    for probe in (False, True, False, True):
        name = "with probe" if probe else "without probe"
        with errors_as(name), here.training(steps=steps, batch=1, length=length, probe=probe) as training:
            training.wait(limit)
            figures = json.loads(here.figures.read_text())
            print_figures(name, **figures)
            taken[probe].append(figures["step_seconds"])
    if not all(taken.values()):
        raise ProgramError("there are not both runs with the probe and without it")
    without, with_probe = (statistics.median(taken[probe]) for probe in (False, True))
    more = (with_probe / without - 1) * 100
    print_figures("probe", step_seconds=with_probe, step_seconds_without=without, more_percent=more)


MEASUREMENTS: dict[str, Callable[[Machine, float | None], None]] = {
    "nvml": measure_nvml,
    "attach": measure_attach,
    "dashboard": measure_dashboard,
    "probe": measure_probe,
}


if __name__ == "__main__":
    sys.exit(main())
