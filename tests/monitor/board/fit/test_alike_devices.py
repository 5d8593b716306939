"""Alike GPUs are counted: the result is that of as many single ones, at a cost that does not grow with their number."""

from builders import make_budget
from hypothesis import HealthCheck, given, settings, strategies as st

from vramtop.estimator.budget import Budget, RankPeak
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec, Parallel
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.board.fit import check_fit
from vramtop.monitor.board.fit_result import MAX_LISTED


def alike(count: int, free: int = 80, *, index: int = 0) -> DeviceCapacity:
    return DeviceCapacity(index=index, uuid=None, name="card", total_bytes=80 * GIB, free_bytes=free * GIB, count=count)


def singles(device: DeviceCapacity) -> list[DeviceCapacity]:
    return [replace(device, index=index, count=1) for index in device.indices]


def pipeline(needs: list[int], shards: int) -> Budget:
    job = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(pipeline=len(needs), data_shard=shards))
    each = [RankPeak(device_bytes=n * GIB, low_bytes=(n - 1) * GIB, high_bytes=(n + 1) * GIB) for n in needs]
    return replace(make_budget(job, device=max(needs)), stages=tuple(each))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    needs=st.lists(st.sampled_from([10, 20, 40, 79, 90]), min_size=1, max_size=5),
    shards=st.integers(1, 4),
    counts=st.lists(st.tuples(st.integers(1, 9), st.sampled_from([15, 40, 80])), min_size=1, max_size=3),
)
def test_alike_devices_give_the_result_of_single_ones(needs, shards, counts) -> None:
    budget = pipeline(needs, shards)
    groups: list[DeviceCapacity] = []
    for count, free in counts:
        groups.append(alike(count, free, index=sum(group.count for group in groups)))
    counted = check_fit(budget, groups)
    listed = check_fit(budget, [device for group in groups for device in singles(group)])
    assert counted.to_json() == listed.to_json()
    if " are each " not in counted.sentence:  # one sentence for all of them
        assert counted.sentence == listed.sentence


def test_json_lists_no_more_than_the_first_and_says_how_many_there_are() -> None:
    found = check_fit(pipeline([40], 1000000), [alike(1_000_008)]).to_json()
    assert (len(found["gpus"]), len(found["placement"]), len(found["placement_uuids"])) == (MAX_LISTED,) * 3
    assert (found["gpus_total"], found["placement_total"]) == (1_000_008, 1_000_000)
    assert [gpu["index"] for gpu in found["gpus"]] == found["placement"] == list(range(MAX_LISTED))
    assert "gpus_total" not in check_fit(pipeline([40], 8), [alike(8)]).to_json()
