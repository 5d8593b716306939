"""Optimizers of bitsandbytes and torchao: states in few bits, in fp32, paged, or on the host.

Sources: bitsandbytes 0.50 (``optim/optimizer.py``: 32-bit states are fp32 whatever the parameter; 8-bit ones from
4096 elements), torchao 0.18 (``optim/``), transformers (``trainer_optimizer.py``); states as counted in real steps
(``tests/accuracy/optimizer_states.py``). torchao's compiled step holds both states of a parameter in fp32 for a
while, and codes of 4 bits as int64 before they are packed (buffers of the code that inductor writes).
"""

from collections.abc import Iterator

from .optimizer import Full, Optimizer, Quantized, Variant

_BITSANDBYTES = ("bitsandbytes",)


def _both_widths(
    name: str,
    label: str,
    states: int,
    *classes: str,
    whole: str | None = None,
    whole_names: tuple[str, ...] = (),
    eight_names: tuple[str, ...] = (),
    paged: bool = False,
    unpaged: str | None = None,
    has_paged: str | None = None,
) -> Iterator[Optimizer]:
    """Yield bitsandbytes' classes with 32-bit and with 8-bit states.

    Args:
        name: the job file's, without the width.
        label: for people.
        states: number of states.
        classes: their names, without the width.
        whole: the job file's name for 32 bits, where it is not ``NAME-32bit``.
        whole_names: the Trainer's names for 32 bits.
        eight_names: the Trainer's names for 8 bits.
        paged: the states are paged.
        unpaged: row with the same states on the GPU, for 32 bits.
        has_paged: row for 32 bits that ``is_paged=True`` selects; the one for 8 bits is ``paged-NAME-8bit``.
    """
    whole = whole or f"{name}-32bit"
    paged_eight = f"paged-{name}-8bit"
    yield Optimizer(
        name=whole,
        description=f"a paged {label}" if paged else f"{label} with states in 32 bits",
        states=(Full(count=states, width=4),),
        paged=paged,
        libraries=_BITSANDBYTES,
        class_names=tuple(f"bitsandbytes.optim.{each}{end}" for each in classes for end in ("", "32bit")),
        trainer_names=whole_names,
        variants=(
            Variant(option="optim_bits", value=8, row=f"{name}-8bit"),
            *((Variant(option="is_paged", row=has_paged),) if has_paged else ()),
        ),
        unpaged=unpaged,
    )
    yield Optimizer(
        name=f"{name}-8bit",
        description=f"a paged {label}" if paged else f"{label} with states in 8 bits",
        states=(Quantized(count=states),),
        paged=paged,
        libraries=_BITSANDBYTES,
        class_names=tuple(f"bitsandbytes.optim.{each}8bit" for each in classes),
        trainer_names=eight_names,
        variants=(Variant(option="is_paged", row=paged_eight),) if has_paged else (),
        unpaged=name.removeprefix("paged-") + "-8bit" if paged else None,
    )


def _torchao(name: str, bits: int, block: int, end: str, *trainer_names: str) -> Optimizer:
    return Optimizer(
        name=name,
        description=f"torchao's AdamW with states in {bits} bits",
        states=(Quantized(count=2, bits=bits, block=block, small_width=None, whole_blocks=True),),
        step_tensors=6.5 if bits == 4 else 2.5,
        libraries=("torchao",),
        class_names=tuple(f"torchao.optim.{kind}{end}" for kind in ("AdamW", "Adam")),
        trainer_names=trainer_names,
    )


QUANTIZED_ROWS = (
    *_both_widths(
        *("adamw", "AdamW", 2, "AdamW", "Adam"),
        eight_names=("adamw_8bit", "adamw_bnb_8bit", "adamw_bnb"),
        has_paged="paged-adamw",
    ),
    *_both_widths(
        *("paged-adamw", "AdamW", 2, "PagedAdamW", "PagedAdam"),
        whole="paged-adamw",
        whole_names=("paged_adamw_32bit", "paged_adamw"),
        eight_names=("paged_adamw_8bit",),
        paged=True,
        unpaged="adamw-fused",
    ),
    *_both_widths(
        *("lion", "Lion", 1, "Lion"),
        whole_names=("lion_32bit", "lion"),
        eight_names=("lion_8bit",),
        has_paged="paged-lion-32bit",
    ),
    *_both_widths(
        *("paged-lion", "Lion", 1, "PagedLion"),
        whole_names=("paged_lion_32bit", "paged_lion"),
        eight_names=("paged_lion_8bit",),
        paged=True,
        unpaged="lion-32bit",
    ),
    *_both_widths(
        *("ademamix", "AdEMAMix", 3, "AdEMAMix"),
        whole_names=("ademamix",),
        eight_names=("ademamix_8bit",),
        has_paged="paged-ademamix-32bit",
    ),
    *_both_widths(
        *("paged-ademamix", "AdEMAMix", 3, "PagedAdEMAMix"),
        whole_names=("paged_ademamix_32bit", "paged_ademamix"),
        eight_names=("paged_ademamix_8bit",),
        paged=True,
        unpaged="ademamix-32bit",
    ),
    *_both_widths(
        *("rmsprop", "RMSprop", 1, "RMSprop"),
        whole_names=("rmsprop_bnb", "rmsprop_bnb_32bit"),
        eight_names=("rmsprop_bnb_8bit",),
    ),
    *_both_widths("adagrad", "Adagrad", 1, "Adagrad"),
    *_both_widths("sgd", "SGD with momentum", 1, "SGD"),
    *_both_widths("lamb", "LAMB", 2, "LAMB"),
    *_both_widths("lars", "LARS", 1, "LARS"),
    _torchao("adamw-8bit-torchao", 8, 256, "8bit", "adamw_torch_8bit", "ao_adamw_8bit"),
    _torchao("adamw-4bit", 4, 128, "4bit", "adamw_torch_4bit", "ao_adamw_4bit"),
    _torchao("adamw-fp8", 8, 256, "Fp8", "ao_adamw_fp8"),
    Optimizer(
        name="adamw-cpu-offload",
        description="torchao's AdamW on the CPU",
        states=(Full(count=2),),
        on_host=True,
        host_copies=2,
        libraries=("torchao",),
        class_names=("torchao.optim.CPUOffloadOptimizer",),
    ),
)
