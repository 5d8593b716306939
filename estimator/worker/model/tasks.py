"""Auto classes of transformers for the tasks of job files."""

from __future__ import annotations

from typing import Any

from ..request.errors import RefusedError

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


def auto_class(task: str) -> Any:
    """Return the auto class of a task.

    Raises:
        RefusedError: this version of transformers does not have it.
    """
    import transformers

    found = getattr(transformers, auto_class_name(task), None)
    if found is None:
        raise RefusedError(f"transformers {transformers.__version__} has no {auto_class_name(task)} (task {task})")
    return found
