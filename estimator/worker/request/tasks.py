"""Auto classes of transformers for the tasks of job files; no torch here."""

from __future__ import annotations

_HEADLESS_CLASSES = {"feature-extraction": "AutoModel", "backbone": "AutoBackbone"}
_SPELLINGS = {
    "lm": "LM",
    "ctc": "CTC",
    "rnnt": "RNNT",
    "tdt": "TDT",
    "seq2seq": "Seq2Seq",
    "pretraining": "PreTraining",
    "xvector": "XVector",
}


def auto_class_name(task: str) -> str:
    """Return the auto class's name: ``AutoModelForCausalLM`` for ``causal-lm``."""
    return _HEADLESS_CLASSES.get(task) or "AutoModelFor" + "".join(
        _SPELLINGS.get(word, word.capitalize()) for word in task.split("-")
    )
