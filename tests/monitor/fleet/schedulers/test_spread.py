from vramtop.monitor.fleet.schedulers import Room, spread_over


def rooms(*gpus: int, memory: int | None = None, cpus: int | None = None) -> list[Room]:
    return [Room(name=f"n{i}", gpus=n, memory_bytes=memory, cpus=cpus) for i, n in enumerate(gpus)]


def test_ranks_are_spread_evenly_over_the_fewest_nodes() -> None:
    spread = spread_over(16, rooms(8, 8, 4), lambda ranks: 0)
    assert spread is not None
    assert (spread.nodes, spread.per_node, spread.rooms) == (2, 8, ("n0", "n1"))
    spread = spread_over(6, rooms(4, 4), lambda ranks: 0)
    assert spread is not None
    assert (spread.nodes, spread.per_node) == (2, 3)
    assert spread_over(5, rooms(4, 4), lambda ranks: 0) is None
    assert spread_over(4, rooms(2, 2), lambda ranks: 0, max_nodes=1) is None


def test_ram_and_processors_limit_the_ranks_of_a_node() -> None:
    spread = spread_over(4, rooms(4, 4, 4, 4, memory=100), lambda ranks: 40 * ranks)
    assert spread is not None
    assert (spread.nodes, spread.per_node) == (2, 2)
    assert spread_over(4, rooms(4, cpus=2), lambda ranks: 0) is None
    assert spread_over(1, rooms(1, memory=None), lambda ranks: 10**12) is not None  # unknown: not checked
