from vramtop.monitor.fleet.schedulers import NodeSpace, spread_over


def nodes(*gpus: int, memory: int | None = None, cpus: int | None = None) -> list[NodeSpace]:
    return [NodeSpace(gpus=n, memory_bytes=memory, cpus=cpus) for n in gpus]


def test_ranks_are_spread_evenly_over_the_fewest_nodes() -> None:
    spread = spread_over(16, nodes(8, 8, 4), lambda ranks: 0)
    assert spread is not None
    assert (spread.nodes, spread.per_node) == (2, 8)
    spread = spread_over(6, nodes(4, 4), lambda ranks: 0)
    assert spread is not None
    assert (spread.nodes, spread.per_node) == (2, 3)
    assert spread_over(5, nodes(4, 4), lambda ranks: 0) is None
    assert spread_over(4, nodes(2, 2), lambda ranks: 0, max_nodes=1) is None


def test_ram_and_processors_limit_the_ranks_of_a_node() -> None:
    spread = spread_over(4, nodes(4, 4, 4, 4, memory=100), lambda ranks: 40 * ranks)
    assert spread is not None
    assert (spread.nodes, spread.per_node) == (2, 2)
    assert spread_over(4, nodes(4, cpus=2), lambda ranks: 0) is None
    assert spread_over(1, nodes(1, memory=None), lambda ranks: 10**12) is not None  # unknown: not checked
