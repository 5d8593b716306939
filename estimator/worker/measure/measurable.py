"""Jobs whose real step can be run here: a sentence for each setting with which it cannot. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..request.protocol import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..request.request import Request

STRATEGIES = ("none", "ddp", "fsdp1", "fsdp2")
COMPILED_STRATEGIES = ("none", "ddp")
LOSSES = ("full", "fused-linear")
"""With the Trainer; TRL's tiles (``chunked``) are a loop of their own."""


def check_measurable(request: Request) -> None:
    """Raise for the first setting of the job whose real step is not run here: nothing stands in for it.

    Raises:
        UnsupportedError: there is one.
    """
    for sentence in (*_unmeasured_training(request), *_unmeasured_parallelism(request)):
        raise UnsupportedError(sentence)


def _unmeasured_training(request: Request) -> Iterator[str]:
    training = request.training
    if training.framework != "transformers":
        yield f"the training loop of {training.framework} cannot be measured; that of transformers' Trainer can"
    if training.compile:
        yield from _unmeasured_compile(request)
    elif training.loss not in LOSSES:
        yield f"the {training.loss} loss cannot be measured, only {', '.join(LOSSES)}"
    elif request.device == "cpu" and (request.loop.fused or training.loss != "full"):
        parts = ", ".join(request.loop.fused) or f"the {training.loss} loss"
        yield (
            f"fused kernels ({parts}) can be measured on a GPU only, where they run; without them "
            "(training.fused_kernels, training.loss) the job can be measured on the CPU"
        )
    if request.optimizer is None and training.optimizer != "none" and training.mode == "train":
        yield f"the optimizer {training.optimizer} has no class that could be stepped here"
    if training.reference_pass:
        yield "a reference's forward pass cannot be measured"
    if request.rollout:
        yield "text that is generated during training cannot be measured"
    if training.activation_checkpointing not in ("none", "full"):
        yield f"activation checkpointing {training.activation_checkpointing} cannot be measured, none and full can"
    if training.activation_offload:
        yield "activation offload cannot be measured"
    if training.loss_length is not None:
        yield "logits of a part of each sequence cannot be measured"
    if training.optimizer_in_backward and (request.parallel.world_size > 1 or training.precision == "fp16-mixed"):
        yield "an optimizer that steps in the backward pass can be measured on one GPU only, without a gradient scaler"
    if request.task == "feature-extraction" and training.mode == "train":
        yield "feature-extraction has no loss, so there is no training step"


def _unmeasured_compile(request: Request) -> Iterator[str]:
    training, lora = request.training, request.lora
    if request.device == "cpu":
        yield (
            "torch.compile can be measured on a GPU only: on the CPU its kernels allocate where nothing counts them; "
            "without training.compile the job can be measured"
        )
    if training.mode != "train" or training.loss != "full":
        yield 'torch.compile can be measured of training with the whole loss only (training.loss = "full")'
    if request.parallel.strategy not in COMPILED_STRATEGIES:
        known = ", ".join(COMPILED_STRATEGIES)
        yield f"torch.compile under {request.parallel.strategy} cannot be measured, only {known}"
    if lora is not None and lora.quantization != "none":
        yield f"torch.compile of weights quantized to {lora.quantization} cannot be measured"


def _unmeasured_parallelism(request: Request) -> Iterator[str]:
    parallel, lora = request.parallel, request.lora
    if parallel.strategy not in STRATEGIES:
        yield f"the strategy {parallel.strategy} cannot be measured, only {', '.join(STRATEGIES)}"
    for name in ("pipeline", "context", "expert"):
        if getattr(parallel, name) > 1:
            yield f"{name} parallelism cannot be measured"
    if parallel.device_map is not None:
        yield "modules that a device map places on several devices cannot be measured"
    if parallel.tensor > 1 and parallel.data_replicate > 1 and not parallel.sharded:
        yield "copies of tensor-parallel ranks cannot be measured; one copy takes the same memory (data_replicate = 1)"
    if parallel.cpu_offload != "none" and not parallel.sharded:
        yield "CPU offload can be measured under fsdp2 only"
    if parallel.cpu_offload == "optimizer":
        yield "CPU offload of the optimizer alone cannot be measured"
    if lora is not None and lora.quantization != "none" and (parallel.tensor > 1 or parallel.sharded):
        yield f"weights quantized to {lora.quantization} can be measured on whole models only (none, ddp)"
    if lora is not None and lora.quantization != "none" and parallel.flat_sharded:
        yield f"weights quantized to {lora.quantization} cannot be measured under fsdp1"
