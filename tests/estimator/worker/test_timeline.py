from vramtop.estimator.worker.memory.replay import replay_reserved

MIB = 1 << 20


def replayed(events, marks=(), capacity=None):
    return replay_reserved(list(enumerate(events)), marks, {"capacity_bytes": capacity})


def test_reserved_bytes_follow_the_events():
    found = replayed([("a", 3 * MIB, 0), ("b", 12 * MIB, 1), ("a", None, 0)], marks=[0, 1, 2, 10**9])
    assert found["at"] == [20 * MIB, 32 * MIB, 32 * MIB, 32 * MIB]
    assert (found["peak"], found["retries"], found["out_of_memory"]) == (32 * MIB, 0, None)
    nothing = replayed([], marks=[5])
    assert (nothing["at"], nothing["peak"]) == ([0], 0)


def test_running_out_of_memory_ends_the_replay_and_is_reported():
    found = replayed([("a", 40 * MIB, 0), ("b", 30 * MIB, 0), ("a", None, 0)], marks=[2], capacity=64 * MIB)
    assert found["at"] == [40 * MIB]
    assert "out of memory: 30 MiB requested, 24 free" in found["out_of_memory"]
    assert (found["peak"], found["retries"]) == (40 * MIB, 1)
