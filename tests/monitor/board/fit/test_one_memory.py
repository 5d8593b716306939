"""GPUs without memory of their own (GB10, Jetson): what a job needs on the GPU and beside it is one sum."""

from types import SimpleNamespace

import pytest
from builders import make_budget, make_gpu, make_snapshot

from vramtop.estimator.advice.suggestions import candidate_changes
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.host_need import HostNeed
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.anomalies.leftovers import find_hidden_memory
from vramtop.monitor.board.capacity import described_devices, device_capacities
from vramtop.monitor.board.fit import check_fit, with_host_memory
from vramtop.monitor.snapshot.faults import HOST_MEMORY, Fault
from vramtop.tui.cli.main import main

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
