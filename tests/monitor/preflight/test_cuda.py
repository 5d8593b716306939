"""Driver, runtime, compute capability and visible devices."""

import time
from pathlib import Path
from typing import Any

import pytest
from builders import make_device, make_gpu, make_snapshot
from fake_driver import FakeGpu

from vramtop.estimator.common.records import replace
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Inference, Job, Lora, ModelSpec, Parallel, Rollout, Software, Training
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.estimator.trace.installed_packages import InstalledPackages, TorchBuild
from vramtop.monitor.board.capacity import device_capacities
from vramtop.monitor.preflight.check import CheckContext, target_devices
from vramtop.monitor.preflight.checks.cuda import (
    check_compute_capability,
    check_cuda_runtime,
    check_driver,
    check_visible_devices,
    kernel_support,
)
from vramtop.monitor.preflight.checks.libraries import DISTRIBUTIONS, check_libraries, required_libraries
from vramtop.monitor.preflight.job_launch import JobInterpreter
from vramtop.monitor.preflight.machine import Machine, this_machine
from vramtop.monitor.preflight.prepare import prepare


def ddp(ranks: int) -> Job:
    return Job(model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="ddp", data_replicate=ranks))


def machine_elsewhere(name: str) -> Machine:
    card = find_gpu(name)
    return Machine(devices=(make_device(name=card.label, total_bytes=card.total_bytes),), gpu_type=card)


def test_the_driver_and_its_gpus_are_listed(make_context) -> None:
    found = check_driver(make_context(gpus=[make_gpu(0), make_gpu(1)]))
    assert found.status == "pass"
    assert found.found == "driver 580.95, CUDA up to 13.0; 2 x NVIDIA H100 80GB HBM3"


def test_no_driver_is_a_failure_and_another_machine_is_skipped(make_context) -> None:
    context = make_context(machine=Machine(devices=(), unavailable_reason="no NVIDIA driver here"))
    found = check_driver(context)
    assert (found.status, found.found) == ("failure", "no NVIDIA driver here")
    assert check_driver(make_context(gpus=[])).status == "failure"
    assert check_driver(make_context(machine=machine_elsewhere("h100"))).status == "skipped"


def test_the_local_machine_is_read_through_nvml(driver: Any) -> None:
    driver.gpus += [FakeGpu(), FakeGpu(name="NVIDIA H100 80GB HBM3", uuid="GPU-1")]
    machine = this_machine(lambda snapshot: [1])
    assert [device.name for device in machine.devices] == ["NVIDIA H100 80GB HBM3"]
    assert (machine.chosen, machine.gpu_type and machine.gpu_type.name) == (True, "h100-80gb")
    assert driver.initialised == 0
    free, less = (
        machine.devices[0].free_bytes,
        this_machine(lambda _: [1], committed=lambda _: {1: 2**30}).devices[0].available_bytes,
    )
    assert free is not None
    assert less == free - 2**30


def test_a_hanging_driver_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    monkeypatch.setattr(type(driver), "_nvmlInitWithFlags", lambda *_: time.sleep(600))
    assert (this_machine(timeout_seconds=0.1).unavailable_reason or "").startswith("the NVIDIA driver hangs: nvmlInit")


@pytest.mark.parametrize(
    ("cuda", "newest", "status"),
    [("12.8", "13.0", "pass"), ("13.0", "13.0", "pass"), ("12.8", "12.4", "pass"), ("13.0", "12.8", "failure")],
)
def test_torch_and_the_driver_must_have_the_same_cuda_major_version(make_context, cuda, newest, status) -> None:
    context = make_context(torch_build=lambda: TorchBuild(version="2.13.0", cuda=cuda))
    source = replace(context.machine.snapshot.source, cuda_version=newest)
    snapshot = replace(context.machine.snapshot, source=source)
    machine = replace(context.machine, snapshot=snapshot)
    found = check_cuda_runtime(replace(context, machine=machine))
    assert found.status == status
    if status == "failure":
        assert found.advice == "update the driver, or install torch for CUDA 12.8 or older"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (TorchBuild(version="2.13.0+cpu"), "built without CUDA"),
        (TorchBuild(version="2.13.0", hip="6.4"), "ROCm 6.4"),
        (TorchBuild(problem="ImportError: libcudart.so.12"), "cannot be imported by /opt/env/bin/python: ImportError"),
    ],
)
def test_a_torch_without_cuda_is_reported(make_context, build: TorchBuild, words: str) -> None:
    found = check_cuda_runtime(make_context(torch_build=lambda: build))
    assert found.status == "failure"
    assert words in found.found
    if build.hip is None:  # the Python is only assumed to be that of the job
        own = JobInterpreter(path=Path("/usr/bin/python3"), origin="the Python that runs vramtop", is_certain=False)
        assert check_cuda_runtime(make_context(torch_build=lambda: build, interpreter=own)).unknown


@pytest.mark.parametrize("check", [check_cuda_runtime, check_compute_capability, check_libraries])
def test_vramtops_own_python_does_not_stand_for_that_of_another_machine(make_context, check) -> None:
    own = JobInterpreter(path=Path("/usr/bin/python3"), origin="the Python that runs vramtop", is_certain=False)
    context = make_context(machine=machine_elsewhere("h100"), torch_build=TorchBuild, interpreter=own)
    found = check(context)
    assert (found.status, found.unknown) == ("skipped", False)
    assert "--python names one to check" in found.found
    named = JobInterpreter(path=Path("/opt/env/bin/python"), origin="--python")
    assert check(replace(context, interpreter=named)).found != found.found


@pytest.mark.parametrize(
    ("card", "architectures", "way"),
    [
        ((8, 0), ["sm_80", "sm_90"], "binary"),
        ((8, 6), ["sm_80", "sm_90"], "binary"),
        ((8, 0), ["sm_86"], None),
        ((9, 0), ["sm_80"], None),
        ((9, 0), ["sm_80", "compute_80"], "ptx"),
        ((7, 0), ["sm_75", "compute_75"], None),
        ((10, 3), ["sm_100"], "binary"),
        ((12, 0), ["sm_90a", "sm_100"], None),
        ((9, 0), ["sm_90a"], "binary"),
        ((10, 3), ["sm_100a"], None),
        ((10, 3), ["sm_100f"], "binary"),
        ((12, 0), ["compute_100f"], None),
        ((12, 1), ["sm_120", "compute_120"], "binary"),
        ((9, 0), ["gfx90a", "nonsense"], None),
    ],
)
def test_kernels_by_compute_capability(card: tuple[int, int], architectures: list[str], way: str | None) -> None:
    assert kernel_support(card, architectures) == way


def test_a_gpu_without_kernels_is_named(make_context) -> None:
    context = make_context(
        ddp(2), gpus=[make_gpu(0), make_gpu(1, name="NVIDIA GeForce RTX 5090", total_bytes=32607 << 20)]
    )
    found = check_compute_capability(context)
    assert found.status == "failure"
    assert found.found.endswith("but none for GPU 1 (12.0)")
    first = replace(context, job=ddp(1))  # it will take GPU 0
    assert check_compute_capability(first).status == "pass"
    ptx = replace(context, torch_build=lambda: TorchBuild(version="2", architectures=("compute_80",)))
    assert check_compute_capability(ptx).status == "warning"


def test_the_capability_of_a_described_gpu_comes_from_the_catalogue(make_context) -> None:
    old = TorchBuild(version="2.4.0", cuda="12.1", architectures=("sm_50", "sm_80", "sm_90"))
    for name, status in (("h100", "pass"), ("rtx-5090", "failure")):
        context = make_context(machine=machine_elsewhere(name), torch_build=lambda: old)
        assert check_compute_capability(context).status == status


@pytest.mark.parametrize(
    ("visible", "ranks", "status", "words"),
    [
        (None, 1, "pass", "1 rank on GPU 0 of 4"),
        ("2,3", 2, "pass", "2 ranks on GPU 2, 3 of 4"),
        ("2", 1, "pass", "GPU 2"),
        ("", 1, "failure", "no GPU is visible"),
        ("7", 1, "failure", "no GPU is visible"),
        ("1,9", 2, "failure", "2 ranks, but only GPU 1"),
        ("0", 4, "failure", "4 ranks, but only GPU 0"),
        (None, 8, "failure", "8 ranks, but only GPU 0-3"),
        ("GPU-00000003", 1, "pass", "GPU 3"),
    ],
)
def test_each_rank_needs_a_visible_gpu(make_context, visible, ranks, status, words) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = check_visible_devices(make_context(ddp(ranks), gpus=[make_gpu(i) for i in range(4)], environ=environ))
    assert found.status == status
    assert words in found.found


def test_a_launcher_that_chooses_gpus_is_named(tmp_path: Path) -> None:
    gpus = [make_gpu(index) for index in range(3)]
    snapshot = make_snapshot(gpus)
    machine = Machine(devices=device_capacities(snapshot, {}), snapshot=snapshot)
    python = JobInterpreter(path=tmp_path / "python", origin="--python")

    def prepared(visible: str | None) -> CheckContext:
        choice = DeviceChoice(origin="--gpu_ids of accelerate", text=str(visible), visible=visible)
        environ = {"CUDA_VISIBLE_DEVICES": "0"}
        return prepare(ddp(1), machine, python, environ=environ, folder=tmp_path, choice=choice)

    second = prepared("1")
    found = check_visible_devices(second)
    assert (found.status, found.found) == ("pass", "--gpu_ids of accelerate: 1 rank on GPU 1 of 3")
    assert [device.index for device in target_devices(second)] == [1]
    missing = check_visible_devices(prepared("9"))
    assert (missing.status, missing.advice) == ("failure", "correct --gpu_ids of accelerate, or leave it out")
    unknown = prepared(None)
    assert check_visible_devices(unknown).unknown
    assert len(target_devices(unknown)) == 3


def test_ranks_on_other_machines_need_no_gpu_here(make_context) -> None:
    gpus = [make_gpu(index) for index in range(4)]
    assert check_visible_devices(make_context(ddp(8), gpus=gpus, local_ranks=4)).status == "pass"


def test_unequal_gpus_without_a_device_order_are_a_warning(make_context) -> None:
    gpus = [make_gpu(0), make_gpu(1, name="NVIDIA L4")]
    assert check_visible_devices(make_context(ddp(2), gpus=gpus)).status == "warning"
    ordered = make_context(ddp(2), gpus=gpus, environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert check_visible_devices(ordered).status == "pass"


def test_gpus_named_by_the_user_that_the_job_would_not_use_are_reported(make_context) -> None:
    context = make_context(ddp(1), gpus=[make_gpu(index) for index in range(2)])
    second = replace(context.machine, devices=context.machine.devices[1:], chosen=True)
    found = check_visible_devices(replace(context, machine=second))
    assert (found.status, found.advice) == ("warning", "set CUDA_VISIBLE_DEVICES=1")
    set_ = replace(context, machine=second, environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert check_visible_devices(set_).status == "pass"


TRAINER = {"torch": "2.13.0+cu128", "transformers": "5.23.0", "accelerate": "1.15.0"}
REQUIREMENTS = ('accelerate>=1.1.0; extra == "torch"', 'accelerate>=1.1.0; extra == "accelerate"')


def job(**tables: Any) -> Job:
    return Job(model=tables.pop("model", ModelSpec(id="gpt2")), **tables)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (job(), {"torch", "transformers", "accelerate"}),
        (job(lora=Lora()), {"torch", "transformers", "accelerate", "peft"}),
        (job(lora=Lora(quantization="nf4")), {"torch", "transformers", "accelerate", "peft", "bitsandbytes"}),
        (job(training=Training(optimizer="paged-adamw")), {"torch", "transformers", "accelerate", "bitsandbytes"}),
        (job(training=Training(optimizer="adamw-8bit", mode="inference")), {"torch", "transformers"}),
        (job(training=Training(mode="inference"), inference=Inference(engine="vllm")), {"torch", "vllm"}),
        (job(training=Training(loss="fused-linear")), {"torch", "transformers", "accelerate", "liger-kernel"}),
        (job(training=Training(loss="fused-log-probs")), {"torch", "transformers", "accelerate", "liger-kernel"}),
        (job(rollout=Rollout(engine="vllm")), {"torch", "transformers", "accelerate", "vllm"}),
        (job(rollout=Rollout()), {"torch", "transformers", "accelerate"}),
        (job(parallel=Parallel(strategy="zero3")), {"torch", "transformers", "accelerate", "deepspeed"}),
        (job(model=ModelSpec(attention="flash_attention_2")), {"torch", "transformers", "accelerate", "flash-attn"}),
        (job(training=Training(framework="torchtune", optimizer="adamw-8bit")), {"torch", "torchtune", "bitsandbytes"}),
        (job(training=Training(framework="torchtitan", loss="fused-linear")), {"torch", "torchtitan"}),
        (job(training=Training(fused_kernels=["norm"])), {"torch", "transformers", "accelerate", "liger-kernel"}),
    ],
)
def test_required_libraries_follow_from_the_job(asked: Job, names: set[str]) -> None:
    assert {need.alternatives[0] for need in required_libraries(asked)} == names
    assert {name for need in required_libraries(asked) for name in need.alternatives} <= set(DISTRIBUTIONS)


def found_in(make_context, asked: Job, versions: dict[str, str], *, sure: bool = True) -> Any:
    there = InstalledPackages(python="3.12.1", versions=versions, modules=(), requirements=REQUIREMENTS)
    python = JobInterpreter(path=Path("/opt/env/bin/python"), origin="VIRTUAL_ENV", is_certain=sure)
    return check_libraries(make_context(asked, packages=lambda: there, interpreter=python))


def test_a_missing_library_is_a_failure_with_the_command_that_installs_it(make_context) -> None:
    asked = job(lora=Lora(quantization="nf4"), training=Training(optimizer="paged-adamw-8bit"))
    found = found_in(make_context, asked, {**TRAINER, "peft": "0.18.0"})
    assert found.status == "failure"
    assert "bitsandbytes is missing (quantization = nf4, optimizer = paged-adamw-8bit)" in found.found
    assert found.advice == "/opt/env/bin/python -m pip install bitsandbytes"


def test_a_kernel_from_the_hub_replaces_flash_attention(make_context) -> None:
    asked = job(model=ModelSpec(attention="flash_attention_2"))
    assert found_in(make_context, asked, TRAINER).status == "failure"
    assert found_in(make_context, asked, {**TRAINER, "kernels": "0.18.2"}).status == "pass"


def test_an_assumed_python_gives_only_a_warning(make_context) -> None:
    found = found_in(make_context, job(), {"torch": "2.13.0"}, sure=False)
    assert (found.status, found.unknown, "--python" in (found.advice or "")) == ("warning", True, True)


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"accelerate": "0.34.0"}, "transformers 5.23.0 takes accelerate >=1.1.0, not 0.34.0"),
        ({"bitsandbytes": "0.43.2"}, "transformers 5.23.0 takes bitsandbytes >=0.46.1, not 0.43.2"),
    ],
)
def test_incompatible_versions_are_reported(make_context, versions: dict[str, str], words: str) -> None:
    asked = job(training=Training(optimizer="adamw-8bit"))
    found = found_in(make_context, asked, {**TRAINER, "bitsandbytes": "0.48.0", **versions})
    assert (found.status, words in found.found) == ("failure", True)
    older = {**TRAINER, "transformers": "4.46.0", "bitsandbytes": "0.43.2"}
    assert found_in(make_context, asked, older).status == "pass"


def test_versions_that_differ_from_the_job_are_a_warning(make_context) -> None:
    found = found_in(make_context, job(software=Software(torch="2.4")), TRAINER)
    assert (found.status, "the job is for torch 2.4, and 2.13.0+cu128 is installed" in found.found) == ("warning", True)
    assert found_in(make_context, job(software=Software(torch="2.13")), TRAINER).status == "pass"
