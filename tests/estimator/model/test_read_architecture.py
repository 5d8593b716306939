from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.model.find_config import find_built_in
from vramtop.estimator.model.read_architecture import complete_config, read_architecture, usual_task

LLAMA: dict[str, Any] = llama_config(
    hidden=4096,
    mlp=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    vocab=128256,
    max_position_embeddings=131072,
    torch_dtype="bfloat16",
)
BERT_WITHOUT_TYPE = {
    "attention_probs_dropout_prob": 0.2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "max_position_embeddings": 512,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


@pytest.mark.parametrize(
    ("fields", "heads"),
    [({}, 1), ({"multi_query": False}, 8), ({"num_kv_heads": 2}, 2), ({"new_decoder_architecture": True}, 8)],
)
def test_key_value_heads_of_falcon(fields: dict[str, Any], heads: int) -> None:
    config = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}
    assert read_architecture({**config, "vocab_size": 100, **fields}).kv_heads == heads


@pytest.mark.parametrize(("name", "positions"), [("t5-large", None), ("gpt2", 1024)])
def test_relative_positions_bound_no_sequence(name: str, positions: int | None) -> None:
    model = find_built_in(name)
    assert read_architecture(model.config, task=model.task).max_positions == positions


def test_code_that_comes_with_a_model_is_unknown() -> None:
    code = {**LLAMA, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    assert [read_architecture({**code, "model_type": name}).own_code for name in ("llama", "mystery")] == [False, True]


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"num_hidden_groups": 1}, "whose blocks share weights"),
        ({"attention_window": [512]}, "whose attention runs over chunks"),
        ({"pos_att_type": ["p2c"]}, "whose attention scores positions apart"),
    ],
)
def test_blocks_that_no_rule_describes_have_no_figure(field: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotTellError, match=why):
        read_architecture({**LLAMA, **field, "model_type": "other"})


def test_config_without_a_model_type_is_recognised_by_its_fields() -> None:
    arch = read_architecture(BERT_WITHOUT_TYPE, "masked-lm")

    assert arch.family == "bert"
    assert arch.attention_dropout == 0.2
    assert (arch.encoder_layers, arch.decoder_layers) == (24, 0)
    assert usual_task(BERT_WITHOUT_TYPE) == "masked-lm"


def test_config_without_a_model_type_is_recognised_by_its_class() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}

    assert complete_config({**config, "architectures": ["Qwen3MoeForCausalLM"]})["model_type"] == "qwen3_moe"


@pytest.mark.parametrize(
    ("fields", "window", "layers"),
    [
        ({"model_type": "mistral"}, 4096, 32),
        ({"model_type": "mistral", "sliding_window": None}, None, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 30}, 4096, 2),
        ({"model_type": "gemma2"}, 4096, 16),
        ({"model_type": "gemma3_text", "sliding_window": 512}, 512, 27),
        ({"model_type": "gpt_oss", "layer_types": ["sliding_attention", "full_attention"] * 16}, 128, 16),
    ],
)
def test_sliding_windows(fields: dict[str, Any], window: int | None, layers: int) -> None:
    arch = read_architecture({**LLAMA, **fields})

    assert (arch.sliding_window, arch.sliding_layers) == (window, layers)


def test_labels_are_counted_from_the_label_names() -> None:
    arch = read_architecture({**LLAMA, "id2label": {"0": "a", "1": "b", "2": "c"}}, "token-classification")

    assert arch.num_labels == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": "abc"}, ["job.toml", "hidden_size = 'abc'"]),
        ({"num_hidden_layers": -1}, ["job.toml", "num_hidden_layers = -1", "at least 1"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers = True"]),
        ({"vocab_size": None}, ["vocab_size is missing"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings = 'yes'"]),
        ({"attention_dropout": "none"}, ["attention_dropout = 'none'"]),
        ({"layer_types": "full"}, ["layer_types = 'full'"]),
        ({"hidden_act": 3}, ["hidden_act = 3"]),
        ({"model_type": 3}, ["model_type = 3"]),
        ({"model_type": "\ud800"}, ["model_type = '\\ud800' is not a word"]),
        ({"num_attention_heads": 8192}, ["8192 attention heads do not fit"]),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        read_architecture({**LLAMA, **changes}, where="job.toml")

    for word in words:
        assert word in caught.value.message


def test_unrecognised_config_asks_for_the_model_type() -> None:
    with pytest.raises(InputError, match="model_type is missing"):
        read_architecture({"hidden_size": 64})


def test_head_that_a_family_does_not_have_names_those_that_it_has() -> None:
    t5 = {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 99}

    with pytest.raises(InputError, match=r"no causal-lm head; set model\.task to one of seq2seq-lm"):
        read_architecture(t5, "causal-lm")


CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "image_size": 336, "patch_size": 14, "projection_dim": 768,
}  # fmt: skip
LLAVA = {"model_type": "llava", "text_config": LLAMA, "vision_config": CLIP, "quantization_config": {"hidden_size": 0}}


@pytest.mark.parametrize(
    ("config", "parts", "parameters"),
    [
        (LLAVA, ("vision_config",), 301_989_888),
        ({**LLAVA, "audio_config": {"d_model": 2, "depth": 1}}, ("vision_config", "audio_config"), 301_989_936),
        ({**LLAVA, "vision_config": {"embed_dim": [96, 192], "depths": [2, 2]}}, ("vision_config",), 0),
        ({**LLAVA, "vision_config": {"encoder_config": CLIP}}, ("encoder_config",), 301_989_888),
        ({**LLAVA, "vision_config": None}, (), 0),
        ({**LLAVA, "vision_config": {**CLIP, "patch_size": [9, 14]}}, ("vision_config",), 301_989_888),
        ({**LLAVA, "vision_config": {**CLIP, "image_size": {"height": 9}}}, ("vision_config",), 301_989_888),
        (LLAMA, (), 0),
    ],
)  # fmt: skip
def test_encoders_beside_the_language_model_are_named(config, parts, parameters) -> None:
    arch = read_architecture(config)

    assert (arch.uncounted_parts, arch.uncounted_parameters) == (parts, parameters)
    assert (arch.hidden, arch.layers) == (4096, 32)


@pytest.mark.parametrize("part", ["vision_config", "audio_config"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"hidden_size": -5}, "hidden_size = -5 is not a whole number of at least 1"),
        ({"hidden_size": "wide"}, "hidden_size = 'wide' is not a whole number"),
        ({"hidden_size": 10**9}, "hidden_size = 1,000,000,000 is larger than that of any model"),
        ({"hidden_size": 10**30}, "is larger than that of any model"),
        ({"hidden_size": 1.5}, "hidden_size = 1.5 is not a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0 is not a whole number of at least 1"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1,000,000 is larger than that of any model"),
        ({"patch_size": 0}, "patch_size = 0 is not a whole number of at least 1"),
        ({"patch_size": [14, -1]}, "patch_size = -1 is not a whole number"),
        ({"image_size": 10**9}, "image_size = 1,000,000,000 is larger than that of any model"),
        ({"encoder_config": {"hidden_size": 0}}, "encoder_config: hidden_size = 0 is not a whole number"),
        (7, "7 is not a table of a model's sizes"),
        (["a"], "is not a table of a model's sizes"),
    ],
    ids=str,
)
def test_an_absurd_encoder_is_one_sentence(part: str, value: Any, words: str) -> None:
    given = {**CLIP, **value} if isinstance(value, dict) else value
    with pytest.raises(InputError) as caught:
        read_architecture({**LLAVA, part: given}, where="config.json")

    assert caught.value.message.startswith(f"config.json: {part}")
    assert words in caught.value.message
