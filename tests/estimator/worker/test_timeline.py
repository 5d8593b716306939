from vramtop.estimator.worker.memory.replay import MAX_TIMELINE_POINTS, replay_reserved

MIB = 1 << 20


def replayed(events, marks=(), capacity=None):
    return replay_reserved(list(enumerate(events)), marks, {"capacity_bytes": capacity})


def test_points_follow_the_events():
    found = replayed([("a", 3 * MIB, 0), ("b", 12 * MIB, 1), ("a", None, 0)])
    assert found["timeline"] == [[0, 20 * MIB], [1, 32 * MIB], [2, 32 * MIB]]
    assert (found["peak"], found["retries"], found["out_of_memory"]) == (32 * MIB, 0, None)
    nothing = replayed([])
    assert (nothing["timeline"], nothing["peak"]) == ([], 0)


def test_few_points_are_kept_of_many_events_and_the_peaks_and_those_asked_for_among_them():
    events = []
    for tooth in range(1000):
        events += [((tooth, side), MIB // 2, 0) for side in "ab"]
        events.append(((tooth, "b"), None, 0))
        if tooth == 321:
            events += [("spike", 900 * MIB, 0), ("spike", None, 0)]
    found = replayed(events, marks=[1234, 10**9])
    at = [event for event, _ in found["timeline"]]
    assert MAX_TIMELINE_POINTS // 2 <= len(at) <= MAX_TIMELINE_POINTS + 1
    assert at == sorted(set(at))
    spike = events.index(("spike", 900 * MIB, 0))
    assert {0, 1234, spike, len(events) - 1} <= set(at)
    highest = [event for event in range(12) if event % 3 == 1][-1]  # of a stretch of 12 events: 4 teeth rise
    assert highest in at


def test_running_out_of_memory_ends_the_replay_and_is_reported():
    found = replayed([("a", 40 * MIB, 0), ("b", 30 * MIB, 0), ("a", None, 0)], capacity=64 * MIB)
    assert found["timeline"] == [[0, 40 * MIB]]
    assert "out of memory: 30 MiB requested, 24 free" in found["out_of_memory"]
    assert (found["peak"], found["retries"]) == (40 * MIB, 1)
