"""Changed settings in words, as an engineer says them: ``QLoRA rank 16, checkpointing full, FSDP over 8 GPUs``."""

from collections.abc import Iterator, Mapping
from typing import Any

from ....job.form import sharding_word

_NAMES = {
    "training.micro_batch": "micro-batch",
    "training.activation_checkpointing": "checkpointing",
    "training.gradient_accumulation": "accumulation",
    "parallel.cpu_offload": "CPU offload",
    "parallel.load_on_rank_zero": "load on rank 0",
    "target.gpu": "on",
}
_SENTENCES: Mapping[tuple[str, Any], str] = {
    ("training.activation_offload", True): "activations in CPU RAM",
    ("training.activation_offload", False): "activations on the GPU",
    ("training.loss", "fused-linear"): "fused loss",
    ("training.loss", "chunked"): "chunked loss",
    ("parallel.cpu_offload", "optimizer"): "optimizer in CPU RAM",
    ("parallel.cpu_offload", "all"): "weights and optimizer in CPU RAM",
}
_STRATEGY, _RANKS = "parallel.strategy", ("parallel.data_shard", "parallel.data_replicate")


def settings_words(changes: Mapping[str, Any]) -> str:
    """Return changed settings in words."""
    return ", ".join(_words(changes))


def _words(changes: Mapping[str, Any]) -> Iterator[str]:
    yield from _adapters(changes)
    yield from _sharding(changes)
    for key, value in changes.items():
        if key.partition(".")[0] == "lora" or key in (_STRATEGY, *_RANKS):
            continue
        name = _NAMES.get(key) or key.rpartition(".")[2].replace("_", " ")
        yield _SENTENCES.get((key, value if isinstance(value, str | bool) else None)) or f"{name} {_word(value)}"


def _adapters(changes: Mapping[str, Any]) -> Iterator[str]:
    if changes.get("lora", ...) is None:
        yield "full fine-tuning"
        return
    adapters = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("lora.")}
    if not adapters:
        return
    words = ["QLoRA" if adapters.get("quantization", "none") != "none" else "LoRA"]
    if "rank" in adapters:
        words.append(f"rank {adapters['rank']}")
    if targets := adapters.get("targets"):
        words.append(f"on {_word(targets)}")
    yield " ".join(words)


def _sharding(changes: Mapping[str, Any]) -> Iterator[str]:
    counts = [changes[key] for key in _RANKS if key in changes]
    gpus = max(counts, default=None)
    if _STRATEGY in changes:
        word = sharding_word(changes[_STRATEGY])
        yield "no sharding" if word == "none" else f"{word} over {gpus} GPUs" if gpus else word
    elif gpus:
        yield f"over {gpus} GPUs" if gpus > 1 else "on 1 GPU"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "default"
    return (
        ",".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)
    )
