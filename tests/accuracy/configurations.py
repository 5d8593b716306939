"""Jobs to measure on a GPU: models of 0.1 to 8 billion parameters with different training settings.

    python tests/accuracy/configurations.py [TEXT] > jobs.jsonl         those whose name contains the text, else all
    vramtop measure jobs.jsonl --out tests/accuracy/measured/CARD.jsonl

Prints the tables of a job file in JSON on each line. ``make accuracy`` finds results under ``measured/``.
"""

import copy
import json
import sys
from collections.abc import Iterator
from typing import Any

Tables = dict[str, Any]


def llama(hidden: int, layers: int, heads: int, kv: int, mlp: int, vocab: int, **more: Any) -> Tables:
    """Return the config of a Llama-like decoder."""
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        **more,
    }


def gpt2(hidden: int, layers: int, heads: int) -> Tables:
    """Return the config of a GPT-2."""
    return {"model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": 50257}


def bert(hidden: int, layers: int, heads: int) -> Tables:
    """Return the config of a BERT."""
    return {
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": 30522,
    }


def t5(hidden: int, layers: int, heads: int, mlp: int) -> Tables:
    """Return the config of a T5 with the gated MLP of version 1.1."""
    return {
        "model_type": "t5",
        "d_model": hidden,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "d_kv": 64,
        "d_ff": mlp,
        "vocab_size": 32128,
        "feed_forward_proj": "gated-gelu",
        "decoder_start_token_id": 0,
    }


QWEN = {"model_type": "qwen2"}
QWEN3 = {"model_type": "qwen3", "head_dim": 128}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
MODELS: dict[str, Tables] = {
    "llama-0.1b": llama(768, 12, 12, 4, 2048, 32000),
    "llama-1b": llama(2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True),
    "llama-3b": llama(3072, 28, 24, 8, 8192, 128256, head_dim=128, tie_word_embeddings=True),
    "llama-8b": llama(4096, 32, 32, 8, 14336, 128256),
    "qwen2-0.5b": llama(896, 24, 14, 2, 4864, 151936, **QWEN, tie_word_embeddings=True),
    "qwen2-1.5b": llama(1536, 28, 12, 2, 8960, 151936, **QWEN, tie_word_embeddings=True),
    "qwen3-0.6b": llama(1024, 28, 16, 8, 3072, 151936, **QWEN3, tie_word_embeddings=True),
    "qwen3-4b": llama(2560, 36, 32, 8, 9728, 151936, **QWEN3, tie_word_embeddings=True),
    "mistral-1b": llama(2048, 16, 16, 8, 7168, 32768, model_type="mistral", sliding_window=None),
    "mixtral-1b": llama(1024, 12, 16, 4, 3584, 32000, model_type="mixtral", **EXPERTS),
    "mixtral-3b": llama(1536, 16, 16, 8, 4608, 32000, model_type="mixtral", **EXPERTS),
    "gemma-2b": llama(2048, 18, 8, 1, 16384, 256000, model_type="gemma", head_dim=256, tie_word_embeddings=True),
    "gemma3-1b": llama(
        1152, 26, 4, 1, 6912, 262144, model_type="gemma3_text", head_dim=256, tie_word_embeddings=True,
        sliding_window=512,
    ),
    "gpt2-0.1b": gpt2(768, 12, 12),
    "gpt2-0.8b": gpt2(1280, 36, 20),
    "bert-0.1b": bert(768, 12, 12),
    "bert-0.3b": bert(1024, 24, 16),
    "t5-0.2b": t5(768, 12, 12, 2048),
    "t5-0.8b": t5(1024, 24, 16, 2816),
}  # fmt: skip
TASKS = {"bert": "masked-lm", "t5": "seq2seq-lm"}

_FUSED, _SGD, _ADAFACTOR = {"optimizer": "adamw-fused"}, {"optimizer": "sgd"}, {"optimizer": "adafactor"}
_FULL, _EAGER = {"activation_checkpointing": "full"}, {"attention": "eager"}
_FP32, _BF16, _FP16 = {"precision": "fp32"}, {"precision": "bf16"}, {"precision": "fp16-mixed"}
_LORA, _ALL = {"lora": {"rank": 16}}, {"lora": {"rank": 64, "targets": "all-linear"}}
_MLP = {"lora": {"rank": 8, "targets": ["gate_proj", "up_proj", "down_proj"]}}


def _run(model: str, batch: int, length: int, *changes: Tables) -> tuple[str, int, int, list[Tables]]:
    return model, batch, length, list(changes)


_RUNS = [
    _run("llama-0.1b", 8, 512, _FP32),
    _run("llama-0.1b", 8, 512),
    _run("llama-0.1b", 8, 512, _FP16),
    _run("llama-0.1b", 8, 512, _BF16),
    _run("llama-0.1b", 8, 512, _BF16, _EAGER),
    _run("llama-0.1b", 8, 512, _BF16, _FULL),
    _run("llama-0.1b", 8, 512, _FP32, _SGD),
    _run("llama-0.1b", 8, 512, _FP32, {"optimizer": "sgd-momentum"}),
    _run("llama-0.1b", 8, 512, _FP32, {"gradient_accumulation": 4}),
    _run("llama-0.1b", 32, 128, _FUSED),
    _run("llama-1b", 1, 2048, _FUSED),
    _run("llama-1b", 2, 2048, _BF16),
    _run("llama-1b", 2, 2048, _BF16, _FUSED, {"loss": "chunked"}),
    _run("llama-1b", 2, 4096, _BF16, _FUSED, _FULL),
    _run("llama-1b", 4, 1024, _BF16, _LORA),
    _run("llama-1b", 4, 1024, _LORA),
    _run("llama-1b", 1, 1024, _FP32, _FUSED),
    _run("llama-1b", 1, 1024, _BF16, _ADAFACTOR),
    _run("llama-3b", 1, 1024, _BF16, _FUSED),
    _run("llama-3b", 2, 2048, _BF16, _FUSED, _FULL),
    _run("llama-3b", 2, 2048, _BF16, _ALL, _FUSED),
    _run("llama-3b", 1, 2048, _BF16, _MLP),
    _run("llama-8b", 1, 1024, _BF16, _FUSED),
    _run("llama-8b", 1, 2048, _BF16, _LORA),
    _run("llama-8b", 1, 2048, _BF16, _LORA, _FULL),
    _run("llama-8b", 4, 2048, _BF16, _ALL, _FULL),
    _run("llama-8b", 1, 2048, _BF16, _SGD, _FULL),
    _run("llama-8b", 1, 4096, _BF16, _ADAFACTOR, _FULL),
    _run("qwen2-0.5b", 4, 1024),
    _run("qwen2-0.5b", 4, 1024, _BF16, _FUSED),
    _run("qwen2-0.5b", 2, 1024, _FP32, _EAGER),
    _run("qwen2-0.5b", 4, 2048, _BF16, _FULL, {"loss": "chunked"}),
    _run("qwen2-1.5b", 2, 1024, _FUSED),
    _run("qwen2-1.5b", 2, 2048, _BF16, _FULL),
    _run("qwen2-1.5b", 2, 1024, _BF16, _LORA),
    _run("qwen3-0.6b", 4, 1024, _FUSED),
    _run("qwen3-0.6b", 2, 2048, _BF16),
    _run("qwen3-0.6b", 2, 1024, _FP16, {"gradient_accumulation": 2}),
    _run("qwen3-4b", 1, 1024, _BF16, _FUSED),
    _run("qwen3-4b", 2, 2048, _BF16, _LORA, _FULL),
    _run("mistral-1b", 2, 2048, _BF16, _FUSED),
    _run("mistral-1b", 2, 1024, _FULL),
    _run("mistral-1b", 2, 1024, _BF16, _EAGER),
    _run("mixtral-1b", 2, 1024, _BF16, _FUSED),
    _run("mixtral-1b", 2, 1024),
    _run("mixtral-1b", 2, 2048, _BF16, _FULL),
    _run("mixtral-3b", 1, 1024, _BF16, _FUSED),
    _run("mixtral-3b", 2, 1024, _BF16, _LORA),
    _run("gemma-2b", 1, 1024, _BF16, _FUSED),
    _run("gemma-2b", 2, 1024, _BF16, _LORA),
    _run("gemma-2b", 1, 2048, _BF16, _ADAFACTOR, _FULL),
    _run("gemma3-1b", 2, 1024, _BF16, _FUSED),
    _run("gemma3-1b", 1, 1024),
    _run("gpt2-0.1b", 8, 1024, _FP32),
    _run("gpt2-0.1b", 8, 1024, _FUSED),
    _run("gpt2-0.1b", 8, 512, _FP16, _EAGER),
    _run("gpt2-0.8b", 2, 1024, _FULL),
    _run("gpt2-0.8b", 4, 512, _BF16, _FUSED),
    _run("bert-0.1b", 16, 512, _FP32),
    _run("bert-0.1b", 16, 512, _FUSED),
    _run("bert-0.3b", 8, 512, _FP32, _EAGER),
    _run("bert-0.3b", 8, 512, _FP16, {"task": "sequence-classification"}),
    _run("bert-0.3b", 16, 512, _FULL, _ADAFACTOR, _FP32),
    _run("t5-0.2b", 8, 512, _FP32),
    _run("t5-0.2b", 8, 512, _FUSED, _EAGER),
    _run("t5-0.8b", 4, 512, _BF16),
    _run("t5-0.8b", 4, 512, _BF16, _FULL, _ADAFACTOR),
]


def configurations() -> Iterator[Tables]:
    """Yield every job to run, as the tables of a job file; ``name`` lists its settings."""
    for model, batch, length, changes in _RUNS:
        config = MODELS[model]
        job: Tables = {
            "model": {"config": copy.deepcopy(config), "task": TASKS.get(config["model_type"], "causal-lm")},
            "training": {"micro_batch": batch, "sequence_length": length, "precision": "bf16-mixed"},
        }
        for change in changes:
            for key, value in change.items():
                if key == "lora":
                    job["lora"] = dict(value)
                else:
                    job["model" if key in ("task", "attention") else "training"][key] = value
        job["name"] = " ".join([model, f"b{batch}", f"s{length}", *_setting_names(job)])
        yield job


def find(name: str | None) -> list[Tables]:
    """Return the jobs whose name contains ``name``; None: all jobs."""
    return [job for job in configurations() if name is None or name in job["name"]]


def _setting_names(job: Tables) -> Iterator[str]:
    training = job["training"]
    yield training["precision"]
    yield training.get("optimizer", "adamw")
    if job["model"].get("attention"):
        yield job["model"]["attention"]
    if training.get("activation_checkpointing"):
        yield "checkpointing"
    if training.get("gradient_accumulation"):
        yield f"accumulation {training['gradient_accumulation']}"
    if training.get("loss"):
        yield training["loss"]
    if job["model"]["task"] == "sequence-classification":
        yield "classification"
    if job.get("lora"):
        targets = job["lora"].get("targets", "qv")
        yield f"lora {job['lora']['rank']} {targets if isinstance(targets, str) else 'mlp'}"


if __name__ == "__main__":
    for wanted in find(sys.argv[1] if len(sys.argv) > 1 else None):
        print(json.dumps(wanted))
