"""Which conditions hold on a fleet, what they say, and what cannot be told."""

from typing import Any

import msgspec
import pytest

from vramtop.monitor.alerts.alert_watch import Condition
from vramtop.monitor.alerts.fleet_watch import find_fleet_conditions
from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, FleetPending, FleetProcess, HostReading, RankFacts

GIB = 2**30


def rank(number: int, status: str = "on_budget", gib: float = 20, **changes: Any) -> FleetProcess:
    """A rank of a run of four over hosts, predicted at 20 GiB."""
    facts = RankFacts(rank=number, world_size=4, master="node1:29500")
    fields = {"budget_bytes": 20 * GIB, "high_bytes": 22 * GIB, "job": "sft\x1b[31m;rm", "user": "ann", "facts": facts}
    return FleetProcess(**{"pid": 70 + number, "used_bytes": int(gib * GIB), "status": status, **fields, **changes})


def host(name: str, *processes: FleetProcess, gpu: dict[str, Any] | None = None, **changes: Any) -> HostReading:
    """A host with a GPU for each process; ``gpu`` changes the first one."""
    gpus = [
        FleetGpu(
            index=at,
            uuid=f"GPU-{name}-{at}",
            total_bytes=80 * GIB,
            used_bytes=process.used_bytes,
            free_bytes=40 * GIB,
            unattributed_bytes=0,
            processes=(process,),
        )
        for at, process in enumerate(processes)
    ]
    if gpu:
        gpus[0] = msgspec.structs.replace(gpus[0], **gpu)
    return HostReading(**{"host": name, "time": 1.0, "since": 1.0, "gpus": tuple(gpus), **changes})


def found(*hosts: HostReading, had_gpus: tuple[str, ...] = ()) -> dict[str, list[Condition]]:
    by_rule: dict[str, list[Condition]] = {}
    for condition in find_fleet_conditions(Fleet(2.0, hosts), had_gpus).present:
        by_rule.setdefault(condition.rule.name, []).append(condition)
    return by_rule


def test_ranks_over_their_budget_on_two_hosts_are_one_alert_about_the_worst() -> None:
    hosts = host("node1", rank(0, "over", 25), rank(1)), host("node2", rank(2, "over", 31), rank(3))
    (over,) = found(*hosts)["VramtopJobOverBudget"]
    assert over.sentence == (
        "sft;rm of ann holds up to 11.0 GiB more than predicted on 2 ranks of 2 hosts, the worst rank 2 on node2, GPU 0"
    )
    assert (over.hosts, over.gpus, over.uuids) == (("node2", "node1"), ("0", "0"), ("GPU-node2-0", "GPU-node1-0"))
    assert (over.pids, over.job, over.user, over.value_bytes) == ((72, 70), "sft;rm", "ann", 11 * GIB)
    (alone,) = found(hosts[0])["VramtopJobOverBudget"]
    assert alone.sentence == "sft;rm of ann holds 5.0 GiB more than predicted: rank 0 on node1, GPU 0"
    unknown = host("node1", rank(0, "over", budget_bytes=None))
    (without,) = found(unknown)["VramtopJobOverBudget"]
    assert without.sentence == "sft;rm of ann holds more than predicted: rank 0 on node1, GPU 0"
    assert without.value_bytes is None


@pytest.mark.parametrize(
    ("full_seconds", "words"),
    [(None, "grows: rank 0"), (3600.0, "grows and fills its GPU in about 1 h"), (5 * 3600.0, None)],
)
def test_growth_is_told_with_the_time_until_the_gpu_is_full_if_that_is_known(
    full_seconds: float | None, words: str | None
) -> None:
    growing = found(host("node1", rank(0, "growing", full_seconds=full_seconds))).get("VramtopJobGrowing", [])
    assert [words in each.sentence for each in growing if words] == [True] * (words is not None)
    assert [each.full_seconds for each in growing] == ([] if words is None else [full_seconds])


def test_what_grows_above_its_budget_neither_raises_nor_ends_the_alert_about_that() -> None:
    (over,) = found(host("node1", rank(0, "over", 25)))["VramtopJobOverBudget"]
    for status in ("growing", "unknown"):
        assert find_fleet_conditions(Fleet(2.0, (host("node1", rank(0, status, 25)),))).is_unknown(over)
    assert not find_fleet_conditions(Fleet(2.0, (host("node1", rank(0, "growing", 21)),))).is_unknown(over)


def test_a_host_without_figures_is_told_of_and_nothing_else_about_it() -> None:
    bad = host("node1", rank(0, "over", 25), gpu={"unattributed_bytes": 9 * GIB})
    before = find_fleet_conditions(Fleet(2.0, (bad, host("node2", rank(2)))))
    assert {each.rule.name for each in before.present} == {"VramtopJobOverBudget", "VramtopUnattributedMemory"}
    gone = msgspec.structs.replace(bad, state="unreachable", reason="Connection refused")
    after = find_fleet_conditions(Fleet(3.0, (gone, host("node2", rank(2)))))
    (silent,) = after.present
    assert (silent.rule.name, silent.sentence) == ("VramtopHostSilent", "node1 is unreachable: Connection refused")
    assert all(after.is_unknown(each) for each in before.present)
    live = find_fleet_conditions(Fleet(4.0, (host("node1", rank(0)),)))
    assert not any(live.is_unknown(each) for each in (silent, *before.present))
    connecting = find_fleet_conditions(Fleet(4.0, (HostReading(host="node1", state="connecting"),)))
    assert connecting.present == ()
    assert connecting.is_unknown(silent)
    assert find_fleet_conditions(Fleet(5.0, (), notice="there are no metrics")).is_unknown(silent)


def test_lost_gpus_and_memory_of_no_process() -> None:
    lost = {"is_lost": True, "fault": "it cannot be read: GPU_IS_LOST", "used_bytes": None, "processes": None}
    hidden = host("node2", rank(2), gpu={"unattributed_bytes": 9 * GIB})
    unlisted = host("node3", rank(3), faults=("x", "GPU 7 is not listed"), unlisted=("GPU 7 is not listed",))
    asleep = host("node4", rank(3), gpu={"fault": "asleep", "used_bytes": None, "processes": None})
    here = found(host("node1", rank(0), gpu=lost), hidden, unlisted, asleep)
    assert [each.sentence for each in here["VramtopGpuLost"]] == [
        "GPU 0 of node1 cannot be read: GPU_IS_LOST",
        "node3 has lost a GPU: GPU 7 is not listed",
    ]
    (memory,) = here["VramtopUnattributedMemory"]
    assert memory.sentence == "9.0 GiB of GPU 0 of node2 belong to no visible process"
    assert (memory.hosts, memory.gpus, memory.value_bytes) == (("node2",), ("0",), 9 * GIB)
    assert set(here) == {"VramtopGpuLost", "VramtopUnattributedMemory"}


def test_a_gpu_that_cannot_be_read_keeps_what_was_wrong_on_it() -> None:
    (over,) = found(host("node1", rank(0, "over", 25)))["VramtopJobOverBudget"]
    for unread in ({"processes": None}, {"is_stale": True}):
        assert find_fleet_conditions(Fleet(2.0, (host("node1", rank(0), gpu=unread),))).is_unknown(over)


def test_a_host_whose_gpus_are_gone_is_told_of_if_it_had_some() -> None:
    login = HostReading(host="login", faults=("there is no NVIDIA driver",))
    assert found(login) == {}
    (lost,) = found(login, had_gpus=("login",))["VramtopGpuLost"]
    assert lost.sentence == "login has no GPU that can be read: there is no NVIDIA driver"


def test_pending_jobs_that_do_not_fit() -> None:
    pending = tuple(FleetPending(job="next", verdict=verdict) for verdict in ("does_not_fit", "unknown"))
    conditions = find_fleet_conditions(Fleet(2.0, (host("node1", rank(0), pending=pending),)))
    (large,) = conditions.present
    assert (large.sentence, large.job, large.hosts) == ("next does not fit on node1", "next", ("node1",))
    assert ("VramtopPendingJobCannotFit", "node1", "next", 2) in conditions.unknown
