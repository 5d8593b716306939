"""Verdicts of the fit check: placement, alike devices, and a GPU that shares the host's memory."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from builders import make_budget, make_device, make_gpu, make_process, make_snapshot
from hypothesis import HealthCheck, given, settings, strategies as st

from vramtop.estimator.advice.suggestions import candidate_changes
from vramtop.estimator.budget import Budget, RankPeak
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.host_need import HostNeed
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job, ModelSpec, Parallel
from vramtop.monitor.anomalies.leftovers import find_hidden_memory
from vramtop.monitor.board.capacity import DeviceCapacity, described_devices, device_capacities
from vramtop.monitor.board.fit import check_fit, with_host_memory
from vramtop.monitor.board.fit_result import MAX_LISTED
from vramtop.monitor.snapshot.figures import HOST_MEMORY, Fault
from vramtop.tui.cli.main import main

FOUR = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="fsdp2", data_shard=4))


@pytest.mark.parametrize(
    ("free", "verdict"), [(50, "fits"), (41, "tight"), (37, "unknown"), (30, "does_not_fit"), (None, "unknown")]
)
def test_verdicts_by_range(free: float | None, verdict: str) -> None:
    budget = make_budget(device=37.65, low=36, high=44)  # expected: 16/16 of 37.65 GiB and less than 41
    assert budget.peak.device_bytes < 41 * GIB
    found = check_fit(budget, [make_device(0, free)])
    assert (found.verdict, found.gpus[0].verdict) == (verdict, verdict)


def test_the_gpu_with_the_most_available_memory_is_chosen_and_gives_the_margin() -> None:
    budget = make_budget(high=41)
    found = check_fit(budget, [make_device(0, 45), make_device(1, 70), make_device(2, 60, committed_bytes=30 * GIB)])
    assert found.placement == (1,)
    assert found.margin_bytes == 70 * GIB - budget.peak.device_bytes
    assert "GPU 1" in found.sentence


def test_committed_memory_is_not_available() -> None:
    found = check_fit(make_budget(), [make_device(0, 70, committed_bytes=40 * GIB)])
    assert found.verdict == "does_not_fit"
    assert found.gpus[0].device.available_bytes == 30 * GIB
    assert found.margin_bytes < 0


def test_the_margin_is_unknown_if_available_memory_is_unknown() -> None:
    assert check_fit(make_budget(), [make_device(0, None)]).margin_bytes is None
    assert check_fit(make_budget(), []).margin_bytes is None
    found = check_fit(make_budget(FOUR, high=41), [*(make_device(n, 70) for n in range(3)), make_device(3, None)])
    assert found.margin_bytes is None
    assert found.to_json()["margin_bytes"] is None


def test_every_rank_needs_a_gpu_of_its_own() -> None:
    budget = make_budget(FOUR, high=41)
    assert check_fit(budget, [make_device(n, 70) for n in range(4)]).verdict == "fits"
    three = [make_device(n, 70) for n in range(3)]
    assert check_fit(budget, [*three, make_device(3, 20)]).verdict == "does_not_fit"
    assert check_fit(budget, [*three, make_device(3, None)]).verdict == "unknown"
    few = check_fit(budget, three[:2])
    assert few.verdict == "does_not_fit"
    assert "needs 4 GPUs" in few.sentence


def pipeline(needs: Sequence[int], shards: int = 1) -> Budget:
    """The budget of a pipeline whose stages need these GiB."""
    job = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(pipeline=len(needs), data_shard=shards))
    each = [RankPeak(device_bytes=n * GIB, low_bytes=(n - 1) * GIB, high_bytes=(n + 1) * GIB) for n in needs]
    return replace(make_budget(job, device=max(needs)), stages=tuple(each))


@pytest.mark.parametrize(
    ("needs", "free", "verdict", "placement"),
    [
        ((30, 20, 10), (12, 32, 22), "fits", (1, 2, 0)),
        ((30, 20, 10), (12, 32, 20), "tight", (1, 2, 0)),
        ((30, 20, 10), (70, 70, 5), "does_not_fit", (0, 1, 2)),
        ((30, 10), (50, None, 20), "fits", (0, 2)),
        ((30, 10), (None, 20), "unknown", (0, 1)),
        ((30, 10), (None, 5), "does_not_fit", (1, 0)),
    ],
)
def test_different_pipeline_stages_are_placed_by_their_needs(needs, free, verdict, placement) -> None:
    found = check_fit(pipeline(needs), [make_device(n, size) for n, size in enumerate(free)])
    assert (found.verdict, found.placement) == (verdict, placement)
    assert f"needs {min(needs)}.0 to {max(needs)}.0 GiB per GPU (uneven split)" in found.sentence


@pytest.mark.parametrize(
    ("mode", "kinds", "words"),
    [
        ("default", ("compute",), None),
        (None, ("compute",), None),
        ("exclusive_process", ("graphics",), None),
        ("exclusive_process", ("compute",), "allows one program at a time"),
        ("exclusive_process", ("mps",), None),
        ("prohibited", None, "does not allow compute programs"),
    ],
)
def test_a_gpu_whose_compute_mode_allows_no_further_program_is_closed(mode, kinds, words) -> None:
    held = [make_process(used=1, kinds=kinds)] if kinds else []
    found = check_fit(make_budget(), device_capacities(make_snapshot([make_gpu(0, held, compute_mode=mode)]), {}))
    assert found.verdict == ("fits" if words is None else "does_not_fit")
    assert words is None or f"GPU 0 {words}" in found.sentence
    assert (found.to_json()["gpus"][0]["closed"] is None) == (words is None)


def test_a_lost_gpu_has_no_capacity() -> None:
    lost = Fault(field=None, code="GPU_IS_LOST", message="the GPU no longer answers")
    nothing = dict.fromkeys(("total_bytes", "reserved_bytes", "used_bytes", "free_bytes", "processes"))
    gone = replace(make_gpu(1), **nothing, faults=(lost,))  # type: ignore[arg-type]
    found = check_fit(make_budget(), device_capacities(make_snapshot([gone]), {}))
    assert (found.verdict, found.sentence) == ("does_not_fit", "needs 40.0 GiB; GPU 1 no longer answers")
    assert check_fit(make_budget(), device_capacities(make_snapshot([make_gpu(0), gone]), {})).placement == (0,)


HOST = HostNeed(process=GIB, loaded=0, loads_once=False, mapped=0, activations=29 * GIB)


@pytest.fixture
def budget() -> Budget:
    return replace(make_budget(device=40), host=HOST)


@pytest.mark.parametrize(("free", "verdict"), [(90, "fits"), (67, "does_not_fit"), (69, "unknown")])
def test_gpu_and_host_are_one_sum_on_this_machine(budget: Budget, free: int, verdict: str) -> None:
    shared = Fault(field="reserved_bytes", code=HOST_MEMORY, message="shared")
    gpu = make_gpu(total_bytes=96 * GIB, free_bytes=free * GIB, reserved_bytes=None, faults=(shared,))
    found = check_fit(budget, device_capacities(make_snapshot([gpu]), {}))
    assert (found.verdict, found.gpus[0].need_bytes) == (verdict, budget.peak.device_bytes + 30 * GIB)
    assert "share memory: 40.0 GiB for the GPU and 30.0 GiB for the CPU" in found.sentence
    assert with_host_memory(found, budget, GIB, ranks=1) == found  # it is counted already


def test_a_process_that_loads_counts_with_what_the_gpu_holds_then(budget: Budget) -> None:
    need = replace(HOST, loaded=200 * GIB)
    (gpu,) = check_fit(replace(budget, host=need), described_devices(find_gpu("gb10"), 300 * GIB, 1)).gpus
    assert gpu.need_bytes == need.loading_bytes(1) + budget.phases[0].components.total_bytes


def test_a_described_one_leaves_the_system_its_part() -> None:
    gpu = find_gpu("gb10")
    (device,) = described_devices(gpu, gpu.total_bytes, 1)
    assert device.available_bytes == gpu.total_bytes - 4 * GIB


def test_nothing_is_offloaded_to_the_same_memory(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(model=ModelSpec(id="gpt2"))
    kinds = {name: {each.kind for each in candidate_changes(job, gpu=find_gpu(name))} for name in ("gb10", "h100")}
    assert kinds["h100"] - kinds["gb10"] == {"activation offload"}
    words = ["llama-3.1-8b", "--batch-size", "4", "--seq-len", "4096", "--bf16", "--activation-offload", "true"]
    assert main(["fit", *words, "--gpu-type", "gb10", "--method", "formula"]) == 1
    assert "share memory: 88.3 GiB for the GPU and 99.4 GiB for the CPU" in capsys.readouterr().out


def test_a_server_there_takes_its_share_of_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["vllm", "serve", "meta-llama/Llama-3.1-8B", "--gpu-memory-utilization", "0.5"]
    assert main(["fit", "--gpu-type", "gb10", "--", *line]) == 0
    assert "sequence" in capsys.readouterr().out.partition("\n\n")[0]


def test_its_hosts_use_is_not_taken_for_memory_of_a_process_that_has_ended() -> None:
    for name, count in (("NVIDIA GB10", 0), ("NVIDIA H100 80GB HBM3", 1)):
        gpu = make_gpu(name=name, used_bytes=70 * GIB, free_bytes=9 * GIB)
        assert len(list(find_hidden_memory(SimpleNamespace(snapshot=make_snapshot([gpu]))))) == count


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
        groups.append(make_device(sum(group.count for group in groups), free, count=count))
    counted = check_fit(budget, groups)
    listed = check_fit(budget, [replace(each, index=at, count=1) for each in groups for at in each.indices])
    assert counted.to_json() == listed.to_json()
    if " are each " not in counted.sentence:  # one sentence for all of them
        assert counted.sentence == listed.sentence


def test_json_lists_no_more_than_the_first_and_says_how_many_there_are() -> None:
    found = check_fit(pipeline([40], 1000000), [make_device(count=1_000_008)]).to_json()
    assert (len(found["gpus"]), len(found["placement"]), len(found["placement_uuids"])) == (MAX_LISTED,) * 3
    assert (found["gpus_total"], found["placement_total"]) == (1_000_008, 1_000_000)
    assert [gpu["index"] for gpu in found["gpus"]] == found["placement"] == list(range(MAX_LISTED))
    assert "gpus_total" not in check_fit(pipeline([40], 8), [make_device(count=8)]).to_json()
