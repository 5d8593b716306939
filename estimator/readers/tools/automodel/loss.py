"""The loss of a recipe, and the fused kernels of its model.

``loss_fn``: components/loss. ``use_liger_kernel``, on by default, patches transformers' models (norms, SwiGLU, RoPE;
``_patch_liger_kernel``), not where tensor or context parallelism splits them (``_apply_preload_overrides``).
"""

from ...source import FindingCollector, LayeredSettings, Setting, as_bool, as_int, as_word

_LOSSES = {
    "maskedcrossentropy": "full",
    "fusedlinearcrossentropy": "fused-linear",
    "linearcrossentropy": "fused-linear",
    "chunkedcrossentropy": "chunked",
    "teparallelcrossentropy": "full",
}
_IN_PLACE = ("teparallelcrossentropy",)
"""Losses whose kernel writes the gradient over the logits and computes in fp32 itself (TransformerEngine's)."""
_LIGER = ("norm", "mlp", "rope")


def read_loss(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record ``training.loss`` and ``training.fused_kernels``."""
    named = settings.find("loss_fn._target_", "loss_fn")
    loss = as_word(named) or ""
    if named is not None and loss in _LOSSES:
        findings.record_from(named, "training.loss", _LOSSES[loss])
    elif named is not None:
        findings.mark_uncertain("training.loss", f"{named.origin}: the loss {named.value} is not known here.")
    if (kept := settings.find("loss_fn.fp32_upcast")) is not None and as_bool(kept) is False:
        findings.warn(f"{kept.origin}: no fp32 copy of the logits is made; the range allows for less.")
        findings.add_uncertainty("less", "logits")
    without = _without_liger(settings)
    if loss in _IN_PLACE and named is not None:
        kernels = ["cross-entropy"] if without is not None else [*_LIGER, "cross-entropy"]
        findings.record_from(named, "training.fused_kernels", kernels)
    elif without is not None:
        findings.record_from(without, "training.fused_kernels", [])
    if (hidden := settings.find_true("model.output_hidden_states")) is not None and loss != "fusedlinearcrossentropy":
        findings.warn(f"{hidden.origin}: the hidden states of all layers are kept until the next batch.")
        findings.add_uncertainty("more", "activations")


def _without_liger(settings: LayeredSettings) -> Setting | None:
    """Return the setting that keeps Liger's kernels off; None: they are on."""
    switch = settings.find("model.use_liger_kernel", "use_liger_kernel")
    if switch is not None and as_bool(switch) is False:
        return switch
    for name in ("distributed.tp_size", "distributed.cp_size"):
        size = settings.find(name)
        if (as_int(size) or 1) > 1:
            return size
    return None
