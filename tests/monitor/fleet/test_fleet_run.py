"""Figures of a run over several hosts, and of a whole fleet."""

import dataclasses

import msgspec
import pytest

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.fleet import Fleet, HostReading


@pytest.fixture
def make_run(make_host, make_rank):
    """Make the one run of these ranks, two to a host, of a world of so many."""

    def make(*ranks: dict, world: int | None = None, silent: tuple[str, ...] = ()):
        made = [
            make_rank(100 + at, facts={"master": "a:1", "rank": at, "world_size": world or len(ranks)}, **rank)
            for at, rank in enumerate(ranks)
        ]
        hosts = []
        for at in range(0, len(made), 2):
            name = "abcdefgh"[at // 2]
            state = {"state": "silent", "reason": "no answer"} if name in silent else {}
            hosts.append(make_host(name, *made[at : at + 2], **state))
        (run,) = Fleet(2000.0, tuple(hosts)).runs
        return run

    return make


def test_the_rank_with_the_highest_peak_and_the_spread_are_over_all_hosts(make_run):
    run = make_run({"gib": 30}, {"gib": 31}, {"gib": 29, "peak_bytes": 45 * GIB}, {"gib": 33})
    assert run.highest.label == "rank 2 on b, GPU 0"
    assert run.spread_bytes == 4 * GIB
    assert run.used_bytes == 123 * GIB
    assert not run.is_partial
    assert [host.host for host in run.hosts] == ["a", "b"]


def test_the_budget_is_for_the_whole_world(make_run):
    run = make_run({"budget_bytes": 20 * GIB}, {"budget_bytes": 22 * GIB}, world=8)
    assert run.unseen_ranks == 6
    assert run.budget_bytes == (20 + 22 + 6 * 22) * GIB
    assert run.is_partial
    assert make_run({"budget_bytes": None}, {"budget_bytes": None}).budget_bytes is None


def test_divergence_says_which_rank_on_which_host(make_run):
    run = make_run({}, {}, {}, {"status": "under"}, {"status": "over"}, {})
    assert run.status == "over"
    assert [rank.label for rank in run.diverging] == ["rank 4 on c, GPU 0", "rank 3 on b, GPU 1"]


def test_figures_of_a_silent_host_are_not_figures_of_now(make_run):
    run = make_run({"gib": 30}, {"gib": 31}, {"gib": 70, "status": "over"}, {"gib": 33}, silent=("b",))
    assert run.highest.label == "rank 1 on a, GPU 1"
    assert (run.spread_bytes, run.used_bytes) == (GIB, 61 * GIB)
    assert run.status == "on_budget"
    assert not run.diverging
    assert run.is_partial
    assert run.unseen_ranks == 0


def test_ranks_that_still_load_while_most_train_are_stragglers(make_run):
    run = make_run({}, {}, {}, {"status": "loading"})
    assert [rank.rank for rank in run.stragglers] == [3]
    assert not make_run({"status": "loading"}, {"status": "loading"}, {}, {"status": "loading"}).stragglers


def test_a_rank_behind_by_steps_is_a_straggler_unless_it_was_only_read_earlier(make_run):
    def ranks(steps, at):
        counted = {"steps": 500, "step_seconds": 0.5, "steps_at": 2000.0}
        return [counted, counted, counted, {**counted, "steps": steps, "steps_at": at}]

    assert not make_run(*ranks(499, 2000.0)).stragglers
    assert not make_run(*ranks(490, 1995.0)).stragglers
    assert [rank.label for rank in make_run(*ranks(480, 1995.0)).stragglers] == ["rank 3 on b, GPU 1"]


def test_an_unknown_size_has_no_spread(make_run):
    run = make_run({"gib": None}, {"gib": 4})
    assert run.spread_bytes is None
    assert run.used_bytes == 4 * GIB
    assert run.is_partial


def test_totals_count_live_hosts_only(make_host, make_rank):
    live = make_host("a", make_rank(1, 10), make_rank(2, 20, status="growing"))
    silent = make_host("b", make_rank(3, 40, status="over"), state="unreachable", since=1940.0)
    never = HostReading(host="c", state="unreachable", reason="Connection refused")
    fleet = Fleet(2000.0, (live, silent, never))
    totals = fleet.totals
    assert (totals.hosts, totals.silent_hosts, totals.runs, totals.diverging_runs) == (3, 2, 2, 1)
    assert totals.gpus.free_bytes == (69 + 59) * GIB
    assert totals.gpus.committed_bytes == 10 * GIB
    assert totals.gpus.unattributed_bytes == 2 * GIB
    assert totals.gpus.gpus == 2
    assert fleet.age_seconds(silent) == 60
    assert fleet.age_seconds(never) is None


def test_a_gpu_whose_driver_hangs_is_unknown(make_host, make_rank):
    host = make_host("a", make_rank(1), make_rank(2, status="over"))
    stale = msgspec.structs.replace(host.gpus[1], is_stale=True)
    host = msgspec.structs.replace(host, gpus=(host.gpus[0], stale))
    assert (host.totals.gpus, host.totals.unknown_gpus, host.totals.diverging) == (1, 1, 0)
    assert host.totals.free_bytes == 69 * GIB


def test_a_fleet_cannot_be_changed(make_host, make_rank):
    host = make_host("a", make_rank(1))
    with pytest.raises(AttributeError):
        host.state = "silent"
    with pytest.raises(AttributeError):
        host.gpus[0].free_bytes = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        Fleet(1.0, (host,)).hosts = ()
