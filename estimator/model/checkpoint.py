"""Types and formats of a checkpoint's weights, as its config.json states them, and the job that follows from them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec.structs import replace

from ..common.errors import InputError
from ..job.gpu_catalogue import Gpu
from ..job.job import Job
from ..job.rules.frameworks import FRAMEWORKS
from ..job.rules.library_defaults import AUTO
from ..job.rules.strategies import DTYPE_NAMES, STRATEGIES
from ..job.settings import Inference
from ..job.settled import settled
from .find_config import ResolvedModel

StoredFormat = Literal["nf4", "nf4-double", "int8", "int4", "fp8", "mxfp4"]
"""``int4``: GPTQ, AWQ and their like."""
_FOUR_BITS = ("awq", "gptq", "auto-round", "auto_round", "marlin", "awq_marlin", "gptq_marlin", "moe_wna16")
WEIGHT_FORMATS: Mapping[str, StoredFormat] = {
    **dict.fromkeys((*_FOUR_BITS, "bitsandbytes"), "int4"),
    **dict.fromkeys(("fp8", "fbgemm_fp8", "modelopt", "modelopt_fp8", "ptpc_fp8", "w8a8_fp8"), "fp8"),
    **dict.fromkeys(("experts_int8", "w8a8_int8"), "int8"),
    "mxfp4": "mxfp4",
}
"""By ``quant_method``, as transformers, vLLM and SGLang know it; a config says more of bitsandbytes."""
_WITHOUT_NAMED_BLOCKS = ("distilbert",)
"""Model types whose ``_no_split_modules`` is None (transformers 5.23), of those that have a closed form."""
_TRAINED_UNPACKED = ("fp8", "mxfp4")
"""Formats that transformers unpacks to 16 bits for training (``dequantize=True``)."""
_COMPUTED_SINCE = {"fp8": (8, 9), "mxfp4": (7, 5)}
"""Compute capability of the first GPUs on which transformers keeps a format; it unpacks the weights on others.

Sources: ``validate_environment`` of quantizers/quantizer_finegrained_fp8.py and quantizer_mxfp4.py.
"""


def stored_dtype(config: Mapping[str, Any]) -> str | None:
    """Return ``bf16``, ``fp16`` or ``fp32`` as the config states it for the model or its text part; None: it does not.

    ``dtype`` was called ``torch_dtype`` before transformers 4.56.
    """
    part = config.get("text_config")
    for table in (config, part if isinstance(part, Mapping) else {}):
        word = table.get("dtype") or table.get("torch_dtype")
        if word is not None:
            return DTYPE_NAMES.get(str(word).removeprefix("torch."))
    return None


def stored_format(config: Mapping[str, Any]) -> StoredFormat | None:
    """Return the format of quantized weights by ``quantization_config``; None: they are not quantized, or not known."""
    stated = config.get("quantization_config")
    if not isinstance(stated, Mapping):
        return None
    method, bits = str(stated.get("quant_method") or ""), stated.get("bits")
    if method == "bitsandbytes" or stated.get("load_in_4bit") or stated.get("load_in_8bit"):
        if stated.get("load_in_8bit") and not stated.get("load_in_4bit"):
            return "int8"
        return "nf4-double" if stated.get("bnb_4bit_use_double_quant") else "nf4"
    if bits == 8 or method == "compressed-tensors":
        return "int8"
    return WEIGHT_FORMATS.get(method)


def job_of_model(job: Job, model: "ResolvedModel", gpu: Gpu | None = None) -> Job:
    """Return the job without ``auto``: its precision, its optimizer, and the format of its frozen weights.

    Args:
        job: the job.
        model: the model.
        gpu: the GPU; None: not known, so that weights in 8 bits may be unpacked.

    Raises:
        InputError: all of the model is to be trained, and its weights are stored in a format that cannot be.
    """
    job = settled(job, weights_of(model))
    if _is_one_unit(job, model):
        job = replace(job, parallel=replace(job.parallel, fsdp_units="model"))
    kind = stored_format(model.config)
    if kind is None:
        return job
    if job.lora is not None:
        fixed = job.lora.quantization != "none" or kind in _TRAINED_UNPACKED
        return job if fixed else replace(job, lora=replace(job.lora, quantization=kind))
    if job.training.mode == "inference":
        asked = job.inference or Inference()
        if asked.weights != AUTO or _unpacks(job, kind, gpu):
            return job
        known = job.is_served or kind != "fp8" or gpu is not None
        unsure = job.unsure if known else replace(job.unsure, weights="more")
        return replace(job, inference=replace(asked, weights=kind), unsure=unsure)
    if kind in _TRAINED_UNPACKED or job.training.trainable is not None:
        return job
    raise InputError(
        f"the weights of {model.label} are stored in {kind} and cannot be trained; train adapters (--lora, or [lora] "
        "in a job file), or give the unquantized model"
    )


def _is_one_unit(job: Job, model: "ResolvedModel") -> bool:
    """Return True if accelerate wraps the whole model as one FSDP unit: transformers names no block class of it."""
    parallel = job.parallel
    chosen = parallel.fsdp_units or parallel.fsdp_wrap_classes or parallel.fsdp_min_unit_parameters
    by_trainer = FRAMEWORKS[job.training.framework].trainer and STRATEGIES[parallel.strategy].fsdp
    return by_trainer and not chosen and model.config.get("model_type") in _WITHOUT_NAMED_BLOCKS


def _unpacks(job: Job, kind: StoredFormat, gpu: Gpu | None) -> bool:
    """Return True if transformers unpacks stored weights for inference, since the GPU cannot compute in them."""
    since = _COMPUTED_SINCE.get(kind)
    return since is not None and gpu is not None and gpu.compute_capability < since and not job.is_served


def weights_of(model: "ResolvedModel") -> str | None:
    """Return the type of a checkpoint's weights, ``bf16``, ``fp16`` or ``fp32``; None: not known.

    Files of the hub without a type are older than the field, and their checkpoints are in fp32; so are torch's modules.
    """
    return stored_dtype(model.config) or (None if model.source == "inline" else "fp32")


_OF_PATHS = (".", "/", "~")
_SIZED = re.compile(r"\d[bm]\b", re.IGNORECASE)
"""Names with a size, ``llama-3-8b``: whoever publishes them again publishes a copy, and not a model of their own."""


def model_warnings(before: Job, after: Job, model: "ResolvedModel") -> Iterator[str]:
    """Yield doubts about what the model is and how its weights are stored; jobs as above."""
    name = before.model.id or ""
    is_own = "/" not in name or name.casefold() == model.where.casefold() or name.startswith(_OF_PATHS)
    if model.source == "built-in" and not is_own and not _SIZED.search(name):
        yield f"{name} is not on this machine; it is counted as {model.where}, by its name."
    kept = before.inference != after.inference and not after.is_served
    if kept and after.inference is not None and after.inference.weights == "mxfp4":
        yield (
            "The weights are assumed to stay in mxfp4. Without the packages kernels and Triton 3.4, transformers "
            "unpacks them to 16 bits, about three times as large."
        )


def settled_by_model(before: Job, after: Job, model: "ResolvedModel", gpu: Gpu | None = None) -> Iterator[str]:
    """Yield what was settled, one sentence each.

    Args:
        before: the job as it was given.
        after: the same, from ``job_of_model``.
        model: the model.
        gpu: the GPU; None: not known.
    """
    framework = after.engine_name or after.training.framework
    default = f"{framework}'{'' if framework.endswith('s') else 's'} default"
    if model.source == "built-in" and (before.model.id or "").startswith(_OF_PATHS):
        yield f"{before.model.id} is not on this machine; it is counted as {model.where}, by its name."
    if before.training.precision == AUTO:
        stored = weights_of(model)
        known = f"the model's weights are stored in {stored}" if stored else "the model's config states no dtype"
        yield f"The precision is {after.training.precision}, {default}: {known}."
    if before.parallel.fsdp_units != after.parallel.fsdp_units:
        yield f"FSDP gathers {model.label} as one unit: transformers names none of its blocks (_no_split_modules)."
    if before.training.optimizer == AUTO and after.training.mode == "train":
        yield f"The optimizer is {after.training.optimizer}, {default}."
    if before.lora != after.lora or before.inference != after.inference:
        kind = stored_format(model.config)
        yield f"The weights of {'experts' if kind == 'mxfp4' else 'linear layers'} are {kind}, as stored."
    elif after.training.mode == "inference" and gpu and (kind := stored_format(model.config)) in _TRAINED_UNPACKED:
        if (after.inference or Inference()).weights == AUTO:
            yield (
                f"The weights are stored in {kind} and unpacked to 16 bits, because {gpu.label} does not support "
                f"{kind}."
            )
    elif after.training.mode == "train" and (kind := stored_format(model.config)) in _TRAINED_UNPACKED:
        yield f"The weights are stored in {kind} and unpacked to 16 bits for training."
