"""Verdicts of a job on the hosts of a fleet."""

from collections.abc import Callable
from typing import Any

import pytest

from vramtop.estimator.budget import Budget, RankPeak
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec, Parallel
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.board.fit import check_fit
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


def verdicts(fit: FleetFit) -> dict[str, str]:
    return {each.host: each.verdict for each in fit.hosts}


def test_a_host_has_what_is_free_less_what_is_committed(budget_of) -> None:
    growing, serving = gpu(0, held=30, committed=20), gpu(0, server=50)
    fit = place(budget_of(40), host("growing", growing), host("serving", serving), host("idle", gpu(0)))
    assert verdicts(fit) == {"idle": "fits", "growing": "does_not_fit", "serving": "does_not_fit"}
    assert (fit.verdict, [each.host for each in fit.placement]) == ("fits", ["idle"])
    fit = place(budget_of(40), host("growing", growing), host("serving", serving))
    assert (fit.verdict, fit.placement) == ("does_not_fit", ())


def test_the_job_goes_to_the_fullest_host_that_can_take_it(budget_of) -> None:
    fit = place(
        budget_of(20),
        host("empty", gpu(0), gpu(1)),
        host("part", gpu(0, held=10), gpu(1, held=70)),
        host("full", gpu(0, held=70), gpu(1, held=70)),
    )
    assert [(each.host, each.placement) for each in fit.placement] == [("part", ("0",))]
    assert [each.host for each in fit.hosts] == ["part", "empty", "full"]


def test_hosts_without_figures_of_now_have_no_verdict(budget_of) -> None:
    silent = host("silent", gpu(0), state="silent", since=NOW - 90, reason="not scraped")
    (gone,) = place(budget_of(40), silent).hosts
    assert (gone.verdict, gone.name, gone.age_seconds, gone.reason) == ("unknown", None, 90, "not scraped")
    assert place(budget_of(40), silent, host("busy", gpu(0, held=60))).verdict == "unknown"
    assert place(budget_of(40), silent, host("idle", gpu(0))).verdict == "fits"
    assert place(budget_of(40)).verdict == "does_not_fit"
    broken = place(budget_of(40), host("broken", faults=("there is no NVIDIA driver",)))
    assert (broken.verdict, broken.hosts[0].reason) == ("unknown", "there is no NVIDIA driver")
    assert place(budget_of(40), host("none")).verdict == "does_not_fit"


def test_unknown_figures_of_a_live_host(budget_of) -> None:
    fit = place(
        budget_of(40),
        host("hangs", gpu(0, is_stale=True)),
        host("lost", gpu(0, free_bytes=None, used_bytes=None, processes=None, fault="cannot be read: lost")),
        host("no-budgets", gpu(0, committed=None, used_bytes=30 * GIB, free_bytes=50 * GIB, processes=None)),
        host("reading", gpu(0, processes=(FleetProcess(pid=1, used_bytes=1, note="reading…"),))),
    )
    jobs = "GPU 0 is not judged: how much more its running jobs will allocate is unknown"
    assert {each.host: (each.verdict, each.reason) for each in fit.hosts} == {
        "hangs": ("unknown", "GPU 0 has a driver that does not answer"),
        "lost": ("unknown", "GPU 0 cannot be read: lost"),
        "no-budgets": ("unknown", jobs),
        "reading": ("unknown", jobs),
    }
    assert fit.verdict == "unknown"
    more_than_the_card_has = place(budget_of(90), host("hangs", gpu(0, is_stale=True)))
    assert more_than_the_card_has.verdict == "does_not_fit"
    full = gpu(0, committed=None, used_bytes=70 * GIB, free_bytes=10 * GIB, processes=None)
    assert place(budget_of(40), host("full", full)).verdict == "does_not_fit"  # what is committed only takes more
    assert place(budget_of(9), host("full", full)).verdict == "unknown"  # what else will be taken?
    idle = gpu(0, committed=None, used_bytes=2**20, free_bytes=80 * GIB, processes=None)
    assert place(budget_of(40), host("idle", idle)).verdict == "fits"  # no context: nothing runs there


def test_a_gpu_on_which_no_program_can_be_started_takes_none(budget_of) -> None:
    closed = gpu(0, closed="does not allow compute programs")
    fit = place(budget_of(40), host("a", closed))
    assert (fit.verdict, fit.hosts[0].reason) == ("does_not_fit", "GPU 0 does not allow compute programs")
    assert place(budget_of(40), host("a", closed, gpu(1))).placement[0].placement == ("1",)


def test_verdicts_are_those_of_fit_on_the_host_itself(budget_of) -> None:
    for held in ([0, 0], [30, 50], [45, 0], [70, 70]):
        for budget in (budget_of(40, ranks=2), budget_of(40, high=1.6), budget_of(20, 60, ranks=2)):
            devices = [
                DeviceCapacity(index=at, uuid=None, name="x", total_bytes=80 * GIB, free_bytes=int((80 - size) * GIB))
                for at, size in enumerate(held)
            ]
            fit = place(budget, host("a", *(gpu(at, held=size) for at, size in enumerate(held))))
            assert fit.verdict == check_fit(budget, devices).verdict


def test_more_ranks_than_a_host_has_gpus_are_spread_evenly(budget_of) -> None:
    free, half = [gpu(at) for at in range(4)], [gpu(0), gpu(1), gpu(2, held=70), gpu(3, held=70)]
    fit = place(budget_of(40, ranks=8), host("a", *free), host("b", *free), host("c", *free), host("d", *half))
    assert [(each.host, len(each.placement)) for each in fit.placement] == [("a", 4), ("b", 4)]
    fit = place(budget_of(40, ranks=8), *(host(name, *half) for name in "abcd"))
    assert (fit.verdict, [len(each.placement) for each in fit.placement]) == ("fits", [2] * 4)
    fit = place(budget_of(40, ranks=8), host("a", *free), host("b", *half))
    assert (fit.verdict, fit.placement) == ("does_not_fit", ())


def test_each_host_may_get_the_stage_that_needs_most(budget_of) -> None:
    small = [gpu(0, held=30), gpu(1, held=30)]
    assert place(budget_of(20, 60, ranks=4), host("a", *small), host("b", *small)).verdict == "does_not_fit"
    assert place(budget_of(20, 40, ranks=4), host("a", *small), host("b", *small)).verdict == "fits"


def test_a_run_has_one_type_of_gpu(budget_of) -> None:
    other = {"name": "NVIDIA A100-SXM4-80GB"}
    mixed = place(budget_of(40, ranks=2), host("a", gpu(0)), host("b", gpu(0, **other)))
    assert mixed.verdict == "does_not_fit"
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
    assert (fit.verdict, fit.placement[0].placement) == ("fits", ("0:1",))
    fit = place(budget_of(10, ranks=2), host("a", parent, parent))
    assert (fit.verdict, fit.hosts[0].reason) == ("does_not_fit", "has no GPU that the job can use")
