"""Verdicts of a job on the hosts of a fleet."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from vramtop.estimator.budget import Budget, RankPeak
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec, Parallel
from vramtop.monitor.board.fit import DeviceCapacity, check_fit
from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, FleetProcess, HostReading
from vramtop.monitor.fleet.placing import Card, FleetFit, place_job

NOW = 5000.0


def gpu(index: int, *, held: float = 0, server: float = 0, committed: float | None = 0, **changes: Any) -> FleetGpu:
    """An 80 GiB GPU without reserve: so much is held by a known job, so much by a process without one."""
    rows = [FleetProcess(pid=7, job="tune", used_bytes=int(held * GIB))] * bool(held)
    rows += [FleetProcess(pid=8, used_bytes=int(server * GIB))] * bool(server)
    used = int((held + server) * GIB)
    fields: dict[str, Any] = {
        "name": "NVIDIA H100 80GB HBM3",
        "total_bytes": 80 * GIB,
        "reserved_bytes": 0,
        "used_bytes": used,
        "free_bytes": 80 * GIB - used,
        "processes": tuple(rows),
        "uuid": f"GPU-{index}",
        "committed_bytes": None if committed is None else int(committed * GIB),
    }
    return FleetGpu(index=index, **(fields | changes))


def host(name: str, *gpus: FleetGpu, **changes: Any) -> HostReading:
    return HostReading(**{"host": name, "time": NOW, "since": NOW, "gpus": gpus, **changes})


@pytest.fixture
def budget_of(make_budget: Callable[..., Budget]) -> Callable[..., Budget]:
    """Make a budget with these peaks, of each rank or of each pipeline stage."""

    def make(*gib: float, ranks: int = 1, high: float = 1.0) -> Budget:
        stages = tuple(
            RankPeak(device_bytes=int(x * GIB), low_bytes=int(x * GIB), high_bytes=int(x * GIB * high)) for x in gib
        )
        parallel = Parallel(strategy="fsdp2", pipeline=len(gib), data_shard=ranks // len(gib))
        job = Job(model=ModelSpec(id="gpt2"), parallel=parallel if ranks > 1 else Parallel())
        base = make_budget(job)
        sizes = {name: getattr(stages[-1], name) for name in ("device_bytes", "low_bytes", "high_bytes")}
        return replace(base, peak=replace(base.peak, **sizes), stages=stages)

    return make


def place(budget: Budget, *hosts: HostReading) -> FleetFit:
    return place_job(Fleet(NOW, hosts), len(budget.ranks), lambda _: budget)


def verdicts(fit: FleetFit) -> dict[str, tuple[str, str, str]]:
    return {each.host: (each.now, each.later, each.empty) for each in fit.hosts}


def test_free_less_committed_now_and_what_known_jobs_hold_later(budget_of) -> None:
    fit = place(
        budget_of(40),
        host("growing", gpu(0, held=30, committed=20)),
        host("serving", gpu(0, server=50)),
        host("small", gpu(0, total_bytes=24 * GIB, free_bytes=24 * GIB)),
    )
    assert verdicts(fit) == {
        "growing": ("does_not_fit", "fits", "fits"),
        "serving": ("does_not_fit", "does_not_fit", "fits"),  # a process without a job is not said to end
        "small": ("does_not_fit", "does_not_fit", "does_not_fit"),
    }
    assert (fit.now, fit.later, fit.placement) == ("does_not_fit", "fits", ())


def test_the_job_goes_where_the_largest_block_remains(budget_of) -> None:
    fit = place(
        budget_of(20),
        host("empty", gpu(0), gpu(1)),
        host("part", gpu(0, held=10), gpu(1, held=50)),
        host("full", gpu(0, held=70), gpu(1, held=70)),
    )
    assert [(each.host, [taken.label for taken in each.taken]) for each in fit.placement] == [("part", ["1"])]
    assert fit.largest_block_bytes == 160 * GIB
    assert [each.host for each in fit.hosts] == ["part", "empty", "full"]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_place_in_the_fleet_leaves_larger_blocks(budget_of, seed: int) -> None:
    """Every choice of a host and of GPUs on it, by the free blocks of all hosts that it leaves."""
    random_ = random.Random(seed)  # noqa: S311 - test data
    free = [[80 - random_.choice((0, 0, 10, 35, 60, 75)) for _ in range(3)] for _ in range(4)]

    def block(sizes: list[int]) -> int:
        return max((len(some) * min(some) for n in (1, 2, 3) for some in combinations(sizes, n)), default=0)

    def blocks(hosts: list[list[int]]) -> list[int]:
        return sorted(map(block, hosts), reverse=True)

    def placed(at: int, gpus: tuple[int, ...]) -> list[list[int]]:
        return [[size - 30 * (at == n and g in gpus) for g, size in enumerate(each)] for n, each in enumerate(free)]

    every = [(n, gpus) for n in range(4) for gpus in combinations(range(3), 2)]
    fitting = [place for place in every if min(map(min, placed(*place))) >= 0]
    hosts = [host(str(n), *(gpu(g, held=80 - size) for g, size in enumerate(each))) for n, each in enumerate(free)]
    fit = place(budget_of(30, ranks=2), *hosts)
    assert (fit.now == "fits") == bool(fitting)
    if fitting:
        (chosen,) = fit.placement
        taken = tuple(int(each.label) for each in chosen.taken)
        assert blocks(placed(int(chosen.host), taken)) == max(blocks(placed(*place)) for place in fitting)
        assert fit.largest_block_bytes == blocks(placed(int(chosen.host), taken))[0] * GIB


def test_hosts_without_figures_of_now_have_no_verdict(budget_of) -> None:
    silent = host("silent", gpu(0), state="silent", since=NOW - 90, reason="not scraped")
    fit = place(budget_of(40), silent)
    (gone,) = fit.hosts
    assert (gone.now, gone.later, gone.empty, gone.is_considered) == ("unknown", "unknown", "unknown", False)
    assert (gone.age_seconds, gone.reason, gone.free_block_bytes) == (90, "not scraped", 0)
    assert place(budget_of(40), silent, host("busy", gpu(0, held=60))).now == "unknown"
    assert place(budget_of(40), silent, host("idle", gpu(0))).now == "fits"
    assert place(budget_of(40)).now == "does_not_fit"
    broken = place(budget_of(40), host("broken", faults=("there is no NVIDIA driver",)))
    assert (broken.now, broken.hosts[0].reason) == ("unknown", "there is no NVIDIA driver")
    assert place(budget_of(40), host("none")).now == "does_not_fit"


def test_unknown_figures_of_a_live_host(budget_of) -> None:
    fit = place(
        budget_of(40),
        host("hangs", gpu(0, is_stale=True)),
        host("lost", gpu(0, free_bytes=None, used_bytes=None, processes=None, fault="it cannot be read: lost")),
        host("no-budgets", gpu(0, committed=None, used_bytes=30 * GIB, free_bytes=50 * GIB, processes=None)),
        host("reading", gpu(0, processes=(FleetProcess(pid=1, used_bytes=1, note="reading…"),))),
    )
    assert {each.host: (each.now, each.reason) for each in fit.hosts} == {
        "hangs": ("unknown", "GPU 0: its driver does not answer"),
        "lost": ("unknown", "GPU 0: it cannot be read: lost"),
        "no-budgets": ("unknown", "GPU 0: how much more its running jobs will allocate is unknown"),
        "reading": ("unknown", "GPU 0: how much more its running jobs will allocate is unknown"),
    }
    assert fit.now == "unknown"
    known = place(
        budget_of(90, ranks=1), host("hangs", gpu(0, is_stale=True))
    )  # more than the card has, whatever is free
    assert (known.now, known.empty) == ("does_not_fit", "does_not_fit")
    full = gpu(0, committed=None, used_bytes=70 * GIB, free_bytes=10 * GIB, processes=None)
    assert place(budget_of(40), host("full", full)).now == "does_not_fit"  # what is committed only takes more
    idle = gpu(0, committed=None, used_bytes=2**20, free_bytes=80 * GIB, processes=None)
    assert place(budget_of(40), host("idle", idle)).now == "fits"  # no context: nothing runs there


def test_what_jobs_leave_is_unknown_where_their_processes_are(budget_of) -> None:
    """dcgm-exporter names no processes; a vramtop that may not list them has none and no unattributed memory."""
    used = {"used_bytes": 70 * GIB, "free_bytes": 10 * GIB}
    unread = gpu(0, processes=None, **used)
    unlisted = gpu(0, processes=(), unattributed_bytes=None, **used)
    assert place(budget_of(9), host("a", unread)).now == "unknown"  # 10 GiB are free; what else will be taken?
    nobodys = gpu(0, processes=(), unattributed_bytes=70 * GIB, **used)
    no_size = gpu(0, processes=(FleetProcess(pid=1, job="pod"),), **used)
    pods = (FleetProcess(pid=1, job="pod", used_bytes=70 * GIB),)
    mig = gpu(0, processes=pods, devices=(gpu(0, label="0:1", processes=None, unattributed_bytes=0, **used),), **used)
    hosts = {"unread": unread, "unlisted": unlisted, "nobodys": nobodys, "no-size": no_size, "mig": mig}
    found = {name: (now, later) for name, (now, later, _) in verdicts(
        place(budget_of(40), *(host(name, each) for name, each in hosts.items()))
    ).items()}  # fmt: skip
    for name in ("unread", "unlisted", "no-size", "mig"):
        assert found[name] == ("does_not_fit", "unknown"), name
    assert found["nobodys"] == ("does_not_fit", "does_not_fit")


def test_a_gpu_on_which_no_program_can_be_started_takes_none(budget_of) -> None:
    closed = gpu(0, closed="does not allow compute programs")
    fit = place(budget_of(40), host("a", closed))
    assert (fit.now, fit.empty, fit.hosts[0].reason) == (
        *("does_not_fit", "does_not_fit"),
        "GPU 0 does not allow compute programs",
    )
    assert [taken.label for taken in place(budget_of(40), host("a", closed, gpu(1))).placement[0].taken] == ["1"]


def test_tight_and_the_upper_bound(budget_of) -> None:
    fit = place(budget_of(70, high=1.2), host("a", gpu(0)))
    assert (fit.now, fit.hosts[0].left_bytes) == ("tight", 10 * GIB)
    fit = place(budget_of(50, high=1.2), host("a", gpu(0)))
    assert (fit.now, fit.hosts[0].left_bytes) == ("fits", 20 * GIB)


def test_verdicts_are_those_of_fit_on_the_host_itself(budget_of) -> None:
    for held in ([0, 0], [30, 50], [45, 0], [70, 70]):
        for budget in (budget_of(40, ranks=2), budget_of(40, high=1.6), budget_of(20, 60, ranks=2)):
            devices = [
                DeviceCapacity(index=at, uuid=None, name="x", total_bytes=80 * GIB, free_bytes=int((80 - size) * GIB))
                for at, size in enumerate(held)
            ]
            fit = place(budget, host("a", *(gpu(at, held=size) for at, size in enumerate(held))))
            assert fit.hosts[0].now == check_fit(budget, devices).verdict
            assert fit.later == "fits" or budget.peak.high_bytes > 40 * GIB


def test_more_ranks_than_a_host_has_gpus_are_spread_evenly(budget_of) -> None:
    free, half = [gpu(at) for at in range(4)], [gpu(0), gpu(1), gpu(2, held=70), gpu(3, held=70)]
    fit = place(budget_of(40, ranks=8), host("a", *free), host("b", *free), host("c", *free), host("d", *half))
    assert (fit.now, fit.hosts_needed) == ("fits", 2)
    assert [(each.host, len(each.taken)) for each in fit.placement] == [("a", 4), ("b", 4)]
    fit = place(budget_of(40, ranks=8), *(host(name, *half) for name in "abcd"))
    assert (fit.now, fit.hosts_needed, [len(each.taken) for each in fit.placement]) == ("fits", 4, [2] * 4)
    fit = place(budget_of(40, ranks=8), host("a", *free), host("b", *half))
    assert (fit.now, fit.later, fit.placement) == ("does_not_fit", "fits", ())
    assert place(budget_of(40, ranks=8), host("a", *free)).empty == "does_not_fit"


def test_a_run_has_one_type_of_gpu(budget_of) -> None:
    other = {"name": "NVIDIA A100-SXM4-80GB"}
    mixed = place(budget_of(40, ranks=2), host("a", gpu(0)), host("b", gpu(0, **other)))
    assert mixed.now == "does_not_fit"
    seen: list[Card] = []
    place_job(
        Fleet(NOW, (host("a", gpu(0), gpu(1)), host("b", gpu(0), gpu(1, **other)))),
        1,
        lambda card: seen.append(card) or budget_of(1),
    )
    assert [card.name for card in seen] == ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"]


def test_mig_devices_take_jobs_of_one_rank(budget_of) -> None:
    devices = (gpu(0, label="0:1", total_bytes=20 * GIB, free_bytes=19 * GIB, processes=None),)
    parent = gpu(0, devices=devices)
    fit = place(budget_of(10), host("a", parent))
    assert (fit.now, [taken.label for taken in fit.placement[0].taken]) == ("fits", ["0:1"])
    fit = place(budget_of(10, ranks=2), host("a", parent, parent))
    assert (fit.now, fit.hosts[0].reason) == ("does_not_fit", "has no GPU that the job can use")
