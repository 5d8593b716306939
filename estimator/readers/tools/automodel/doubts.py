"""Settings of a recipe whose effect is not counted: the components that each may change, and in which direction."""

from dataclasses import dataclass

from ....job import UncertaintyDirection
from ...program import Program
from ...source import MODEL_STATES, Component, LayeredSettings, Setting, as_bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doubt:
    """A setting that changes memory in a known direction, where it is on."""

    name: str
    direction: UncertaintyDirection
    components: tuple[Component, ...]
    why: str


_DOUBTS = (
    _Doubt(
        name="distributed.enable_fsdp2_prefetch",
        direction="more",
        components=("communication",),
        why="FSDP2 gathers blocks further ahead",
    ),
    _Doubt(
        name="distributed.enable_async_tensor_parallel",
        direction="more",
        components=("communication",),
        why="symmetric memory of the tensor-parallel group",
    ),
    _Doubt(
        name="distributed.moe.lm_head_precision",
        direction="more",
        components=("weights", "logits"),
        why="the head runs in another type",
    ),
    _Doubt(
        name="distributed.multimodal.frozen_sharding",
        direction="more",
        components=("weights", "communication"),
        why="frozen towers may be whole on every rank",
    ),
    _Doubt(
        name="fp8.enabled",
        direction="either",
        components=("activations", "communication"),
        why="torchao's float8 layers save fp8 inputs, and gather in fp8 if they are asked to",
    ),
    _Doubt(
        name="qat.enabled",
        direction="more",
        components=("activations",),
        why="fake quantization saves its input of every layer",
    ),
    _Doubt(
        name="peft.use_dora",
        direction="more",
        components=("activations",),
        why="DoRA computes with the whole weight of every adapted layer",
    ),
    _Doubt(
        name="neftune",
        direction="more",
        components=("activations",),
        why="noise is added to a copy of the embeddings",
    ),
    _Doubt(
        name="tool_call_eval",
        direction="more",
        components=("activations",),
        why="text is generated during training",
    ),
    _Doubt(
        name="teacher_model.pretrained_model_name_or_path",
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
    for doubt in _DOUBTS:
        setting = settings.find(doubt.name)
        if setting is None or _is_off(setting):
            continue
        program.findings.warn(f"{setting.origin}: {doubt.why}, which is not counted.")
        program.findings.add_uncertainty(doubt.direction, *doubt.components)
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
