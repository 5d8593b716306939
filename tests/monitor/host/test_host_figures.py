"""Figures of real processes, beside what psutil says of them."""

import os

import psutil
import pytest
from waiting import until

from vramtop.estimator.common.records import replace
from vramtop.monitor.host import host_figures
from vramtop.monitor.host.host_figures import HostFigures
from vramtop.monitor.host.process_stat import load_stat
from vramtop.monitor.snapshot.demand import Demand
from vramtop.monitor.snapshot.figures import FIRST_SAMPLE
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading

EVERYTHING = Demand(process_figures=frozenset({"cpu_percent", "rss_bytes", "threads", "sm_percent"}))
BUSY = (
    "import threading\nthreading.Thread(target=input, daemon=True).start()\nprint('ready', flush=True)\nwhile 1: pass"
)


def process(pid, start_time=1.0):
    return GpuProcess(pid=pid, start_time=start_time, used_bytes=1, kinds=("compute",))


def reading(*processes):
    return GpuReading(index=0, uuid="GPU-0", name=None, processes=processes)


def figures_of(readings):
    return [each.figures for gpu in readings for each in gpu.processes]


@pytest.fixture
def busy(start_python):
    child = start_python(BUSY)
    child.stdout.readline()
    return child


def test_figures_of_a_busy_process_are_those_that_psutil_finds(busy, clock):
    measured = psutil.Process(busy.pid)
    figures = HostFigures(clock=clock)
    (first,) = figures_of(figures.add([reading(process(busy.pid))], EVERYTHING))
    assert first.cpu_percent is None
    assert first.fault("cpu_percent").code == FIRST_SAMPLE
    assert first.threads == 2 == measured.num_threads()
    assert first.rss_bytes == pytest.approx(measured.memory_info().rss, rel=0.05)
    assert first.fault("sm_percent") is None  # it is the driver's

    used = sum(measured.cpu_times()[:2])
    until(lambda: sum(measured.cpu_times()[:2]) >= used + 0.3)
    before = sum(measured.cpu_times()[:2])
    clock.advance(2.0)
    (second,) = figures_of(figures.add([reading(process(busy.pid))], EVERYTHING))
    after = sum(measured.cpu_times()[:2])
    assert (before - used) / 2 * 100 - 2 <= second.cpu_percent <= (after - used + 0.1) / 2 * 100
    assert second.faults == ()


def test_a_window_is_never_shorter_than_the_steps_of_processor_time_allow(clock):
    figures = HostFigures(clock=clock)
    mine = [reading(process(os.getpid()))]
    figures.add(mine, EVERYTHING)
    clock.advance(host_figures.MIN_WINDOW_SECONDS / 2)
    (early,) = figures_of(figures.add(mine, EVERYTHING))
    assert early.cpu_percent is None
    clock.advance(host_figures.MIN_WINDOW_SECONDS)
    (later,) = figures_of(figures.add(mine, EVERYTHING))
    assert later.cpu_percent is not None


def test_nothing_is_read_until_it_is_shown_and_each_process_once(monkeypatch, clock):
    read = []
    monkeypatch.setattr(host_figures, "load_stat", lambda pid: read.append(pid) or load_stat(pid))
    figures = HostFigures(clock=clock)
    mine, other = process(os.getpid()), process(os.getppid())
    two_gpus = [reading(mine, other), replace(reading(mine), index=1)]
    assert figures.add(two_gpus, Demand()) == two_gpus
    assert figures.add(two_gpus, Demand(process_figures=frozenset({"sm_percent"}))) == two_gpus
    assert read == []
    first, _, second = figures_of(figures.add(two_gpus, EVERYTHING))
    assert read == [os.getpid(), os.getppid()]
    assert first == second


def test_unknown_figures_have_a_reason(busy, clock, monkeypatch):
    figures = HostFigures(clock=clock)
    (elsewhere,) = figures_of(figures.add([reading(process(busy.pid, start_time=None))], EVERYTHING))
    assert elsewhere.rss_bytes is None
    assert "another container" in elsewhere.fault("rss_bytes").message
    busy.kill()
    until(lambda: psutil.Process(busy.pid).status() == psutil.STATUS_ZOMBIE)
    (zombie,) = figures_of(figures.add([reading(process(busy.pid))], EVERYTHING))
    busy.wait()
    (gone,) = figures_of(figures.add([reading(process(busy.pid))], EVERYTHING))
    assert zombie == gone
    assert {fault.code for fault in gone.faults} == {"ENDED"}
    assert (gone.threads, gone.rss_bytes, gone.cpu_percent) == (None, None, None)

    def refuse(pid):
        raise PermissionError(13, "Permission denied", f"/proc/{pid}/stat")

    monkeypatch.setattr(host_figures, "load_stat", refuse)
    (hidden,) = figures_of(figures.add([reading(process(os.getpid()))], EVERYTHING))
    assert {fault.code for fault in hidden.faults} == {"NO_PERMISSION"}
