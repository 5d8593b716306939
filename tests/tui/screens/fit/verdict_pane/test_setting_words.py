import pytest

from vramtop.tui.screens.fit.suggestions import settings_words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lora.rank": 16, "lora.targets": "all-linear", "lora.quantization": "nf4"}, "QLoRA rank 16 on all-linear"),
        ({"lora": None}, "full fine-tuning"),
        ({"parallel.strategy": "fsdp2", "parallel.data_shard": 8}, "FSDP over 8 GPUs"),
        ({"parallel.strategy": "none", "parallel.data_shard": 1}, "no sharding"),
        ({"training.activation_checkpointing": "full"}, "checkpointing full"),
        ({"training.activation_offload": True, "training.loss": "fused-linear"}, "activations in CPU RAM, fused loss"),
        ({"training.micro_batch": 2, "training.gradient_accumulation": 8}, "micro-batch 2, accumulation 8"),
        ({"training.sequence_length": 4096, "training.compile": True}, "sequence length 4,096, compile yes"),
    ],
)
def test_changes_read_as_an_engineer_says_them(changes, words):
    assert ", ".join(settings_words(changes)) == words
