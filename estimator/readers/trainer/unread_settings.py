"""Settings whose names suggest that memory depends on them, and that no reader understands."""

import re
from collections.abc import Mapping

from ..arguments.table import Effect, library
from ..source.evidence import MODEL_STATES, FindingCollector
from ..source.settings import UNKNOWN_TABLE, LayeredSettings, Setting, as_bool

_OTHER_SIZES = re.compile(
    r"eval|valid|test|infer|predict|gen|new_tok|global|total|map|preproc|write|buffer|image|shard|vocab|grad_norm|shuffle|min_"
)
"""In the names of sizes that are none of a training step's."""
_ABOUT_FILES = re.compile(
    r"(no_)?(ckpt|checkpoint|dist_ckpt|save|load|(validation_)?dataset|tokenizer|processor|data)[._]|ci\."
)
"""Beginnings of names that concern files on disk, or tests of a recipe."""
_OFF: tuple[object, ...] = ([], {}, 0, "0")


def warn_of_unresolved(
    arguments: Mapping[str, str], reported: Mapping[str, object], findings: FindingCollector
) -> None:
    """Warn of a script's arguments that are known only when it runs, and mark what they decide as uncertain.

    Args:
        arguments: a sentence for each by name; by ``UNKNOWN_TABLE`` for arguments passed as an unknown table.
        reported: settings that the running program reports, which are all of its arguments.
        findings: collects the warnings.
    """
    keys = library("transformers").key
    for name, sentence in arguments.items():
        if name not in (*keys, UNKNOWN_TABLE):
            findings.warn(sentence)
        elif name != UNKNOWN_TABLE:
            findings.mark_uncertain(keys[name], sentence)
        elif not reported:
            findings.doubt(sentence, "either", *MODEL_STATES, "activations")


def warn_of_unread(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Warn of written settings that may change the memory and were not understood, and mark what they concern."""
    keys = library("transformers").key
    for name, setting in settings.unread():
        meant = [each for each in keys if "_" in name and each.startswith(name)]
        if meant and setting.origin.startswith("--"):  # argparse takes abbreviations
            what = "is not counted" if meant[0] == name else f"may stand for --{meant[0]}"
            findings.mark_uncertain(keys[meant[0]], f"{setting.origin} {what}.")
        elif (effect := _possible_effect(name, setting)) is not None:
            of_length = effect.either == ("activations", "logits") and "len" in name
            sentence = f"{setting.origin} may change the memory and is not counted."
            effect.doubt(sentence, findings, unless="training.sequence_length" if of_length else None)


def _possible_effect(name: str, setting: Setting) -> Effect | None:
    table = library("transformers")
    is_off = as_bool(setting) is False or setting.value in _OFF
    is_off |= name == "half_precision_backend" and setting.value != "apex"
    concerns_files = _ABOUT_FILES.match(name) is not None and "load_in_" not in name
    if is_off or concerns_files or name.rpartition(".")[2] in table.ignored:
        return None
    is_flag = setting.origin.startswith("--") and not _OTHER_SIZES.search(name)
    effects = {**table.pattern["any"], **(table.pattern["flag"] if is_flag else {})}
    return next((effect for pattern, effect in effects.items() if re.search(pattern, name)), None)
