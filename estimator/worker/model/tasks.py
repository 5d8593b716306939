"""The auto class of transformers that a task of a job file stands for."""

from __future__ import annotations

from typing import Any

from ..request.protocol import RefusedError

_WHOLE = {"feature-extraction": "AutoModel", "backbone": "AutoBackbone"}
_WORDS = {
    "lm": "LM",
    "ctc": "CTC",
    "rnnt": "RNNT",
    "tdt": "TDT",
    "seq2seq": "Seq2Seq",
    "pretraining": "PreTraining",
    "xvector": "XVector",
}


def auto_class_name(task: str) -> str:
    """``causal-lm`` is ``AutoModelForCausalLM``."""
    return _WHOLE.get(task) or "AutoModelFor" + "".join(_WORDS.get(word, word.capitalize()) for word in task.split("-"))


def auto_class(task: str) -> Any:
    """The class itself.

    Raises:
        RefusedError: this transformers has none of that name.
    """
    import transformers

    found = getattr(transformers, auto_class_name(task), None)
    if found is None:
        raise RefusedError(f"transformers {transformers.__version__} has no {auto_class_name(task)} (task {task})")
    return found
