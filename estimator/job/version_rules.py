"""What older versions of the libraries, and their own settings, do otherwise, by the job's ``[software]`` table.

A version that the job leaves out is taken for today's. Sources are beside each rule.
"""

import re
from collections.abc import Iterator

import msgspec

from .job import Job

_NUMBER = re.compile(r"\d+")


def older(version: str | None, *than: int) -> bool:
    """Whether a stated version comes before another; one that is not stated does not."""
    return version is not None and tuple(int(part) for part in _NUMBER.findall(version)[: len(than)]) < than


def keeps_quantized_inputs(job: Job) -> bool:
    """4-bit linear layers keep their input until their graph goes, though the frozen weight has no use for it.

    ``MatMul4Bit`` held it outside of autograd's saved tensors, so that backward did not free it (bitsandbytes before
    0.43.2, pull request 1270).
    """
    return bool(job.lora and job.lora.quantization.startswith("nf4") and older(job.software.bitsandbytes, 0, 43, 2))


def zeroes_gradients(job: Job) -> bool:
    """Gradients are zeroed in place between steps, not freed (``zero_grad`` before torch 2.0)."""
    return older(job.software.torch, 2, 0)


def saves_softmax_inputs(job: Job) -> bool:
    """Softmax and log-softmax save what goes in beside what comes out (torch before 1.11, pytorch/pytorch#64000)."""
    return older(job.software.torch, 1, 11)


def loads_kernels_eagerly(job: Job) -> bool:
    """All kernels enter the CUDA context at once.

    CUDA has lazy module loading since 11.7, and torch asks for it since 1.13 (pytorch/pytorch#86509).
    """
    asked = job.software.module_loading
    return asked == "eager" or (asked is None and loads_whole_libraries(job))


def loads_whole_libraries(job: Job) -> bool:
    """CUDA itself knows no lazy loading, nor do its libraries."""
    return older(job.software.torch, 1, 13) or older(job.software.cuda, 11, 7)


def copies_shifted_logits(job: Job) -> bool:
    """The causal loss copies the fp32 logits without the last token (transformers before 4.49)."""
    return older(job.software.transformers, 4, 49)


def casts_logits_in_model(job: Job) -> bool:
    """The model itself returns fp32 logits, so that the 16-bit ones are gone before the loss (before 4.46)."""
    return older(job.software.transformers, 4, 46)


def scales_norms_in_fp32(job: Job) -> bool:
    """LitGPT's RMSNorm multiplies by its weight before it casts back to 16 bits (since 0.4.6)."""
    return not older(job.software.litgpt, 0, 4, 6)


def runs_longest_first(job: Job) -> bool:
    """LitGPT's scripts took the longest sample in the very first micro-batch alone (before 0.2)."""
    return older(job.software.litgpt, 0, 2)


def leaves_loss_to_eager(job: Job) -> bool:
    """``compile`` covers torchtitan's blocks alone, not its loss (before 0.1; pull requests 755 and 1033)."""
    return older(job.software.torchtitan, 0, 1)


def gathers_with_root(job: Job) -> bool:
    """Torchtitan leaves embedding and head to FSDP's root unit (before 0.2; models/llama3/infra/parallelize.py)."""
    return older(job.software.torchtitan, 0, 2)


def version_assumptions(job: Job) -> Iterator[str]:
    """What the stated versions change, one sentence each."""
    software, training = job.software, job.training
    if keeps_quantized_inputs(job):
        yield f"bitsandbytes {software.bitsandbytes}: every 4-bit linear layer keeps its input for the backward pass."
    if zeroes_gradients(job) and training.mode == "train":
        yield f"torch {software.torch}: gradients are zeroed between steps, not freed."
    if saves_softmax_inputs(job) and training.mode == "train":
        yield f"torch {software.torch}: softmax saves its input too."
    if loads_kernels_eagerly(job):
        yield "All kernels are loaded into the CUDA context at once (CUDA_MODULE_LOADING, or torch before 1.13)."
    if software.cublas_workspace:
        yield f"cuBLAS' workspaces as CUBLAS_WORKSPACE_CONFIG={software.cublas_workspace} has them."
    if copies_shifted_logits(job) and training.framework == "transformers" and training.loss == "full":
        yield f"transformers {software.transformers}: the causal loss copies the shifted fp32 logits."
    if training.framework == "litgpt" and runs_longest_first(job):
        yield f"LitGPT {software.litgpt}: the longest sample comes first, so that nothing is left of one before it."
    if training.framework == "torchtitan" and training.compile and leaves_loss_to_eager(job):
        yield f"torchtitan {software.torchtitan}: the loss is not compiled."
    if training.framework == "torchtitan" and job.parallel.strategy == "fsdp2" and gathers_with_root(job):
        yield f"torchtitan {software.torchtitan}: embedding and head stay gathered, as parts of FSDP's root unit."


def steps_take_same_memory(job: Job, *, torch: str, transformers: str) -> bool:
    """Whether a step that is taken with these versions is that of the versions which the job states."""
    software = msgspec.structs.replace(job.software, torch=torch, transformers=transformers)
    here = msgspec.structs.replace(job, software=software)
    stated = job.software
    return not (
        keeps_quantized_inputs(job)  # a trace has its own stand-ins for quantized layers
        or (stated.torch is not None and zeroes_gradients(job) != zeroes_gradients(here))
        or (stated.transformers is not None and copies_shifted_logits(job) != copies_shifted_logits(here))
        or (stated.transformers is not None and casts_logits_in_model(job) != casts_logits_in_model(here))
    )
