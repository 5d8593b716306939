"""Stand-ins for models that are not on this machine: vramtop's own config, and a tokenizer of that size.

A rehearsal reads no weights, so that a config is all it needs of a model. The folder of a stand-in is one of
huggingface_hub's cache, which every library reads.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from ..model.find_config import BuiltInModel, find_built_in, hub_cache
from ..program.named_models import NamedModel, find_named_model

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

_TOKENS = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_MARKS = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>"),
)
"""What chat models mark turns with, which programs look up."""
_CHAT = "{% for message in messages %}<s> {{ message['role'] }} {{ message['content'] }} </s>{% endfor %}"
_COMMIT = "0" * 40
_WORDS = 30_522
"""Tokens of BERT, whose config need not name them."""


def stand_in_for(name: str) -> str | None:
    """Return the id on the hub by which a model's stand-in is found; None: vramtop does not know its config.

    Args:
        name: on the hub, or a folder, which is taken for the model that it is called like.
    """
    known = _known(name)
    if known is None:
        return None
    return known.id if is_folder(name) else name


def is_folder(name: str) -> bool:
    """Return True if a model's name is no name on the hub."""
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) is None


def _known(name: str) -> BuiltInModel | NamedModel | None:
    return find_built_in(name) or find_named_model(name)


def cache_with(names: Collection[str], folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Write a cache of huggingface_hub with stand-ins, beside links to what is in the user's; return its variables.

    Args:
        names: on the hub, each with a stand-in.
        folder: gets the cache; exists.
        environ: of the program.
    """
    made = folder / "hub"
    made.mkdir()
    for name in names:
        _write(name, made / f"models--{name.replace('/', '--')}")
    real = hub_cache(environ)
    for each in real.iterdir() if real.is_dir() else ():
        if not (made / each.name).exists():
            (made / each.name).symlink_to(os.path.realpath(each))
    return dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"), str(made))


def _write(name: str, repository: Path) -> None:
    """Write the folder of a stand-in."""
    model = _known(name)
    assert model is not None  # noqa: S101 - it has a stand-in
    config = {"vocab_size": _WORDS, **model.config}
    marks = (*_TOKENS.values(), *_MARKS)
    words = [*marks, *(f"word{number}" for number in range(int(config["vocab_size"]) - len(marks)))]
    ids = {word: number for number, word in enumerate(words)}
    numbers = {f"{kind}_id": ids[_TOKENS[kind]] for kind in ("pad_token", "bos_token", "eos_token")}
    segments = ["token_type_ids"] if config["model_type"] == "bert" else []
    files: dict[str, Any] = {
        "config.json": {**numbers, "decoder_start_token_id": ids["<pad>"], **config},
        "generation_config.json": {**numbers, "decoder_start_token_id": ids["<pad>"]},
        "tokenizer.json": _tokenizer(ids, str(config["model_type"])),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": _CHAT,
            **_TOKENS,
            "model_input_names": ["input_ids", *segments, "attention_mask"],
            "model_max_length": config.get("max_position_embeddings", 1024),
        },
        "vocab.json": ids,
    }
    texts = {each: msgspec.json.encode(value) for each, value in files.items()}
    texts |= {"vocab.txt": "\n".join(words).encode(), "merges.txt": b"#version: 0.2\n"}
    snapshot = repository / "snapshots" / _COMMIT
    snapshot.mkdir(parents=True)
    for each, text in texts.items():
        (snapshot / each).write_bytes(text)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(_COMMIT, encoding="ascii")


def _tokenizer(ids: Mapping[str, int], family: str) -> dict[str, Any]:
    """Return the tokenizers library's file of one that makes a token of each word, of the kind that its class takes."""
    unknown = {"unk_token": _TOKENS["unk_token"]}
    if family == "t5":
        pieces = [(word, 0.0) for word in ids]
        model: dict[str, Any] = {"type": "Unigram", "vocab": pieces, "unk_id": ids[_TOKENS["unk_token"]]}
    elif "bert" in family and family != "roberta":
        limits = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
        model = {"type": "WordPiece", "vocab": ids, **unknown, **limits}
    else:
        model = {"type": "BPE", "vocab": ids, "merges": [], "fuse_unk": True, **unknown}
    marks = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token], "content": token, **marks} for token in (*_TOKENS.values(), *_MARKS)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
