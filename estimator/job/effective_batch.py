"""The effective batch: sequences and tokens per step, by rank, and settings that keep it on other numbers of GPUs."""

import msgspec

from .job import Job


class EffectiveBatchJson(msgspec.Struct, frozen=True):
    """Sequences and tokens of one optimizer step: micro-batch x accumulation x data-parallel ranks."""

    micro_batch: int
    """Sequences (or pairs of them) per rank in one forward pass."""
    gradient_accumulation: int
    """Forward and backward passes per optimizer step."""
    data_ranks: int
    """Ranks that work on different sequences."""
    sequence_length: int
    """Tokens per sequence."""
    sequences_per_example: int
    """Sequences of one example: 2 for a chosen and a rejected one (DPO)."""
    sequences: int
    """Examples per optimizer step, over all ranks."""
    tokens: int
    """Tokens per optimizer step, over all ranks; padding counts."""


class EffectiveBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-batch x accumulation x data-parallel ranks.

    Tensor-, pipeline-, context- and expert-parallel ranks work on the same sequences, so they do not multiply it.
    """

    micro_batch: int
    gradient_accumulation: int
    data_ranks: int
    sequence_length: int
    sequences_per_example: int = 1
    gpus_per_rank: int = 1
    """GPUs of one data-parallel rank: tensor-, pipeline- and context-parallel ranks."""

    @property
    def sequences(self) -> int:
        """Examples per optimizer step, over all ranks; each is one sequence, or a pair of them."""
        return self.micro_batch * self.gradient_accumulation * self.data_ranks

    @property
    def tokens(self) -> int:
        """Tokens per optimizer step, over all ranks; padding counts."""
        return self.sequences * self.sequences_per_example * self.sequence_length

    def accumulation_for(self, *, micro_batch: int, data_ranks: int) -> int | None:
        """Return the accumulation that keeps ``sequences`` with another micro-batch or rank count; None: none does."""
        steps, rest = divmod(self.sequences, micro_batch * data_ranks)
        return steps if steps and not rest else None

    def describe(self) -> str:
        """Return the product and its factors, for people."""
        word = "sequence" if self.sequences_per_example == 1 else f"example of {self.sequences_per_example} sequences"
        step = f"{_count(self.sequences, word)} and {self.tokens:,} tokens a step"
        if self.sequences == 1:
            return step
        factors = {"micro-batch": self.micro_batch, "accumulation": self.gradient_accumulation}
        parts = [f"{name} {size:,}" for name, size in factors.items() if size > 1]
        ranks = [_count(self.data_ranks, "data-parallel rank")] if self.data_ranks > 1 else []
        return f"{step}: {' × '.join([*parts, *ranks])}"

    def advice(self) -> str | None:
        """Return in words which settings keep one GPU's batch on all ranks; None if there is only one rank."""
        if self.data_ranks == 1:
            return None
        one, all_ranks = "one GPU", f"{self.data_ranks:,} GPUs"
        if self.gpus_per_rank > 1:
            one, all_ranks = "one data-parallel rank", f"all {self.data_ranks:,}"
        alone = msgspec.structs.replace(self, data_ranks=1)
        same = f"the same settings on {one}: {_count(alone.sequences, 'sequence')} a step"
        micro_batch, halved = self.micro_batch, 0
        while micro_batch != halved:
            steps = alone.accumulation_for(micro_batch=micro_batch, data_ranks=self.data_ranks)
            if steps is not None:
                kept = f"micro-batch {micro_batch} with {_count(steps, 'accumulation step')}"
                return f"{same}; {kept} gives that batch on {all_ranks}"
            micro_batch, halved = -(-micro_batch // 2), micro_batch
        return f"{same}. No whole number of accumulation steps gives that batch on {all_ranks}"

    def to_json(self) -> EffectiveBatchJson:
        """Return the fields, and the products."""
        return EffectiveBatchJson(*(getattr(self, name) for name in EffectiveBatchJson.__struct_fields__))


def effective_batch(job: Job) -> EffectiveBatch | None:
    """Return the batch of one optimizer step; None for inference, which has none, and for programs."""
    if job.program is not None or job.training.mode == "inference":
        return None
    return EffectiveBatch(
        micro_batch=job.training.micro_batch,
        gradient_accumulation=job.training.gradient_accumulation,
        data_ranks=job.parallel.data_ranks,
        sequence_length=job.training.sequence_length,
        sequences_per_example=job.training.sequences_per_example,
        gpus_per_rank=job.parallel.world_size // job.parallel.data_ranks,
    )


def _count(number: int, word: str) -> str:
    first, space, rest = word.partition(" of ")
    return f"{number:,} {first}{'' if number == 1 else 's'}{space}{rest}"
