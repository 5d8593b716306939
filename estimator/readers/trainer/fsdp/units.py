"""Reads what FSDP wraps: blocks, modules of other classes, modules of some size, or the model alone."""

import re

from ...source import FindingCollector, LayeredSettings, as_int, as_word

_BLOCK_CLASS = re.compile(r".*(?:DecoderLayer|EncoderLayer|Block|Layer)")
"""Names of the classes of a model's blocks."""
_UNITS = {"no_wrap": "model", "blocks": "blocks"}
"""The units that a policy of FSDP makes, as the job has them."""


def read_units(fsdp: LayeredSettings, findings: FindingCollector, *, first_version: bool) -> None:
    """Record what FSDP wraps: blocks, modules of other classes, modules of some size, or the model alone."""
    wrap, smallest = fsdp.find("fsdp_auto_wrap_policy"), fsdp.find("fsdp_min_num_params")
    if wrap is None:
        return
    word, count = as_word(wrap) or "", as_int(smallest) or 0
    if first_version and word == "size_based_wrap":
        if count > 0 and smallest is not None:
            findings.record("parallel.fsdp_min_unit_parameters", count, smallest.origin)
        else:  # accelerate's default is 0, with which it wraps nothing
            findings.record_from(wrap, "parallel.fsdp_units", "model")
    elif word in _UNITS:
        findings.record_from(wrap, "parallel.fsdp_units", _UNITS[word])
    elif word in ("size_based_wrap", "other_wrap"):
        sentence = f"{wrap.origin}: the whole model is counted as gathered at once; FSDP's units may be smaller."
        findings.mark_uncertain("parallel.fsdp_units", sentence, direction="less")
        findings.record_from(wrap, "parallel.fsdp_units", "model")
    classes = fsdp.find("fsdp_transformer_layer_cls_to_wrap") or fsdp.find("fsdp_transformer_cls_to_wrap")
    if classes is not None and word == "transformer_based_wrap":
        names = classes.value if isinstance(classes.value, list) else str(classes.value).replace(",", " ").split()
        if any(not _BLOCK_CLASS.fullmatch(name) for name in names):
            findings.record("parallel.fsdp_wrap_classes", names, classes.origin)
