"""Which processes on many hosts are one run."""

import pytest

from vramtop.monitor.fleet.fleet import group_ranks

MASTER = {"master": "node01:29500", "world_size": 4}


def places(runs):
    return [[(rank.host.host, rank.process.pid) for rank in run.ranks] for run in runs]


@pytest.mark.parametrize(
    "shared",
    [
        {"rendezvous": "a3f1"},
        {"slurm_job": "4711.0"},
        {"pod_group": "tune-0.tune.ml"},
        {"master": "node01:29500"},
        {"ray_job": "10.0.0.1:6379 01000000"},
    ],
    ids=lambda shared: next(iter(shared)),
)
def test_ranks_that_share_a_fact_are_one_run_over_hosts(make_host, make_rank, shared):
    def ranks(first):
        return [make_rank(50 + n, facts={**shared, "rank": first + n, "world_size": 4}) for n in (1, 0)]

    (run,) = group_ranks([make_host("b", *ranks(2)), make_host("a", *ranks(0))])
    assert [(rank.host.host, rank.rank) for rank in run.ranks] == [("a", 0), ("a", 1), ("b", 2), ("b", 3)]
    assert run.world_size == 4
    assert run.unseen_ranks == 0
    (other,) = {key: "9" + value for key, value in shared.items()}.items()
    apart = make_rank(9, facts={**dict([other]), "rank": 0, "world_size": 4})
    assert len(group_ranks([make_host("a", *ranks(0)), make_host("b", apart)])) == 2


def test_the_master_is_the_same_by_its_long_name_and_as_loopback_on_itself(make_host, make_rank):
    addresses = {"node01": "localhost:29500", "node02": "node01.cluster.example:29500", "node03": "NODE01:29500"}
    hosts = [
        make_host(name, make_rank(7, facts={"master": address, "rank": at, "world_size": 3}))
        for at, (name, address) in enumerate(addresses.items())
    ]
    assert places(group_ranks(hosts)) == [[("node01", 7), ("node02", 7), ("node03", 7)]]


def test_loopback_on_two_hosts_is_two_runs(make_host, make_rank):
    facts = {"master": "127.0.0.1:29500", "world_size": 2}
    hosts = [
        make_host(name, *(make_rank(n, run=0, facts={**facts, "rank": n}) for n in range(2))) for name in ("a", "b")
    ]
    assert places(group_ranks(hosts)) == [[("a", 0), ("a", 1)], [("b", 0), ("b", 1)]]


def kubeflow(make_host, make_rank, name, rank, **changes):
    """One pod of a PyTorchJob of three, on a node of another name than its service."""
    address = "localhost" if rank == 0 else "tune-master-0"
    facts = {"master": f"{address}:23456", "rank": rank, "world_size": 3}
    return make_host(name, make_rank(rank, facts=facts, run=rank, **changes))


def test_a_master_that_calls_itself_localhost_is_joined_with_its_workers(make_host, make_rank):
    hosts = [kubeflow(make_host, make_rank, f"gpu-{rank}", rank) for rank in range(3)]
    assert places(group_ranks(hosts)) == [[("gpu-0", 0), ("gpu-1", 1), ("gpu-2", 2)]]


def test_it_is_left_alone_where_that_is_not_certain(make_host, make_rank):
    workers = [kubeflow(make_host, make_rank, f"gpu-{rank}", rank) for rank in (1, 2)]
    masters = [kubeflow(make_host, make_rank, name, 0) for name in ("gpu-8", "gpu-9")]
    assert len(group_ranks([*masters, *workers])) == 3
    another = kubeflow(make_host, make_rank, "gpu-8", 0, user="bob")
    assert len(group_ranks([another, *workers])) == 2


def test_addresses_are_compared_as_a_whole(make_host, make_rank):
    hosts = [
        make_host(name, make_rank(1, facts={"master": f"{address}:29500", "rank": at, "world_size": 2}))
        for at, (name, address) in enumerate((("a", "10.0.0.1"), ("b", "10.0.0.2")))
    ]
    assert len(group_ranks(hosts)) == 2


def test_a_rank_that_is_on_two_hosts_is_in_two_runs(make_host, make_rank):
    """Two users' ``--rdzv-id 100``."""
    hosts = [
        make_host(name, *(make_rank(n, facts={"rendezvous": "100", "rank": n, "world_size": 2}) for n in range(2)))
        for name in ("a", "b")
    ]
    runs = group_ranks(hosts)
    assert places(runs) == [[("a", 0), ("a", 1)], [("b", 0), ("b", 1)]]
    assert runs[0].key != runs[1].key


def test_steps_of_a_slurm_job_are_one_run_unless_their_ranks_say_otherwise(make_host, make_rank):
    """One srun per node that starts the ranks of one run; or two runs, each in a step of its own on two nodes."""

    def host(name, step, rank):
        return make_host(name, make_rank(1, facts={"slurm_job": f"4711.{step}", "rank": rank, "world_size": 2}))

    assert places(group_ranks([host("a", 0, 0), host("b", 1, 1)])) == [[("a", 1), ("b", 1)]]
    two = [host("a", 0, 0), host("b", 0, 1), host("c", 1, 0), host("d", 1, 1)]
    assert places(group_ranks(two)) == [[("a", 1), ("b", 1)], [("c", 1), ("d", 1)]]


def test_one_ranks_environment_speaks_for_its_run_on_the_host(make_host, make_rank):
    """Rank 0 of Lightning has no variables; the others have."""
    first, second = make_rank(1, run=1), make_rank(2, run=1, facts={**MASTER, "rank": 1})
    other = make_rank(3, run=3, facts={**MASTER, "rank": 2})
    assert places(group_ranks([make_host("node01", first, second), make_host("b", other)])) == [
        [("node01", 2), ("b", 3), ("node01", 1)]
    ]


def test_runs_without_such_facts_stay_on_their_hosts(make_host, make_rank):
    hosts = [
        make_host(name, make_rank(1, run=1), make_rank(2, run=1), make_rank(3), make_rank(4, job=None))
        for name in ("a", "b")
    ]
    assert places(group_ranks(hosts)) == [
        [("a", 1), ("a", 2)],
        [("a", 3)],
        [("b", 1), ("b", 2)],
        [("b", 3)],
    ]


def test_a_job_without_pids_is_one_run_per_host(make_host, make_rank):
    hosts = [make_host(name, make_rank(None), make_rank(None)) for name in ("a", "b")]
    assert [(len(run.ranks), run.rank_count) for run in group_ranks(hosts)] == [(2, 2), (2, 2)]


def test_a_world_of_one_rank_spans_nothing(make_host, make_rank):
    facts = {"slurm_job": "1.0", "rank": 0, "world_size": 1}
    assert len(group_ranks([make_host(name, make_rank(1, facts=facts)) for name in ("a", "b")])) == 2
