"""Rings of readings per GPU and process."""

from vramtop.estimator.sizes import GIB
from vramtop.monitor.history import History, gpu_key


def test_readings_come_back_oldest_first_and_the_oldest_fall_out(make_snapshot, make_gpu, make_process):
    history = History(capacity=3)
    for second in range(5):
        process = make_process(used=second)
        history.add(make_snapshot([make_gpu(0, [process])], time=2000.0 + second))
    assert history.gpu("GPU-00000000") == [
        (2002.0, 3 * GIB),
        (2003.0, 4 * GIB),
        (2004.0, 5 * GIB),
    ]
    assert history.process((0, 4711, 1000.0)) == [(2002.0, 2 * GIB), (2003.0, 3 * GIB), (2004.0, 4 * GIB)]


def test_the_peak_outlives_the_ring(make_snapshot, make_gpu, make_process):
    history = History(capacity=2)
    for second, used in enumerate([10, 70, 20, 30, None]):
        history.add(make_snapshot([make_gpu(0, [make_process(used=used)])], time=2000.0 + second))
    assert history.peak_process((0, 4711, 1000.0)) == 70 * GIB
    assert history.process((0, 4711, 1000.0)) == [(2003.0, 30 * GIB), (2004.0, None)]


def test_what_is_not_known_stays_none(make_snapshot, make_gpu, make_process):
    history = History()
    history.add(make_snapshot([make_gpu(0, [make_process(used=None)], used_bytes=None)]))
    assert history.gpu("GPU-00000000") == [(2000.0, None)]
    assert history.process((0, 4711, 1000.0)) == [(2000.0, None)]
    assert history.peak_process((0, 4711, 1000.0)) is None


def test_sizes_are_exact_to_the_byte(make_snapshot, make_gpu):
    history = History()
    history.add(make_snapshot([make_gpu(used_bytes=150_754_820_097)]))
    assert history.gpu("GPU-00000000") == [(2000.0, 150_754_820_097)]


def test_a_gpu_without_uuid_goes_by_its_index(make_snapshot, make_gpu):
    history = History()
    gpu = make_gpu(3, uuid=None)
    history.add(make_snapshot([gpu]))
    assert gpu_key(gpu) == 3
    assert len(history.gpu(3)) == 1


def test_a_reused_pid_has_a_history_of_its_own(make_snapshot, make_gpu, make_process):
    history = History()
    history.add(make_snapshot([make_gpu(0, [make_process(used=9)])]))
    history.add(make_snapshot([make_gpu(0, [make_process(used=1, start_time=1990.0)])], time=2001.0))
    assert history.peak_process((0, 4711, 1990.0)) == GIB
    assert history.peak_process((0, 4711, 1000.0)) == 9 * GIB


def test_the_dead_are_forgotten_after_a_while(make_snapshot, make_gpu, make_process):
    history = History(keep_seconds=10)
    history.add(make_snapshot([make_gpu(0, [make_process()]), make_gpu(1)]))
    history.add(make_snapshot([make_gpu(0)], time=2010.0))
    assert history.process((0, 4711, 1000.0))
    history.add(make_snapshot([make_gpu(0)], time=2010.1))
    assert history.process((0, 4711, 1000.0)) == []
    assert history.peak_process((0, 4711, 1000.0)) is None
    assert history.gpu("GPU-00000001") == []
    assert len(history.gpu("GPU-00000000")) == 3
