"""Driver calls that hang: other GPUs are read, and nothing waits for the hanging calls."""

import re
import threading

import pytest
from fake_driver import FakeGpu
from waiting import until

from vramtop.monitor.sources.nvml.device_calls import NoDriverError
from vramtop.monitor.sources.nvml.device_threads import CallThread
from vramtop.monitor.sources.nvml.nvml_source import COUNT_INTERVAL_SECONDS, NvmlSource

GIB = 2**30
PATIENCE = 0.05


@pytest.fixture
def waits(driver, monkeypatch):
    """Record waits for threads with a hanging call: the thread, and the time limit of the wait.

    A wait lasts until the call has returned, however slow the machine is, or hangs. So a slow call never counts as one
    that hangs.
    """
    waits = []

    def wait(thread, seconds):
        def hangs():
            return thread._thread is not None and thread._thread.ident in driver.hanging_threads

        until(lambda: thread.idle or hangs())
        if not thread.idle:
            waits.append((thread, seconds))
        return thread.idle

    def begin(thread, function):
        thread.begun_before_waits = len({waited for waited, _ in waits})
        run(thread, function)

    run = CallThread.run
    monkeypatch.setattr(CallThread, "run", begin)
    monkeypatch.setattr(CallThread, "wait", wait)
    return waits


@pytest.fixture
def source(driver, clock, waits):
    """A source with short time limits that the test opens after it has set the GPUs; its clock starts at 1,000 s."""
    source = NvmlSource(clock=clock, now=clock, timeout=PATIENCE, first_timeout=PATIENCE)
    yield source
    source.close()


@pytest.fixture
def three_gpus(driver):
    driver.gpus = [FakeGpu(uuid=f"GPU-{number}") for number in range(3)]


@pytest.fixture
def read_source(source, three_gpus):
    """The source of three GPUs, opened and read once."""
    source.open()
    source.read()
    return source


def codes(gpu):
    return [fault.code for fault in gpu.faults]


def set_used_bytes(driver, size):
    for gpu in driver.gpus:
        gpu.used_bytes = size


def test_a_gpu_that_hangs_keeps_its_old_figures_and_the_others_are_read(driver, read_source, clock):
    driver.hang("nvmlDeviceGetMemoryInfo", 1)
    set_used_bytes(driver, 30 * GIB)
    clock.advance(1)
    first, second, third = read_source.read().gpus
    assert (first.used_bytes, third.used_bytes) == (30 * GIB, 30 * GIB)
    assert (first.read_at, third.read_at) == (1001, 1001)
    assert first.faults == third.faults == ()
    assert (second.used_bytes, second.read_at) == (20 * GIB, 1000)
    assert second.is_stale
    assert codes(second) == ["NO_ANSWER"]
    assert re.search(r"nvmlDeviceGetMemoryInfo has not returned for \d+ s", second.faults[0].message)
    assert "its figures are old" in second.faults[0].message


def test_a_hanging_gpu_delays_no_others_and_is_not_queried_again(driver, read_source, clock, waits):
    driver.hang("*", 1)
    read_source.read()
    asked = driver.calls["nvmlDeviceGetMemoryInfo_v2"]
    waits.clear()
    for _ in range(5):
        clock.advance(1)
        first, second, third = read_source.read().gpus
        assert waits == []
        assert (first.read_at, third.read_at) == (clock.time, clock.time)
        assert second.read_at == 1000
    assert driver.calls["nvmlDeviceGetMemoryInfo_v2"] == asked + 10


def test_a_gpu_that_recovers_is_read_as_before(driver, read_source, clock):
    driver.hang("nvmlDeviceGetMemoryInfo", 1)
    read_source.read()
    set_used_bytes(driver, 30 * GIB)
    clock.advance(9)
    driver.release()
    until(lambda: not driver.pending_calls["nvmlDeviceGetMemoryInfo_v2"])
    until(lambda: not read_source.read().gpus[1].faults)
    gpu = read_source.read().gpus[1]
    assert (gpu.used_bytes, gpu.read_at) == (30 * GIB, 1009)
    clock.advance(1)
    assert [gpu.read_at for gpu in read_source.read().gpus] == [1010, 1010, 1010]


def test_several_hanging_gpus_are_waited_for_together_and_each_is_named(driver, source, waits, three_gpus):
    driver.gpus += [FakeGpu(uuid=f"GPU-{number}") for number in range(3, 12)]
    source.open()
    source.read()
    for number in range(11):
        driver.hang("nvmlDeviceGetMemoryInfo", number)
    waits.clear()
    gpus = source.read().gpus
    new_threads = list(dict.fromkeys(thread for thread, _ in waits))
    assert len(new_threads) == 11
    # the first call is waited for alone; the others all start before the first wait for one of them
    assert [thread.begun_before_waits for thread in new_threads] == [0, *[1] * 10]
    assert [codes(gpu) for gpu in gpus] == [["NO_ANSWER"]] * 11 + [[]]


def test_a_gpu_that_hangs_from_the_start_has_a_reading_without_figures(driver, source, three_gpus):
    driver.hang("nvmlDeviceGetHandleByIndex", 0)
    source.open()
    first, second, third = source.read().gpus
    assert (first.index, first.total_bytes, first.used_bytes, first.processes) == (0, None, None, None)
    assert codes(first) == ["NO_ANSWER"]
    assert "nvmlDeviceGetHandleByIndex has not returned" in first.reason("used_bytes")
    assert "it has no figures yet" in first.reason("used_bytes")
    assert (second.used_bytes, third.used_bytes) == (20 * GIB, 20 * GIB)
    driver.release()
    until(lambda: source.read().gpus[0].used_bytes == 20 * GIB)


def test_a_driver_that_hangs_at_its_start_is_reported_and_used_when_it_recovers(driver, source, waits, three_gpus):
    driver.hang("nvmlInitWithFlags")
    with pytest.raises(NoDriverError, match="the NVIDIA driver hangs: nvmlInit has not returned for 0 s"):
        source.open()
    source.close()
    waits.clear()
    with pytest.raises(NoDriverError, match="hangs"):
        source.open()  # the same call is still running: no wait and no second call
    assert [seconds for _, seconds in waits] == [0.0]
    assert driver.calls["nvmlInitWithFlags"] == 1
    driver.release()
    until(lambda: not driver.pending_calls["nvmlInitWithFlags"])
    until(lambda: driver.calls["nvmlDeviceGetCount_v2"])
    source.open()
    assert source.read().gpus[0].used_bytes == 20 * GIB
    assert driver.calls["nvmlInitWithFlags"] == 1


def test_a_count_that_hangs_is_reported_and_the_figures_continue(driver, read_source, clock):
    driver.hang("nvmlDeviceGetCount")
    clock.advance(COUNT_INTERVAL_SECONDS)
    snapshot = read_source.read()
    assert "nvmlDeviceGetCount has not returned" in snapshot.faults[0].message
    assert [gpu.read_at for gpu in snapshot.gpus] == [clock.time] * 3
    driver.gpus.append(FakeGpu(uuid="GPU-3"))
    driver.release()
    until(lambda: len(read_source.read().gpus) == 4)
    assert read_source.read().faults == ()


def test_nvml_is_never_shut_down_while_a_call_is_pending(driver, read_source, waits):
    driver.hang("*", 2)
    read_source.read()
    waits.clear()
    read_source.close()
    assert waits == []
    assert driver.calls["nvmlShutdown"] == 0
    read_source.open()
    read_source.read()
    read_source.close()
    assert driver.calls["nvmlShutdown"] == 0  # the earlier call is still running
    driver.release()
    until(lambda: not +driver.pending_calls)
    read_source.open()
    read_source.read()
    until(lambda: all(thread.idle for thread in read_source._hung_threads))
    read_source.close()
    assert driver.calls["nvmlShutdown"] == 1
    assert driver.calls_interrupted_by_shutdown == []


def test_closing_does_not_wait_for_a_shutdown_that_hangs(driver, read_source, waits):
    hang = driver.hang("nvmlShutdown")
    read_source.close()
    ((_, seconds),) = waits
    assert seconds < 1
    hang.set()


def new_threads(before):
    """Return the threads for driver calls that were started since ``before``."""
    return {thread for thread in threading.enumerate() if thread.name == "vramtop-nvml"} - before


def test_a_gpu_that_hangs_and_disappears_leaves_no_thread(driver, source, clock, three_gpus):
    before = new_threads(set())
    source.open()
    source.read()
    driver.hang("*", 2)
    source.read()
    del driver.gpus[2]
    clock.advance(COUNT_INTERVAL_SECONDS)
    gone = source.read().gpus[2]
    assert codes(gone) == ["NOT_LISTED"]
    driver.gpus.append(driver.gpus[0])
    driver.release()
    source.read()
    source.close()
    until(lambda: not new_threads(before))
