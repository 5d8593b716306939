from vramtop.estimator.worker.memory.allocator import CachingAllocator, Point, replay
from vramtop.estimator.worker.memory.allocator_settings import AllocatorSettings

MIB = 1 << 20


def test_points_follow_the_events():
    events = [("a", 3 * MIB, 0), ("b", 12 * MIB, 1), ("a", None, 0)]
    line = replay(events, CachingAllocator(AllocatorSettings()))
    assert line.points == [
        Point(0, 3 * MIB, 20 * MIB),
        Point(1, 15 * MIB, 32 * MIB),
        Point(2, 12 * MIB, 32 * MIB),
    ]
    assert line.peak_allocated == line.peak_reserved == Point(1, 15 * MIB, 32 * MIB)
    assert (line.events, line.retries, line.out_of_memory) == (3, 0, None)


def test_no_events():
    line = replay([], CachingAllocator(AllocatorSettings()))
    assert (line.points, line.events, line.peak_allocated, line.peak_reserved) == ([], 0, None, None)


def saw(teeth):
    """Return events that allocate 1 MiB per tooth and free half of it; two spikes stand out."""
    events = []
    for tooth in range(teeth):
        events += [((tooth, side), MIB // 2, 0) for side in "ab"]
        events.append(((tooth, "b"), None, 0))
        if tooth == 321:
            events += [("spike", 900 * MIB, 0), ("spike", None, 0)]
        if tooth == 654:
            events += [("odd", 1, 7), ("odd", None, 0)]
    return events


def test_few_points_are_kept_of_many_events_and_both_peaks_among_them():
    events = saw(1000)
    line = replay(events, CachingAllocator(AllocatorSettings()), max_points=50)
    every = replay(events, CachingAllocator(AllocatorSettings()), max_points=len(events) + 2)
    assert len(every.points) == every.events == len(events)
    assert 25 <= len(line.points) <= 50
    assert set(line.points) < set(every.points)
    assert line.points == sorted(line.points)
    assert {line.peak_allocated, line.peak_reserved, every.points[0], every.points[-1]} <= set(line.points)
    assert line.peak_allocated == max(every.points, key=lambda point: point.allocated_bytes)
    assert line.peak_allocated.event == 3 * 322  # after 322 teeth
    assert line.peak_reserved.reserved_bytes == max(point.reserved_bytes for point in every.points)


def test_every_interval_keeps_its_lowest_and_highest_point():
    events = saw(1000)
    line = replay(events, CachingAllocator(AllocatorSettings()), max_points=104)  # 50 stretches
    every = replay(events, CachingAllocator(AllocatorSettings()), max_points=len(events) + 2).points
    kept = {point.event for point in line.points}
    for number in range(50):
        stretch = every[len(every) * number // 50 : len(every) * (number + 1) // 50]
        assert min(stretch, key=lambda point: point.allocated_bytes).event in kept
        assert max(stretch, key=lambda point: point.allocated_bytes).event in kept


def test_running_out_of_memory_ends_the_replay_and_is_reported():
    events = [("a", 40 * MIB, 0), ("b", 30 * MIB, 0), ("a", None, 0)]
    line = replay(events, CachingAllocator(AllocatorSettings(), 64 * MIB))
    assert line.events == 1
    assert "out of memory: 30 MiB asked for, 24 free" in line.out_of_memory
    assert (line.peak_reserved, line.retries) == (Point(0, 40 * MIB, 40 * MIB), 1)


def test_a_second_replay_continues_where_the_first_ended():
    allocator = CachingAllocator(AllocatorSettings(), 64 * MIB)
    replay([("a", 40 * MIB, 0), ("a", None, 0)], allocator)
    line = replay([("b", 44 * MIB, 0)], allocator)  # the 40 must go first
    assert line.points == [Point(0, 44 * MIB, 44 * MIB)]
    assert line.retries == 1
