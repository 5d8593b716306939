"""Auto classes of transformers for the tasks of job files, and what of a config.json builds no model; no torch here."""

from __future__ import annotations

NOT_IN_MODELS = frozenset(
    (
        *("model_type", "architectures", "auto_map", "transformers_version", "quantization_config", "_name_or_path"),
        *("_attn_implementation", "attn_implementation", "dtype", "torch_dtype"),
    )
)
"""Fields that are given otherwise (the type, the job's precision), or that say where code and weights came from."""

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
