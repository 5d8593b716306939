"""FSDP's units as the settings choose them: blocks, modules of other classes, or the whole model.

Sources: accelerate 1.15 (``FullyShardedDataParallelPlugin``, ``fsdp2_prepare_model``), transformers 5.23
(``update_fsdp_plugin_peft``, ``_fsdp_qlora_plugin_updates`` before), peft 0.21 (``fsdp_auto_wrap_policy``).
"""

import re

from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, as_word

_BLOCK_CLASS = re.compile(r"(?!.*(?:Moe|MoE|MLP|Attention))\w*(?:Block|Layer)")
"""Names of the classes of a model's blocks, not of parts of them such as MixtralSparseMoeBlock."""
_UNITS = {"no_wrap": "model", "blocks": "blocks"}
"""The units that a policy of FSDP makes, as the job has them."""
_KEY = "parallel.fsdp_units"


def read_units(fsdp: LayeredSettings, findings: FindingCollector, *, first_version: bool, by_trainer: bool) -> None:
    """Record what FSDP wraps: blocks, modules of other classes, or the model alone.

    Args:
        fsdp: FSDP's settings.
        findings: collects what is read.
        first_version: it is FSDP 1.
        by_trainer: transformers' Trainer prepares the model.
    """
    wrap = fsdp.find("fsdp_auto_wrap_policy")
    word = as_word(wrap) or ""
    if by_trainer and findings.get("lora.rank") is not None:
        word = _with_adapters(findings, first_version=first_version)
    elif wrap is None:  # FSDP_AUTO_WRAP_POLICY is NO_WRAP where nothing sets it
        findings.infer(_KEY, "model", "accelerate's default fsdp_auto_wrap_policy, which wraps nothing")
    elif word in _UNITS:
        findings.record_from(wrap, _KEY, _UNITS[word])
    elif word in ("size_based_wrap", "other_wrap"):
        sentence = (
            f"{wrap.origin}: the figure assumes that the whole model is gathered at once; FSDP's units may be smaller."
        )
        findings.mark_uncertain(_KEY, sentence, direction="less")
        findings.record_from(wrap, _KEY, "model")
    elif word != "transformer_based_wrap":
        findings.mark_uncertain(
            _KEY, f"{wrap.origin}: the wrap policy is not known; vramtop assumes that blocks are wrapped."
        )
    classes = fsdp.find("fsdp_transformer_layer_cls_to_wrap") or fsdp.find("fsdp_transformer_cls_to_wrap")
    if classes is not None and word == "transformer_based_wrap":
        names = classes.value if isinstance(classes.value, list) else str(classes.value).replace(",", " ").split()
        if any(not _BLOCK_CLASS.fullmatch(name) for name in names):
            findings.record("parallel.fsdp_wrap_classes", names, classes.origin)


def _with_adapters(findings: FindingCollector, *, first_version: bool) -> str:
    """Record the units of a model with adapters, and return the policy: the Trainer gives accelerate peft's own.

    It wraps blocks and each adapter. FSDP 2 takes policies by class and by size only: it wraps no block then, so that
    they are the root's, which is one unit.
    """
    if not first_version:
        origin = "the Trainer uses peft's wrap policy, which FSDP 2 under accelerate does not follow"
        sentence = f"FSDP 2 with adapters: {origin}; the whole model is taken to be gathered at once."
        findings.mark_uncertain(_KEY, sentence, direction="less")
        findings.infer(_KEY, "model", origin)
    return "transformer_based_wrap"
