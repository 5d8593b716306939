"""Surroundings of a training step: library versions, the GPU, folders and keys, and what is not known."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from .value_types import EnvironmentName, Positive, Version

UncertaintyDirection = Literal["no", "less", "more", "either"]


class Software(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Versions of libraries on which memory depends; absent: the latest. ``version_rules`` has the rules."""

    torch: Version | None = None
    """Version of torch."""
    cuda: Version | None = None
    """Version of the CUDA toolkit that torch was built with."""
    transformers: Version | None = None
    """Version of transformers."""
    bitsandbytes: Version | None = None
    """Version of bitsandbytes."""
    peft: Version | None = None
    """Version of peft."""
    litgpt: Version | None = None
    """Version of LitGPT."""
    torchtitan: Version | None = None
    """Version of torchtitan."""
    megatron_fsdp: Version | None = None
    """Version of megatron-fsdp; absent: that of the time of the stated torch."""
    trl: Version | None = None
    """Version of TRL."""
    vllm: Version | None = None
    """Version of vLLM."""
    sglang: Version | None = None
    """Version of SGLang."""
    module_loading: Literal["lazy", "eager"] | None = None
    """Moment at which CUDA loads kernels (``CUDA_MODULE_LOADING``); absent: the versions' default."""
    cublas_workspace: Annotated[str, Meta(pattern=r"^(:[0-9]{1,9}:[0-9]{1,9}){1,9}$")] | None = None
    """cuBLAS workspace (``CUBLAS_WORKSPACE_CONFIG``), such as ``:4096:8``; absent: the GPU's default."""


class Uncertainties(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Errors that a range allows for, by component: missing (``less``), twice as large (``more``), or both."""

    weights: UncertaintyDirection = "no"
    """Possible error of the weights."""
    gradients: UncertaintyDirection = "no"
    """Possible error of the gradients."""
    optimizer: UncertaintyDirection = "no"
    """Possible error of the optimizer state."""
    activations: UncertaintyDirection = "no"
    """Possible error of the activations."""
    logits: UncertaintyDirection = "no"
    """Possible error of logits and loss."""
    communication: UncertaintyDirection = "no"
    """Possible error of the communication buffers."""


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The GPU that the job is planned for."""

    gpu: str | None = None
    """GPU that the job is planned for, by its name in the catalogue; absent: this machine's."""


class Run(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Requirements of a run beside the GPUs: no estimate depends on them; the preflight checks do."""

    output_dir: str | None = None
    """Folder for checkpoints; relative to the folder in which the job is started."""
    save_total_limit: Positive | None = None
    """Most checkpoints that are kept; absent: all."""
    logging_dir: str | None = None
    """Folder for logs; absent: ``output_dir``."""
    report_to: list[str] = field(default_factory=list)
    """Services that metrics are reported to, as transformers names them: wandb, tensorboard, mlflow, ..."""
    inference_endpoint: str | None = None
    """URL of an inference service that the run calls, to judge or to generate text."""
    inference_key: EnvironmentName = "NSS_INFERENCE_KEY"
    """Environment variable with the key to that service."""
    required_environment: list[EnvironmentName] = field(default_factory=list)
    """Other environment variables that the run needs."""
