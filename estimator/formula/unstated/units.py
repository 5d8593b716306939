"""FSDP's units, and what it shards, where that is not understood or depends on who wraps the model."""

from collections.abc import Iterator

from msgspec.structs import replace

from ...job import ResolvedJob, is_four_bit
from ..fsdp1 import unit_rule
from .other_side import OtherSide


def other_units(job: ResolvedJob) -> Iterator[OtherSide]:
    """Yield the job with the whole model as one unit, where it may be that.

    A class to wrap leaves most of the model to the root if it is a small part of a block, and all of it if it does not
    occur. The Trainer gives accelerate peft's wrap policy, which FSDP 2 under accelerate does not follow.
    """
    parallel = job.parallel
    if job.shards.weights == 1 or not job.strategy.fsdp or parallel.fsdp_units is not None:
        return
    whole = replace(job.job.parallel, fsdp_units="model", fsdp_wrap_classes=None, fsdp_min_unit_parameters=None)
    one_unit = replace(job.job, parallel=whole)
    if parallel.fsdp_wrap_classes and not unit_rule(job).understood:
        names = ", ".join(parallel.fsdp_wrap_classes)
        sentence = (
            f"fsdp_wrap_classes: what a layer of {names} holds is not known; FSDP is taken to wrap blocks. If that "
            "leaves them to the root, the step {change}"
        )
        yield OtherSide(source="units", job=one_unit, sentence=sentence, is_warning=True)
    elif job.strategy.fsdp2 and job.lora is not None and job.framework.trainer:
        sentence = (
            "FSDP 2 is taken to wrap blocks. Under transformers' Trainer it wraps none of a model with adapters "
            '(parallel.fsdp_units = "model"), and the step {change}'
        )
        yield OtherSide(source="units", job=one_unit, sentence=sentence, is_warning=True)


def unsharded_weights(job: ResolvedJob) -> Iterator[OtherSide]:
    """Yield the job with whole 4-bit weights on each rank.

    FSDP 2 under accelerate shards them only where they are stored in a floating type (``fsdp2_prepare_model`` of
    accelerate 1.15, "incompatible_params4bit"); bitsandbytes' default ``bnb_4bit_quant_storage`` is uint8.
    """
    parallel = job.parallel
    if job.shards.weights == 1 or not (job.strategy.fsdp2 and is_four_bit(job.lora) and job.framework.trainer):
        return
    whole = replace(
        job.job.parallel,
        strategy="ddp",
        data_shard=1,
        data_replicate=parallel.data_shard * parallel.data_replicate,
        fsdp_units=None,
    )
    sentence = (
        "4-bit weights are taken to be sharded, as with a floating bnb_4bit_quant_storage. With its default, uint8, "
        "FSDP 2 under accelerate leaves them whole on each rank, and the step {change}"
    )
    yield OtherSide(source="storage", job=replace(job.job, parallel=whole), sentence=sentence, is_warning=True)
