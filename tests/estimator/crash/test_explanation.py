"""What is said about a failure of memory, alone and beside a budget that a real estimate has made."""

import pytest
from memory_snapshots import AUTOGRAD, LOAD, LOSS, MIB, Recorder

from vramtop.estimator.budget import Budget, PhaseName
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.crash.explanation import explain_failure, failure_of_snapshot
from vramtop.estimator.crash.records import Failure, OtherProcess, OutOfMemory
from vramtop.estimator.crash.snapshot.records import MemorySnapshot
from vramtop.estimator.crash.snapshot.snapshot_reader import _Reader
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec, Training

GIB = 2**30


def failure(phase: PhaseName | None = "backward", **figures: object) -> Failure:
    known = {
        "backend": "CUDA",
        "tried_bytes": 2 * GIB,
        "total_bytes": 24 * GIB,
        "free_bytes": GIB,
        "allocated_bytes": 21 * GIB,
    }
    memory = OutOfMemory(gpu=0, **{"unallocated_bytes": GIB // 8, **known, **figures})  # type: ignore[arg-type]
    return Failure(kind="gpu", line=1, text="", memory=memory, phase=phase)


def snapshot_of(run: Recorder, *free_mib: float) -> MemorySnapshot:
    return _Reader(run.snapshot(*free_mib)).read(None)


@pytest.fixture(scope="module")
def budget() -> Budget:
    """GPT-2 with batches of 8 x 1024 tokens: its logits in fp32 are 8 x 1024 x 50257 x 4 bytes."""
    return estimate(Job(model=ModelSpec(id="gpt2"), training=Training(micro_batch=8, sequence_length=1024)))


def said(failed: Failure, **more: object) -> str:
    explained = explain_failure(failed, **more)  # type: ignore[arg-type]
    return " ".join((*explained.findings, *explained.compared))


def test_the_parts_are_the_gpu() -> None:
    parts = explain_failure(failure(process_bytes=21.5 * GIB, allocated_bytes=20 * GIB)).parts
    assert {name: size / GIB for name, size in parts.items()} == {
        "tensors": 20, "unused by tensors": 0.125, "outside the allocator": 1.375, "others": 1.5, "free": 1,
    }  # fmt: skip
    assert sum(parts.values()) == 24 * GIB


def test_the_wording_before_2_1_does_not_say_whose_the_rest_is() -> None:
    old = failure(allocated_bytes=15 * GIB)
    parts = {name: size / GIB for name, size in explain_failure(old).parts.items()}
    assert parts["not the allocator's"] == 24 - 15 - 0.125 - 1
    assert "7.9 GiB of the GPU are not PyTorch's, more than its CUDA context takes" in said(old)
    assert "not PyTorch's" not in said(failure(allocated_bytes=21 * GIB))


def test_other_processes_are_the_cause_only_if_they_hold_enough() -> None:
    others = (OtherProcess(pid=7, used_bytes=3 * GIB),)
    filled = failure(process_bytes=19 * GIB, allocated_bytes=18 * GIB, others=others)
    assert "process 7: 3.0 GiB): without them the allocation would have succeeded" in said(filled)
    small = failure(process_bytes=19 * GIB, allocated_bytes=18 * GIB, others=others, tried_bytes=9 * GIB)
    assert "even without them there would have been too little" in said(small)


def test_fragmentation_is_the_cause_only_if_enough_is_unused() -> None:
    enough = said(failure(unallocated_bytes=5 * GIB, allocated_bytes=17 * GIB))
    assert "Fragmentation: 5.00 GiB are reserved and unused, more than the 2.00 GiB requested" in enough
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in enough
    for backend in ("HIP", "NPU"):
        assert f"PYTORCH_{backend}_ALLOC_CONF=" in said(
            failure(unallocated_bytes=5 * GIB, allocated_bytes=17 * GIB, backend=backend)
        )
    assert "Fragmentation adds to it" in said(failure(unallocated_bytes=3 * GIB // 2))
    assert "Fragmentation" not in said(failure(unallocated_bytes=GIB // 4))


def test_a_snapshot_says_in_which_pieces() -> None:
    run = Recorder()
    run.alloc(900, LOAD)
    run.oom(50, LOSS, free_mib=10)
    found = snapshot_of(run, 40, 30, 20)
    failed = failure_of_snapshot(found)
    assert failed is not None
    assert "in 3 free blocks, the largest of 40 MiB" in said(failed, snapshot=found)


def test_one_tensor_larger_than_the_gpu() -> None:
    text = said(failure(tried_bytes=40 * GIB, unallocated_bytes=9 * GIB))
    assert "larger than the whole GPU" in text
    assert "Fragmentation" not in text


def test_a_limit_of_the_programs_own() -> None:
    assert "limits itself to 12.0 GiB" in said(failure(allowed_bytes=12 * GIB, free_bytes=10 * GIB))


def test_more_than_the_gpu_has_was_moved_to_cpu_ram() -> None:
    """The driver of Windows and WSL pages, so that the figures exceed the GPU; NVML then knows no process."""
    text = said(failure(total_bytes=8 * GIB, free_bytes=0, allocated_bytes=13 * GIB, unallocated_bytes=0))
    assert "13.00 GiB on a GPU of 8.00 GiB: the driver of Windows or WSL has moved at least 5.00 GiB to CPU RAM" in text
    assert "needs more than 15.00 GiB" in text
    assert "fill" not in text
    beside = said(failure(total_bytes=8 * GIB, free_bytes=3 * GIB, allocated_bytes=7 * GIB, unallocated_bytes=0))
    assert "that had 3.00 GiB free: the driver of Windows or WSL has moved at least 2.00 GiB" in beside
    assert "Windows" not in said(failure())


def test_more_free_than_was_asked_for_is_another_limit() -> None:
    roomy = failure(free_bytes=4 * GIB, allocated_bytes=10 * GIB, unallocated_bytes=3 * GIB, process_bytes=14 * GIB)
    text = said(roomy)
    assert "The GPU had room: 4.00 GiB were free, and 2.00 GiB were requested. Another limit was reached" in text
    assert "Fragmentation" not in text
    assert "without them" not in text
    assert "had room" not in said(failure(allowed_bytes=12 * GIB, free_bytes=10 * GIB, allocated_bytes=10 * GIB))


def test_logits_without_a_job() -> None:
    """By the line that failed, or by tokens x vocabulary x 4 bytes of a vocabulary that is known."""
    place = "llama/modeling_llama.py:9 forward"
    line = replace(failure("forward", tried_bytes=3 * GIB), place=place, code="logits = logits.float()")
    assert "`logits = logits.float()`, works on the logits (tokens x vocabulary); 3.00 GiB" in said(line)
    assert "use_liger_kernel=True" in said(line)
    size = 16_384 * 128_256 * 4
    for tried in (size, round(round(size / GIB, 2) * GIB)):
        text = said(failure(None, total_bytes=80 * GIB, tried_bytes=tried))
        assert "may be the logits in fp32: 16,384 tokens x 128,256 words x 4 bytes" in text
    assert "logits" not in said(failure(None, total_bytes=80 * GIB, tried_bytes=round(size * 1.01)))
    for round_size in (8, 12):
        assert "logits" not in said(failure(None, total_bytes=80 * GIB, tried_bytes=round_size * GIB))
    elsewhere = replace(failure("forward", tried_bytes=size), place="u/resnet.py:9 forward")
    assert "logits" not in said(elsewhere)


def test_evaluation_keeps_its_predictions() -> None:
    text = said(replace(failure("evaluation"), steps=56))
    assert "eval_accumulation_steps" in text
    assert "steps succeeded" not in text


def test_steps_before_it_rule_out_the_first_step() -> None:
    assert "40 steps succeeded before" in said(replace(failure(), steps=40))
    assert "gone well" not in said(replace(failure(), steps=1))


def test_beside_the_budget(budget: Budget) -> None:
    peak = budget.peak
    fits = failure(total_bytes=80 * GIB, allocated_bytes=5 * GIB, free_bytes=GIB, unallocated_bytes=0)
    assert "By its budget the job fits" in said(fits, budget=budget)
    tight = failure(total_bytes=(peak.device_bytes + peak.high_bytes) // 2, allocated_bytes=5 * GIB)
    assert "It was tight" in said(tight, budget=budget)
    never = failure(total_bytes=peak.low_bytes // 2, allocated_bytes=peak.low_bytes // 3)
    assert "The failure was expected" in said(never, budget=budget)


def test_others_take_their_part_of_the_gpu_from_the_job(budget: Budget) -> None:
    """The GPU would do for the job alone; what others held on it is more than what is left."""
    total = round(1.2 * budget.peak.high_bytes)
    own = total // 2
    shared = failure(
        total_bytes=total, free_bytes=0, process_bytes=own, allocated_bytes=own - GIB, unallocated_bytes=GIB // 2
    )
    assert "The failure was expected" in said(shared, budget=budget)


def test_a_run_that_needs_more_than_its_job_is_another_job(budget: Budget) -> None:
    high = budget.peak.high_bytes
    larger = failure(total_bytes=2 * high, free_bytes=0, process_bytes=2 * high, allocated_bytes=2 * high - GIB)
    explained = explain_failure(larger, budget=budget)
    assert explained.least_bytes is not None
    assert explained.least_bytes > high
    assert "The program needs more than the given job" in " ".join(explained.compared)
    smaller = failure(total_bytes=2 * high, free_bytes=0, process_bytes=high // 2, allocated_bytes=high // 4)
    assert "The program needs more" not in said(smaller, budget=budget)


@pytest.mark.parametrize(("width", "word"), [(4, "fp32"), (2, "16-bit")])
def test_the_logits_are_recognized_by_their_size(budget: Budget, width: int, word: str) -> None:
    size = 8 * 1024 * 50_257 * width
    rounded = round(size / GIB, 2) * GIB  # as torch prints it
    assert f"the logits in {word}: 8,192 tokens x 50,257 words" in said(
        failure(tried_bytes=round(rounded)), budget=budget
    )
    assert "the logits" not in said(failure(tried_bytes=round(size * 1.05)), budget=budget)


def test_the_phase_beside_its_predicted_peak(budget: Budget) -> None:
    backward = budget.phase("backward")
    peak = format_gib(backward.allocated_bytes)
    assert f"more than its predicted peak of {peak} GiB" in said(
        failure("backward", allocated_bytes=backward.allocated_bytes), budget=budget
    )
    assert f"less than its predicted peak of {peak} GiB" in said(
        failure("backward", allocated_bytes=GIB), budget=budget
    )
    assert "predicted peak of" not in said(failure(None), budget=budget)


def test_the_component_that_exceeds_its_prediction(budget: Budget) -> None:
    run = Recorder()
    run.alloc(budget.peak.components.weights // MIB, LOAD)
    for _ in range(40):
        run.alloc(budget.peak.components.total_bytes // MIB // 20, [("/env/torch/optim/adam.py", 5, "_init_group")])
    run.alloc(3, AUTOGRAD)
    run.oom(50, LOSS)
    found = snapshot_of(run)
    failed = failure_of_snapshot(found)
    assert failed is not None
    assert "Optimizer hold" in said(failed, snapshot=found, budget=budget)


def test_a_gpu_that_is_full_but_for_a_hundredth_had_no_room() -> None:
    full = failure(tried_bytes=22 * MIB, free_bytes=80 * MIB, allocated_bytes=23 * GIB)
    assert "had room" not in said(full)
    assert "fill 96 % of the GPU" in said(full)


def test_a_message_that_is_cut_off_still_says_what_the_process_holds() -> None:
    cut = failure(allocated_bytes=None, unallocated_bytes=None, process_bytes=20 * GIB)
    assert {name: size // GIB for name, size in explain_failure(cut).parts.items()} == {
        "this process": 20, "others": 3, "free": 1,
    }  # fmt: skip


def test_a_job_beside_a_failure_without_the_gpus_size(budget: Budget) -> None:
    assert "predicted to need" in said(failure(total_bytes=None), budget=budget)


def test_what_helps_where_only_the_size_of_the_job_is_to_blame() -> None:
    alone = failure(None, tried_bytes=23 * GIB, free_bytes=19 * GIB, allocated_bytes=4 * GIB, unallocated_bytes=0)
    assert "The request alone is 96 % of the GPU" in said(alone)
    assert "Make the job smaller" in said(
        failure(None, total_bytes=30 * GIB, free_bytes=GIB, allocated_bytes=22 * GIB, process_bytes=29 * GIB)
    )
