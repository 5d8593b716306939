"""Histories of GPUs and processes."""

from builders import make_gpu, make_process, make_snapshot

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.snapshot.figures import NO_ANSWER, Fault
from vramtop.monitor.snapshot.memory_history import MemoryHistory


def test_samples_are_oldest_first_and_the_oldest_are_dropped():
    history = MemoryHistory(capacity=3)
    for second in range(5):
        process = make_process(used=second)
        history.add(make_snapshot([make_gpu(0, [process])], time=2000.0 + second))
    assert history.gpu("GPU-00000000") == [(2002.0, 3 * GIB), (2003.0, 4 * GIB), (2004.0, 5 * GIB)]
    assert history.process(("GPU-00000000", 4711, 1000.0)) == [(2002.0, 2 * GIB), (2003.0, 3 * GIB), (2004.0, 4 * GIB)]


def test_the_whole_lifetime_is_kept_as_peaks_of_growing_intervals():
    history, key = MemoryHistory(capacity=4), ("GPU-00000000", 4711, 1000.0)
    for second in range(100):
        used = 70 if second == 33 else None if second == 99 else 20
        history.add(make_snapshot([make_gpu(0, [make_process(used=used)])], time=2000.0 + second))
    assert history.process(key) == [*((2096.0 + n, 20 * GIB) for n in range(3)), (2099.0, None)]
    life = history.lifetime(key)
    assert life[-4:] == history.process(key)
    assert life[0][0] == 2000.0
    assert len(life) <= 8
    assert max(size for _, size in life if size is not None) == 70 * GIB
    assert [time for time, _ in life] == sorted({time for time, _ in life})
    assert history.lifetime((0, 1, 1.0)) == []


def test_stale_figures_add_no_samples():
    """While a driver hangs, the repeated figures would look as if nothing changed."""
    history = MemoryHistory()
    hangs = Fault(field=None, code=NO_ANSWER, message="the driver hangs on this GPU")
    process = make_process(used=20)
    history.add(make_snapshot([make_gpu(0, [process])]))
    history.add(make_snapshot([make_gpu(0, [process], faults=(hangs,))], time=2001.0))
    key = ("GPU-00000000", 4711, 1000.0)
    assert history.gpu("GPU-00000000") == [(2000.0, 21 * GIB), (2001.0, None)]
    assert history.process(key) == history.lifetime(key) == [(2000.0, 20 * GIB), (2001.0, None)]


def test_a_gpu_without_uuid_is_identified_by_its_index():
    history = MemoryHistory()
    gpu = make_gpu(3, uuid=None)
    history.add(make_snapshot([gpu]))
    assert gpu.key == 3
    assert len(history.gpu(3)) == 1


def test_a_reused_pid_has_a_history_of_its_own():
    history = MemoryHistory()
    history.add(make_snapshot([make_gpu(0, [make_process(used=9)])]))
    history.add(make_snapshot([make_gpu(0, [make_process(used=1, start_time=1990.0)])], time=2001.0))
    assert history.process(("GPU-00000000", 4711, 1990.0)) == [(2001.0, GIB)]
    assert history.process(("GPU-00000000", 4711, 1000.0)) == [(2000.0, 9 * GIB)]


def test_ended_processes_are_forgotten_after_a_while():
    history = MemoryHistory(keep_seconds=10)
    history.add(make_snapshot([make_gpu(0, [make_process()]), make_gpu(1)]))
    history.add(make_snapshot([make_gpu(0)], time=2010.0))
    assert history.process(("GPU-00000000", 4711, 1000.0))
    history.add(make_snapshot([make_gpu(0)], time=2010.1))
    assert history.process(("GPU-00000000", 4711, 1000.0)) == history.lifetime((0, 4711, 1000.0)) == []
    assert history.gpu("GPU-00000001") == []
    assert len(history.gpu("GPU-00000000")) == 3


def test_utilisation_power_and_temperature_are_kept_for_each_gpu():
    history = MemoryHistory(capacity=3)
    for at in range(5):
        gpu = make_gpu(utilisation_percent=10 * at, power_w=None if at == 3 else 100.4 + at)
        history.add(make_snapshot([gpu], time=2_000.0 + at))
    key = gpu.key
    assert history.activity(key, "utilisation_percent") == [(2_002.0, 20), (2_003.0, 30), (2_004.0, 40)]
    assert history.activity(key, "power_w") == [(2_002.0, 102), (2_003.0, None), (2_004.0, 104)]
    assert history.activity("other", "power_w") == []
    stale = make_gpu(faults=(Fault(field=None, code=NO_ANSWER, message="hangs"),))
    history.add(make_snapshot([stale], time=2_005.0))
    assert history.activity(key, "utilisation_percent")[-1] == (2_005.0, None)
    history.add(make_snapshot([], time=3_000.0))
    assert history.activity(key, "utilisation_percent") == []
