"""DeepSpeed's settings that change memory and that no rule counts, with the direction of the doubt.

Read from DeepSpeed's ``runtime/config.py`` and ``runtime/zero/config.py``, 0.14 to 0.19. Its section
``activation_checkpointing`` concerns models that call DeepSpeed's own checkpointing, which transformers' do not.
"""

from ..source import (
    MODEL_STATES,
    FindingCollector,
    LayeredSettings,
    Setting,
    UncountedSetting,
    as_bool,
    as_word,
    warn_of_uncounted,
)

_ZERO = "zero_optimization."
_DOUBTS = (
    UncountedSetting(
        path=f"{_ZERO}zero_quantized_weights",
        direction="either",
        components=("communication",),
        why="weights are gathered in 8 bits and unpacked",
    ),
    UncountedSetting(
        path=f"{_ZERO}zero_quantized_gradients",
        direction="more",
        components=("communication",),
        why="gradients are reduced as quantized copies",
    ),
    UncountedSetting(
        path=f"{_ZERO}mics_shard_size",
        direction="more",
        components=(*MODEL_STATES, "communication"),
        why="states are sharded over groups of that size only",
    ),
    UncountedSetting(
        path=f"{_ZERO}stage3_module_granularity_threshold",
        direction="more",
        components=("communication",),
        why="modules with small parameters are gathered as a whole",
    ),
    UncountedSetting(
        path=f"{_ZERO}zenflow",
        direction="more",
        components=("gradients", "optimizer"),
        why="selected gradients and their states stay on the GPU",
    ),
    UncountedSetting(
        path="bf16.bf16_master_weights_and_grads",
        direction="less",
        components=MODEL_STATES,
        why="there are no fp32 master weights",
    ),
    UncountedSetting(
        path="bf16.bf16_optimizer_states",
        direction="less",
        components=("optimizer",),
        why="optimizer states have 16 bits",
    ),
    UncountedSetting(
        path="fp16.fp16_master_weights_and_grads",
        direction="less",
        components=MODEL_STATES,
        why="there are no fp32 master weights",
    ),
    UncountedSetting(
        path="torch_autocast.enabled",
        direction="either",
        components=(*MODEL_STATES, "activations"),
        why="torch's autocast decides about dtypes in place of DeepSpeed",
    ),
    UncountedSetting(
        path="compile.deepcompile",
        direction="either",
        components=("activations", "communication"),
        why="a compiled schedule gathers and frees weights",
    ),
    UncountedSetting(
        path="sequence_parallel_size",
        direction="less",
        components=("activations", "logits"),
        why="sequences are split over ranks",
    ),
)
DOUBTFUL_PATHS = {each.path: each.path for each in _DOUBTS} | {
    "communication_data_type": "communication_data_type",
    "offload_ratio": f"{_ZERO}offload_optimizer.ratio",
}
"""Settings by the names under which a layer has them, and where the JSON has them."""
_OFF: tuple[object, ...] = (0, 1, -1, "auto", {}, [])


def doubt_zero(deepspeed: LayeredSettings, findings: FindingCollector) -> None:
    """Warn of every setting that is on and not counted, and mark what it concerns."""
    warn_of_uncounted(deepspeed, _DOUBTS, findings, is_off=_is_off)
    reduced = deepspeed.find("communication_data_type")
    if reduced is not None and as_word(reduced) in ("fp32", "float32"):
        findings.warn(f"{reduced.origin}: fp32 copies of what is reduced are not counted.")
        findings.add_uncertainty("more", "communication")


def _is_off(setting: Setting) -> bool:
    return as_bool(setting) is False or (setting.value is not True and setting.value in _OFF)


def partly_offloaded(deepspeed: LayeredSettings) -> Setting | None:
    """Return the share of the optimizer's states that is offloaded (ZeRO-Offload++), if it is not all of them."""
    ratio = deepspeed.find("offload_ratio")
    value = ratio.value if ratio is not None else 1.0
    return ratio if isinstance(value, int | float) and 0 <= value < 1 else None
