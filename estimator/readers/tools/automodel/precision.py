"""The dtypes of a recipe: of the weights as they are loaded, and those that each strategy computes and reduces in.

FSDP2: ``mp_policy`` (``FSDP2Config``, by default bf16 parameters, reduced in fp32 since 0.5 and in bf16 before); what a
written policy leaves out stays None, which is the dtype of the weights (torch's ``MixedPrecisionPolicy``). On a single
GPU the managers of Megatron-FSDP and DDP cast the model to bf16 (``parallelize``), FSDP2's leaves it alone.
"""

from ....job.rules import DTYPE_NAMES, HALF
from ...program import Program
from ...source import LayeredSettings, Setting, as_bool, as_int, as_word, default_setting
from ...trainer import known_config, stored_dtype
from ..shared import record_word
from .strategies import named_strategy, strategy_of, version_of, world_size

_POLICY = "distributed.mp_policy"


def read_precision(program: Program, settings: LayeredSettings) -> None:
    """Record ``training.precision``, and for FSDP2 the dtypes of gathered parameters and of reduced gradients."""
    findings, strategy = program.findings, strategy_of(program, settings)
    weights = _weights(program, settings)
    kept = DTYPE_NAMES.get(as_word(weights) or "")
    autocast = settings.find("distributed.autocast_dtype")
    if strategy is not None and strategy.fsdp2:
        _read_policy(program, settings, weights, kept)
    elif (
        strategy is not None
        and strategy.megatron_fsdp
        and (preserved := settings.find_true("distributed.preserve_fp32_weights"))
    ):
        findings.record_from(preserved, "training.precision", "bf16-mixed")
    elif strategy is None and _casts_one_gpu(program, settings):
        origin = f"{weights.origin}; Automodel casts the model to bf16 on a single GPU"
        findings.record("training.precision", "bf16", origin, written=weights.written)
    elif autocast is not None and kept == "fp32":
        low = DTYPE_NAMES.get(as_word(autocast) or "", "bf16")
        findings.record_from(autocast, "training.precision", f"{low}-mixed")
    if autocast is not None:
        findings.warn(f"{autocast.origin}: the residual stream may be fp32 under autocast; activations may be larger.")
        findings.add_uncertainty("more", "activations")
    record_word(findings, "training.precision", weights, DTYPE_NAMES)


def _weights(program: Program, settings: LayeredSettings) -> Setting:
    """Return the dtype in which the weights are loaded, by default as stored."""
    dtype = settings.find("model.torch_dtype", "model.dtype")
    if dtype is not None and as_word(dtype) != "auto":
        return dtype
    stored = stored_dtype(known_config(program.findings.get("model.id"), program.environ))
    return stored or default_setting("bfloat16", "Automodel's usual torch_dtype")


def _casts_one_gpu(program: Program, settings: LayeredSettings) -> bool:
    named = (as_word(named_strategy(settings)) or "").replace("-", "_")
    return as_int(world_size(program, settings).ranks) == 1 and named.startswith(("megatron", "mfsdp", "nvfsdp", "ddp"))


def _read_policy(program: Program, settings: LayeredSettings, weights: Setting, kept: str | None) -> None:
    """Record what FSDP2's mixed-precision policy makes of weights that are kept in a dtype."""
    findings = program.findings
    written = bool(settings.names(f"{_POLICY}."))
    gathered, reduced, output = (
        settings.find(f"{_POLICY}.{name}") for name in ("param_dtype", "reduce_dtype", "output_dtype")
    )
    policy = default_setting("bfloat16", "Automodel's default mp_policy") if not written else None
    low = DTYPE_NAMES.get(as_word(gathered or policy) or "", kept)
    origin = (gathered or policy or weights).origin
    if low is not None and kept == "fp32" and low in HALF:
        text = f"{weights.origin}; FSDP2 gathers in {low}: {origin}"
        findings.record("training.precision", f"{low}-mixed", text, written=weights.written)
    elif low is not None and kept is not None and low != kept:
        findings.record("parallel.param_dtype", low, origin, written=gathered is not None)
    if reduced is None and not written:
        dtype = "float32" if version_of(program) >= (0, 5) else "bfloat16"
        reduced = default_setting(dtype, "Automodel's default mp_policy")
    in_what = DTYPE_NAMES.get(as_word(reduced) or "", low)
    if in_what is not None:
        reduced = reduced or default_setting(in_what, "mp_policy without a reduce_dtype: the type of computation")
        findings.record_from(reduced, "parallel.reduce_dtype", in_what)
    out = DTYPE_NAMES.get(as_word(output) or "")
    if output is not None and out == "fp32" and low in HALF:
        findings.warn(f"{output.origin}: the logits are cast to fp32, which is not counted.")
        findings.add_uncertainty("more", "logits")


def reduces_in_fp32(settings: LayeredSettings) -> Setting:
    """Return whether Megatron-FSDP reduces gradients in fp32: by default it does so in their own dtype."""
    written = settings.find("distributed.grad_reduce_in_fp32")
    if written is not None and as_bool(written) is not None:
        return written
    return default_setting(False, "Automodel's default grad_reduce_in_fp32")
