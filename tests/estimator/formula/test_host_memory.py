from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.estimation import estimate
from vramtop.estimator.host_need import HostNeed
from vramtop.estimator.job.job import Job, ModelSpec, Training
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.readers.config_file import read_config_file

P = 8_030_261_248
JOB = Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B"), training=Training(precision="bf16-mixed"))
ZERO = {"parallel.strategy": "zero3", "parallel.data_shard": 8, "training.precision": "bf16"}
FSDP = {"parallel.strategy": "fsdp2", "parallel.data_shard": 8}


def host(changes: dict[str, Any]) -> HostNeed:
    return estimate(with_changes(JOB, changes)).host


@pytest.mark.parametrize(
    ("changes", "per_parameter"),
    [
        ({**ZERO, "parallel.cpu_offload": "optimizer"}, 16),  # DeepSpeed's estimate_zero3_model_states_mem_needs
        ({**ZERO, "parallel.cpu_offload": "all"}, 18),
        ({**ZERO, "parallel.strategy": "zero2", "parallel.cpu_offload": "optimizer"}, 16),
        ({**FSDP, "parallel.cpu_offload": "all"}, 16),  # fp32 weights, gradients and two moments
        ({**FSDP, "parallel.cpu_offload": "all", "training.precision": "bf16"}, 8),
        ({**ZERO, "parallel.cpu_offload": "none"}, 0),
    ],
)
def test_offloaded_states_of_all_ranks(changes: dict[str, Any], per_parameter: int) -> None:
    need = host(changes)
    assert 8 * need.offloaded == pytest.approx(per_parameter * P, rel=1e-6)
    assert need.steady_bytes(8) == 8 * need.process + 8 * need.offloaded
    # DeepSpeed adds half as much again for buffers, and nothing for the processes; or the copies that are loaded
    most = max(1.5 * per_parameter * P, 8 * need.loaded)
    assert need.high_bytes(8) - 8 * need.process == pytest.approx(most, rel=1e-6)


def test_every_rank_loads_its_own_copy_if_the_dtype_changes() -> None:
    each = host(FSDP)
    assert (each.loaded, each.mapped) == (4 * P, 2 * P)
    assert each.loading_bytes(8) == 8 * (each.process + 4 * P)
    once = host({**FSDP, "parallel.load_on_rank_zero": True})
    assert once.loading_bytes(8) == 8 * once.process + 4 * P


def test_the_accelerate_setting_is_read(tmp_path: Path) -> None:
    file = tmp_path / "fsdp.yaml"
    fsdp = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
    file.write_text(fsdp + "  fsdp_cpu_ram_efficient_loading: true\n")
    reading = read_config_file(file, environ={})
    assert reading.value("parallel.load_on_rank_zero") is True
    assert "fsdp_cpu_ram_efficient_loading" in reading.evidence()["parallel.load_on_rank_zero"]


@pytest.mark.parametrize(
    "changes",
    [
        {"training.precision": "bf16"},  # as stored: pages of the file
        ZERO,
        {"lora.quantization": "nf4"},
    ],
)
def test_mapped_pages_of_the_file_are_no_private_copy(changes: dict[str, Any]) -> None:
    need = host(changes)
    assert (need.loaded, need.mapped) == (0, 2 * P)
    assert need.peak_bytes(8) == 8 * need.process
    assert need.high_bytes(8) == 8 * need.process


def test_models_made_on_the_gpu_load_nothing() -> None:
    need = host({**FSDP, "training.framework": "torchtitan"})
    assert (need.loaded, need.mapped) == (0, 0)


def test_offloaded_activations_and_paged_states_are_host_memory() -> None:
    backward = estimate(JOB).phase("backward")
    here = backward.components.activations
    offloaded = host({"training.activation_offload": True})
    assert 0.8 * here < offloaded.activations <= here
    embedding = 128_256 * 4096  # whose states the Trainer leaves in fp32
    expected = 2.03 * (P - embedding) + 8 * embedding
    assert host({"training.optimizer": "paged-adamw-8bit"}).optimizer == pytest.approx(expected, rel=0.01)


def test_an_optimizer_on_the_cpu_keeps_weights_and_gradients_there_too() -> None:
    changes = {"training.optimizer": "adamw-cpu-offload", "training.precision": "bf16"}
    assert host(changes).optimizer == pytest.approx((2 + 2) * 2 * P, rel=0.001)
    step = estimate(with_changes(JOB, changes)).phase("optimizer step")
    assert step.components.optimizer == 0


def test_json_has_the_sums() -> None:
    need = host({**ZERO, "parallel.cpu_offload": "all"})
    written = need.to_json(8)
    assert written["components"]["optimizer"] == need.optimizer
    assert written["steady_bytes"] == need.steady_bytes(8)
