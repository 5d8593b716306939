"""Counters of probed processes beside NVML's rows, for real processes with a stub torch and a scripted driver."""

import os
import shutil
import subprocess
import sys
import time
import warnings

import psutil
import pytest
from builders import make_gpu, make_process
from fake_driver import FakeGpu, FakeProcess
from waiting import until

from vramtop.estimator.common.records import replace
from vramtop.monitor.probe.launch import probed_environment
from vramtop.monitor.probe.probe_directory import SEARCH_INTERVALS_SECONDS, ProbeDirectory
from vramtop.monitor.probe.probe_reader import ProbeReader, find_probe
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.sources.recording import RecordingWriter, read_recording
from vramtop.monitor.sources.replay import shift_times

MIB = 2**20
GIB = 2**30
FIRST, SECOND = "11111111-aaaa-bbbb-cccc-000000000001", "22222222-aaaa-bbbb-cccc-000000000002"


@pytest.fixture
def start(tmp_path, start_python, write_stub_torch):
    """Start Python code under the probe, and wait for the line that it prints."""
    write_stub_torch()

    def start_code(code, *, under_run=True):
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        environ = probed_environment(environ) if under_run else environ
        process = start_python(code, env=environ, stderr=subprocess.DEVNULL)
        assert process.stdout.readline() == "up\n"
        return process

    return start_code


@pytest.fixture
def probes(clock):
    """A probe directory with a clock that stands still."""
    directory = ProbeDirectory(clock=clock, now=time.time)
    yield directory
    directory.close()


def gpus_with(*placed):
    """Make two GPUs with each process on the given one."""
    rows = {0: [], 1: []}
    for pid, *indices in placed:
        for index in indices:
            rows[index].append(make_process(pid, 10, start_time=psutil.Process(pid).create_time()))
    return [make_gpu(index, rows[index], uuid=f"GPU-{uuid}") for index, uuid in enumerate((FIRST, SECOND))]


def counters_of(readings):
    return [[process.counters for process in reading.processes] for reading in readings]


def wait_for_counters(probes, clock, readings, wanted=lambda readings: True):
    """Wait until the published counters meet the condition, and return the readings."""
    found = []

    def published():
        clock.advance(SEARCH_INTERVALS_SECONDS[-1])
        done, _ = probes.add_counters(readings)
        if any(process.counters for reading in done for process in reading.processes) and wanted(done):
            found.append(done)
        return found

    until(published)
    return found[0]


TWO_DEVICES = """
    import sys, time, torch
    torch.cuda.allocated.update({0: 3 << 20, 1: 5 << 20})
    print("up", flush=True)
    sys.stdin.read()
"""


def test_a_process_on_two_gpus_has_counters_for_each(start, probes, clock):
    process = start(TWO_DEVICES)
    both = wait_for_counters(
        probes, clock, gpus_with((process.pid, 0, 1)), lambda r: r[1].processes[0].counters.allocated_bytes
    )
    assert [each[0].allocated_bytes for each in counters_of(both)] == [3 * MIB, 5 * MIB]
    assert [each[0].steps for each in counters_of(both)] == [None, None]


def test_devices_are_matched_by_uuid_not_by_index(start, probes, clock):
    process = start("""
        import sys, torch
        torch.cuda.uuids.reverse()  # CUDA_VISIBLE_DEVICES=1,0
        torch.cuda.allocated[0] = 3 << 20
        print("up", flush=True)
        sys.stdin.read()
    """)
    done = wait_for_counters(
        probes, clock, gpus_with((process.pid, 0, 1)), lambda r: r[1].processes[0].counters.allocated_bytes
    )
    ((first,), (second,)) = counters_of(done)
    assert (first.allocated_bytes, first.out_of_memory) == (None, None)
    assert second.allocated_bytes == 3 * MIB


@pytest.mark.parametrize(("on", "known"), [((1,), [5 * MIB]), ((0, 1), [None, None])])
def test_without_uuids_only_a_single_gpu_can_be_matched(start, probes, clock, on, known):
    process = start("""
        import sys, torch
        torch.cuda.names_gpus = False
        torch.cuda.allocated[0] = 5 << 20
        print("up", flush=True)
        sys.stdin.read()
    """)
    reader = ProbeReader(process.pid)
    until(lambda: (sample := reader.read()) and sample.devices)  # the first sample may precede the allocation
    done = wait_for_counters(probes, clock, gpus_with((process.pid, *on)))
    assert [counters.allocated_bytes for each in counters_of(done) for counters in each] == known


def test_a_process_without_probe_is_searched_again_at_intervals(start, probes, clock, monkeypatch):
    searched = []
    monkeypatch.setattr(
        "vramtop.monitor.probe.probe_directory.find_probe", lambda pid: searched.append(pid) or find_probe(pid)
    )
    process = start("""
        import sys
        print("up", flush=True)
        sys.stdin.readline()
        import torch
        print("up", flush=True)
        sys.stdin.read()
    """)
    readings = gpus_with((process.pid, 0))
    assert counters_of(probes.add_counters(readings)[0]) == [[None], []]
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    until(lambda: find_probe(process.pid) is not None)
    clock.advance(SEARCH_INTERVALS_SECONDS[0] - 1)
    probes.add_counters(readings)
    assert len(searched) == 1
    clock.advance(1)
    probes.add_counters(readings)
    clock.advance(SEARCH_INTERVALS_SECONDS[1] - 1)
    probes.add_counters(readings)
    assert len(searched) == 2
    wait_for_counters(probes, clock, readings)


def test_a_process_that_is_not_visible_is_not_searched(probes, monkeypatch):
    monkeypatch.setattr("vramtop.monitor.probe.probe_directory.find_probe", pytest.fail)
    readings = [make_gpu(0, [make_process(4711, 10, start_time=None)])]
    assert probes.add_counters(readings) == (readings, ())


def test_a_process_that_hides_its_files_has_no_counters(probes):
    readings = [make_gpu(0, [make_process(2**22 - 1, 10)])]
    assert probes.add_counters(readings) == (readings, ())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_has_no_counters(start, clock):
    process = start(TWO_DEVICES)
    readings = gpus_with((process.pid, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it warns of threads of other tests
        child = os.fork()
    if child == 0:
        os.setuid(65534)
        os._exit(0 if ProbeDirectory(clock=clock, now=time.time).add_counters(readings) == (readings, ()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def may_unshare():
    """Return True if this user may create pid namespaces."""
    command = ["unshare", "--pid", "--fork", "true"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.skipif(not may_unshare(), reason="makes a pid namespace")
def test_a_probe_in_a_container_publishes_another_pid(start, probes, clock):
    process = start("""
        import os, subprocess, sys
        code = "import torch, time; torch.cuda.allocated[0] = 5 << 20; print('up', flush=True); time.sleep(60)"
        os.execvp("unshare", ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code])
    """)
    (inside,) = psutil.Process(process.pid).children()
    done = wait_for_counters(
        probes, clock, gpus_with((inside.pid, 0)), lambda r: r[0].processes[0].counters.allocated_bytes
    )
    assert counters_of(done)[0][0].allocated_bytes == 5 * MIB


def test_final_counters_include_a_failed_allocation_and_are_returned_once(start, probes, clock):
    process = start("""
        import sys, torch
        torch.cuda.allocated[0] = 70 << 30
        print("up", flush=True)
        sys.stdin.read()
        torch.cuda.ooms = 1
        raise torch.OutOfMemoryError("CUDA out of memory")
    """)
    readings = gpus_with((process.pid, 0))
    wait_for_counters(probes, clock, readings, lambda r: r[0].processes[0].counters.allocated_bytes)
    process.stdin.close()
    process.wait()
    before = time.time()
    done, (words,) = probes.add_counters([replace(reading, processes=()) for reading in readings])
    assert (words.gpu, words.pid, words.start_time) == (0, process.pid, readings[0].processes[0].start_time)
    counters = words.counters
    assert (counters.allocated_bytes, counters.out_of_memory, counters.error) == (70 * GIB, 1, "OutOfMemoryError")
    assert counters.ended == pytest.approx(counters.out_of_memory_time, abs=5)
    assert counters.ended < before
    assert probes.add_counters(done) == (done, ())


def test_an_unreadable_process_list_ends_no_process(start, probes, clock):
    process = start(TWO_DEVICES)
    readings = gpus_with((process.pid, 0))
    wait_for_counters(probes, clock, readings)
    unread = [replace(readings[0], processes=None), readings[1]]
    assert probes.add_counters(unread) == (unread, ())
    assert counters_of(probes.add_counters(readings)[0])[0][0] is not None


def test_the_sample_of_a_stopped_process_keeps_its_time(start, probes, clock):
    process = start(TWO_DEVICES)
    readings = gpus_with((process.pid, 0))
    wait_for_counters(probes, clock, readings)
    psutil.Process(process.pid).suspend()
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    first = counters_of(probes.add_counters(readings)[0])[0][0]
    clock.advance(SEARCH_INTERVALS_SECONDS[-1])
    assert counters_of(probes.add_counters(readings)[0])[0][0].time == first.time


def test_a_child_that_inherited_its_parents_probe_has_no_counters(start, probes, clock):
    """A fork outside Python leaves the parent's memory file open in the child."""
    process = start("""
        import ctypes, os, sys, torch
        torch.cuda.allocated[0] = 1
        child = ctypes.CDLL(None).fork()
        if child == 0:
            ctypes.CDLL(None).pause()
        print("up", flush=True)
        print(child, flush=True)
        sys.stdin.read()
    """)
    child = int(process.stdout.readline())
    assert find_probe(child) is not None
    wait_for_counters(probes, clock, gpus_with((process.pid, 0)))
    both = gpus_with((process.pid, 0), (child, 1))
    for _ in range(3):
        clock.advance(SEARCH_INTERVALS_SECONDS[-1])
        done, _ = probes.add_counters(both)
    assert counters_of(done)[0][0] is not None
    assert counters_of(done)[1] == [None]
    psutil.Process(child).kill()


def test_counters_survive_a_recording(start, driver, clock, tmp_path):
    process = start(TWO_DEVICES)
    driver.gpus = [
        FakeGpu(uuid=f"GPU-{uuid}", processes=[FakeProcess(process.pid, GIB, peak_bytes=2 * GIB)], accounting=True)
        for uuid in (FIRST, SECOND)
    ]
    source = NvmlSource(clock=clock)
    source.open()
    snapshots = []

    def published():
        clock.advance(SEARCH_INTERVALS_SECONDS[-1])
        snapshots.append(source.read())
        counters = snapshots[-1].gpus[1].processes[0].counters
        return counters is not None and counters.allocated_bytes

    until(published)
    snapshot = snapshots[-1]
    driver.gpus[0].processes = driver.gpus[1].processes = []
    with RecordingWriter(tmp_path / "run.jsonl.gz") as writer:
        writer.write(snapshot)
        writer.write(source.read())
    source.close()
    first, second = read_recording(tmp_path / "run.jsonl.gz")
    row = first.gpus[1].processes[0]
    assert first == snapshot
    assert (row.counters.allocated_bytes, row.peak_bytes) == (5 * MIB, 2 * GIB)
    assert [words.gpu for words in second.last_words] == [0, 1]
    later = shift_times(second, 100.0).last_words[0]
    assert later.counters.time == second.last_words[0].counters.time + 100
    assert shift_times(first, 100.0).gpus[1].processes[0].counters.time == row.counters.time + 100


@pytest.mark.parametrize(
    "payload",
    [
        'b"[" * 100_000',
        """b'{"pid": 1, "time": 1, "trainer": ' + b'{"a":' * 500 + b"1" + b"}" * 501""",
        """b'{"pid": 1}'""",
        """b'{"pid": 1, "time": 1e999, "devices": [{}]}'""",
        'b"\\xff"',
    ],
    ids=["deep", "deep facts", "half", "numberless", "binary"],
)
def test_a_malformed_probe_file_is_ignored(start, probes, payload):
    process = start(f"""
        import os, struct, sys
        file = os.memfd_create("vramtop-probe")
        payload = {payload}
        os.write(file, struct.pack("<8sQII", b"VRAMTOP1", 2, len(payload), 0) + payload)
        print("up", flush=True)
        sys.stdin.read()
    """)
    readings = gpus_with((process.pid, 0))
    assert find_probe(process.pid) is not None
    assert probes.add_counters(readings) == (readings, ())
