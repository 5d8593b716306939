"""Settings of a training step."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ..rules import AUTO, check_options
from ..trainable import check_patterns
from .value_types import FrameworkName, FusedKernel, OptimizerName, Positive, PrecisionName


class Training(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a training step."""

    framework: FrameworkName = "transformers"
    """Library that runs the training loop: its loss, casts and buffers are counted."""
    micro_batch: Positive = 1
    """Sequences per GPU in one forward pass (the batch size per device)."""
    sequence_length: Positive = 2048
    """Tokens per sequence, after truncation or packing."""
    sequences_per_example: Positive = 1
    """Sequences that one example stands for: 2 if it is a chosen and a rejected one (DPO)."""
    gradient_accumulation: Positive = 1
    """Forward and backward passes per optimizer step."""
    precision: PrecisionName = AUTO
    """Type of weights and computation; ``auto``: as the framework does; ``*-mixed``: fp32 weights under autocast.

    ``auto`` in transformers 5: the checkpoint's type. ``docs/reference/frameworks.md`` has each framework's.
    """
    optimizer: OptimizerName = AUTO
    """The optimizer, by name or as ``module:Class``; ``auto``: the framework's. It decides the bytes of state."""
    optimizer_options: dict[str, Any] | None = None
    """The optimizer's keyword arguments on which memory depends, such as ``{rank = 128}``; absent: the defaults."""
    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    """Free activations in the forward pass and compute them again in the backward pass: slower, less memory."""
    activation_offload: bool = False
    """Keep saved activations in CPU RAM until the backward pass: slower."""
    trainable: list[str] | None = None
    """Names or patterns of parameters that train; ``!`` in front freezes; absent: all, or with LoRA the adapters."""
    trainable_parameters: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Number of parameters that train, where a running program reports it; counts more than ``trainable``."""
    optimizer_in_backward: bool = False
    """Apply each gradient as soon as it is computed, and free it."""
    compile: bool = False
    """The model runs under torch.compile."""
    loss: Literal["full", "chunked", "fused-linear", "log-probs", "fused-log-probs", "divergence"] = "full"
    """Computation of the loss from the logits.

    ``full``: from all logits at once; ``chunked``: from a part of them at a time; ``fused-linear``: without storing
    them (Liger-Kernel); ``log-probs``: log-probabilities of the given tokens, from all logits (DPO, GRPO);
    ``fused-log-probs``: of one example at a time (Liger-Kernel); ``divergence``: between all logits of student and
    teacher (GKD).
    """
    fused_kernels: list[FusedKernel] | None = None
    """Parts of the model that fused kernels compute (Liger-Kernel, Unsloth), which save less; absent: the framework's.

    ``norm``: RMS and layer norms; ``mlp``: the product of a gated MLP; ``rope``: rotary embeddings;
    ``cross-entropy``: the loss, which writes its gradient over the logits. Absent, NeMo AutoModel has the first three,
    and whether a ``fused-linear`` loss comes with them is not known; an empty list: none. Models that Liger-Kernel does
    not patch stay as they are.
    """
    keep_outputs: bool | None = None
    """A variable of the training loop holds the model's outputs through the backward pass; absent: as the framework."""
    loss_length: Positive | None = None
    """Tokens at the end of each sequence whose logits are computed, such as the completion's; absent: all."""
    reference_pass: bool = False
    """A reference model's forward pass runs while the activations of the trained model are held."""
    varying_lengths: bool | None = None
    """Batches differ in length from step to step: not packed, padded to their longest sequence or not at all."""
    mode: Literal["train", "inference"] = "train"
    """``inference``: the model generates text; no gradients, no optimizer."""

    def __post_init__(self) -> None:
        """Check the patterns and the optimizer's options.

        Raises:
            ValueError: a pattern is empty, or an option does not exist or has another type.
        """
        if self.trainable is not None:
            check_patterns(self.trainable)
        if self.optimizer_options is not None and self.optimizer_class is None:
            check_options(self.optimizer_options)

    @property
    def optimizer_class(self) -> str | None:
        """``module:Class`` if the optimizer is a class rather than a row of the table."""
        return self.optimizer if ":" in self.optimizer else None
