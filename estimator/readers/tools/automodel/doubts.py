"""Settings of a recipe whose effect is not counted: the components that each may change, and in which direction."""

from ...program import Program
from ...source import MODEL_STATES, LayeredSettings, Setting, UncountedSetting, as_bool, warn_of_uncounted

_DOUBTS = (
    UncountedSetting(
        path="distributed.enable_fsdp2_prefetch",
        direction="more",
        components=("communication",),
        why="FSDP2 gathers blocks further ahead",
    ),
    UncountedSetting(
        path="distributed.enable_async_tensor_parallel",
        direction="more",
        components=("communication",),
        why="symmetric memory of the tensor-parallel group",
    ),
    UncountedSetting(
        path="distributed.moe.lm_head_precision",
        direction="more",
        components=("weights", "logits"),
        why="the head runs in another type",
    ),
    UncountedSetting(
        path="distributed.multimodal.frozen_sharding",
        direction="more",
        components=("weights", "communication"),
        why="frozen towers may be whole on every rank",
    ),
    UncountedSetting(
        path="fp8.enabled",
        direction="either",
        components=("activations", "communication"),
        why="torchao's float8 layers save fp8 inputs, and gather in fp8 if they are asked to",
    ),
    UncountedSetting(
        path="qat.enabled",
        direction="more",
        components=("activations",),
        why="fake quantization saves its input of every layer",
    ),
    UncountedSetting(
        path="peft.use_dora",
        direction="more",
        components=("activations",),
        why="DoRA computes with the whole weight of every adapted layer",
    ),
    UncountedSetting(
        path="neftune",
        direction="more",
        components=("activations",),
        why="noise is added to a copy of the embeddings",
    ),
    UncountedSetting(
        path="tool_call_eval",
        direction="more",
        components=("activations",),
        why="text is generated during training",
    ),
    UncountedSetting(
        path="teacher_model.pretrained_model_name_or_path",
        direction="more",
        components=(*MODEL_STATES, "activations", "logits"),
        why="a teacher runs beside the model; give other_models",
    ),
)
_WITHOUT_EFFECT = (
    *("distributed.patch_is_packed_sequence", "distributed.backend", "distributed.moe.ignore_router_for_ac"),
    *("distributed.moe.wrap_outer_model", "distributed.find_unused_parameters", "distributed.static_graph"),
    *("distributed.broadcast_buffers", "distributed.bucket_cap_mb", "distributed.fsdp2_forward_prefetch_depth"),
    *("distributed.fsdp2_backward_prefetch_depth", "model.use_sdpa_patching", "distributed.use_hf_tp_plan"),
    *("distributed.activation_checkpointing_scope", "peft.use_memory_efficient_lora", "peft.use_triton"),
)
"""Settings that change no bytes that count, or only beside one of the above."""


def mark_doubts(program: Program, settings: LayeredSettings) -> None:
    """Warn of every setting that is on and not counted, and mark what it concerns."""
    warn_of_uncounted(settings, _DOUBTS, program.findings, is_off=_is_off)
    kernels = [settings.find(f"model.backend.{name}") for name in ("attn", "linear", "rms_norm", "experts")]
    for kernel in kernels:
        if kernel is not None and str(kernel.value).lower().startswith("te"):
            program.findings.warn(f"{kernel.origin}: TransformerEngine saves other tensors than those counted.")
            program.findings.add_uncertainty("either", "activations")
    scope = settings.find("distributed.activation_checkpointing_scope")
    if scope is not None and str(scope.value).lower() not in ("all", "default", "auto"):
        program.findings.warn(f"{scope.origin}: checkpointing of all blocks is counted.")
        program.findings.add_uncertainty("more", "activations")
    settings.find(*_WITHOUT_EFFECT)


def _is_off(setting: Setting) -> bool:
    return as_bool(setting) is False or str(setting.value).lower() in ("root", "none", "[]", "{}")
