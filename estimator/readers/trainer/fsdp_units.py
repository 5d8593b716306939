"""FSDP's units as the settings choose them: blocks, modules of other classes, or the whole model.

Sources: accelerate 1.15 (``FullyShardedDataParallelPlugin``, ``fsdp2_prepare_model``), transformers 4.51 to 5.23
(``_prepare_for_training``, ``_inner_training_loop`` before), peft 0.21 (``fsdp_auto_wrap_policy``).
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
    if by_trainer and first_version and findings.get("lora.rank") is not None:
        word = "transformer_based_wrap"  # the Trainer gives FSDP 1 peft's own policy: blocks, and each adapter
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
