import sys
from pathlib import Path

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate, quick_estimator
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job, ModelSpec, Target, Training
from vramtop.estimator.job.job_file.changes import with_changes

JOB = Job(model=ModelSpec(id="Qwen/Qwen2.5-0.5B"), training=Training(sequence_length=512))


def test_the_formula_needs_no_torch() -> None:
    budget = estimate(JOB)
    assert (budget.method, budget.model.count, budget.model.parameters) == ("formula", "exact", 494_032_768)


def test_exact_and_formula_agree_on_a_known_family() -> None:
    exact = estimate(JOB, method="exact", python=sys.executable)
    assert exact.method == "exact"
    assert exact.peak.allocated_bytes == pytest.approx(estimate(JOB).peak.allocated_bytes, abs=4096)  # buffers


def test_auto_falls_back_to_the_formula_and_exact_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert estimate(JOB, method="auto").method == "formula"
    with pytest.raises(CannotTellError, match="torch"):
        estimate(JOB, method="exact")


def test_a_missing_python_is_an_error_even_for_auto(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such program"):
        estimate(JOB, method="auto", python=str(tmp_path / "python"))


def test_the_target_gpu_sets_the_memory_of_the_cuda_context() -> None:
    hopper = estimate(with_changes(JOB, {"target.gpu": "h100-80gb"}))
    volta = estimate(with_changes(JOB, {"target.gpu": "v100-16gb"}))
    assert volta.peak.components.context < hopper.peak.components.context
    assert estimate(JOB, gpu=find_gpu("v100-16gb")).peak.components == volta.peak.components
    with pytest.raises(InputError, match="no GPU"):
        estimate(with_changes(JOB, {"target.gpu": "h1000"}))


def test_a_target_gpu_need_not_be_present() -> None:
    job = Job(model=JOB.model, training=JOB.training, target=Target(gpu="rtx-4090"))
    assert any("RTX 4090" in sentence for sentence in estimate(job).assumptions)


def test_optimizer_states_come_with_the_first_step() -> None:
    """torchtitan's Llama-3-8B over 8 ranks: 42.08 GiB reserved in step 1, 49.59 from step 2 on (its own log)."""
    job = with_changes(
        Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B")),
        {"training.framework": "torchtitan", "parallel.strategy": "fsdp2", "parallel.data_shard": 8},
    )
    assert estimate(job).peak.components.optimizer / GIB == pytest.approx(49.59 - 42.08, rel=0.01)


def test_the_package_can_be_used_as_a_library() -> None:
    import vramtop.estimator as library

    budget = library.estimate(library.Job(model=library.ModelSpec(id="gpt2")))
    assert isinstance(budget, library.Budget)
    assert budget.to_json()["peak"]["device_bytes"] == budget.peak.device_bytes
    lines = str(budget).splitlines()
    assert lines[0].startswith("gpt2")
    assert any(line.startswith("weights") for line in lines)
    with pytest.raises(AttributeError, match="nothing_there"):
        _ = library.nothing_there


def test_quick_estimates_equal_full_estimates() -> None:
    """But for what the job leaves open: the version of transformers, and whether lengths differ."""
    quick = quick_estimator(JOB)
    stated = with_changes(JOB, {"software.transformers": "5.23.0", "training.varying_lengths": False})
    for changes in ({}, {"training.micro_batch": 4}, {"model.attention": "eager"}, {"lora.rank": 8}):
        changed = with_changes(stated, changes)
        assert quick(changed) == replace(estimate(changed), assumptions=(), warnings=())
    with pytest.raises(InputError, match="pipeline"):
        quick(with_changes(JOB, {"parallel.pipeline": 1000}))
    with pytest.raises(InputError, match="nowhere"):
        quick_estimator(Job(model=ModelSpec(id="nowhere/at-all")))


def test_a_large_encoder_that_is_not_counted_widens_the_range() -> None:
    text = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    text |= {"num_attention_heads": 16, "vocab_size": 32000}

    def llava(hidden: int, **more: object) -> Budget:
        vision = {"hidden_size": hidden, "num_hidden_layers": 24, **more}
        config = {"model_type": "llava", "text_config": text, "vision_config": vision}
        return estimate(Job(model=ModelSpec(config=config), training=Training(sequence_length=512)))

    small, large = llava(64), llava(4096)
    said = "Only the language model is counted, not vision_config (parameters: about {} million)."
    assert said.format("1") in small.warnings
    assert said.format("4,832") in large.warnings
    assert said.format("6,442") in llava(4096, hidden_act="silu").warnings
    assert (large.peak.device_bytes, large.peak.low_bytes) == (small.peak.device_bytes, small.peak.low_bytes)
    parts = large.peak.components
    states = (parts.weights + parts.gradients + parts.optimizer) * (4_831_838_208 / small.model.parameters - 0.1)
    assert large.peak.high_bytes - small.peak.high_bytes == pytest.approx(states, rel=0.01)
