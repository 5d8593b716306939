from hypothesis import given, strategies as st

from vramtop.estimator.job.effective_batch import EffectiveBatch, effective_batch
from vramtop.estimator.job.job import Job, Parallel, Training


def test_only_data_parallel_ranks_multiply_the_batch() -> None:
    job = Job(
        training=Training(micro_batch=2, gradient_accumulation=4, sequence_length=1024),
        parallel=Parallel(strategy="fsdp2", data_shard=4, data_replicate=2, tensor=2, pipeline=3, context=2, expert=4),
    )
    batch = effective_batch(job)
    assert (batch.sequences, batch.tokens) == (64, 65_536)
    assert job.parallel.world_size == 96
    assert (
        batch.describe()
        == "64 sequences and 65,536 tokens a step: micro-batch 2 × accumulation 4 × 8 data-parallel ranks"
    )
    assert batch.to_json().sequences == 64


def test_inference_has_no_step() -> None:
    assert effective_batch(Job(training=Training(mode="inference"))) is None


def test_settings_that_keep_one_gpus_batch_on_many() -> None:
    def advice(micro_batch: int, accumulation: int, ranks: int) -> str | None:
        return EffectiveBatch(
            micro_batch=micro_batch, gradient_accumulation=accumulation, data_ranks=ranks, sequence_length=1
        ).advice()

    assert advice(4, 2, 1) is None
    on_two = "8 sequences a step; micro-batch 4 with 1 accumulation step gives that batch on 2 GPUs"
    assert on_two in (advice(4, 2, 2) or "")
    assert "micro-batch 1 with 1 accumulation step gives that batch on 8 GPUs" in (advice(4, 2, 8) or "")
    assert "No whole number of accumulation steps gives that batch on 8 GPUs" in (advice(1, 2, 8) or "")


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_the_suggested_accumulation_keeps_the_batch(a: int, b: int, c: int, micro: int, ranks: int) -> None:
    batch = EffectiveBatch(micro_batch=a, gradient_accumulation=b, data_ranks=c, sequence_length=8)
    steps = batch.accumulation_for(micro_batch=micro, data_ranks=ranks)
    assert steps is None or micro * steps * ranks == batch.sequences
    assert (steps is None) == (batch.sequences % (micro * ranks) != 0)
