"""Stand-ins for models that are not on this machine: the configs that vramtop knows, and a tokenizer.

A rehearsal reads no weights, so that configs are all it needs of a model; processors of images and sound take the
sizes that are usual for their class. The folder of a stand-in is one of huggingface_hub's cache, which every library
reads.
"""

import os
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..model.find_config import PIPELINE, BuiltInModel, find_built_in, hub_cache
from ..program.diffusion_models import DiffusionModel, diffusion_families, find_diffusion_model
from ..program.named_models import NamedModel, find_named_model

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
_SPEECH = (
    "<|startoftranscript|>",
    *(f"<|language{number}|>" for number in range(99)),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nocaptions|>", "<|notimestamps|>"),
)
"""What Whisper marks languages and tasks with, which transformers before 4.29 finds by its place among them."""
_CHAT = (
    "{% for message in messages %}<s> {{ message['role'] }} {% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'video' %}VIDEO{% else %}IMAGE"
    "{% endif %} {% endfor %}{% endif %} </s>"
    "{% endfor %}"
)
_COMMIT = "0" * 40
_TEXTS = {
    **dict.fromkeys(("clip", "clip_text_model"), (49_408, 77)),
    "bert": (30_522, 512),
    "mpnet": (30_527, 512),
    "t5": (32_128, 512),
    "gemma2": (256_000, 8192),
}
"""Vocabulary and longest text, by model type, where a config leaves them to the defaults of its class."""
_ENDS = ("t5", "mt5", "umt5", "longt5", "pegasus")
"""Model types whose tokenizers put a mark behind a text; those of encoders put one before and one behind it."""
_PIECES = {
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "albert", "xlnet", "pegasus", "big_bird"), "spiece.model"),
    **dict.fromkeys(("llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3", "gemma3_text"), "tokenizer.model"),
    **dict.fromkeys(("xlm-roberta", "camembert", "mbart", "m2m_100"), "sentencepiece.bpe.model"),
    "phi3": "tokenizer.model",
    "deberta-v2": "spm.model",
}
"""The file of sentencepiece that slow tokenizers of transformers before 5 read, by model type."""
_FREQUENT = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "with", "as", "this",
             "from")  # fmt: skip
"""Words of synthetic texts."""
_WORDS = {151_936: 151_665, 152_064: 151_665}
"""Words in Qwen's tokenizer by rows of the embedding, whose spare rows take the tokens that a program adds."""
_PLAIN_MARKS = ("idefics3", "llava", "llava_onevision", "paligemma", "smolvlm")
"""Model types whose processors put ``<image>`` where an image is; the others are taken for Qwen's."""
_CLASSES = {"whisper": "WhisperTokenizer"}
"""Tokenizers of which programs ask more than of all others, by model type."""
_ENCODERS = {
    "CLIP": ("clip_text_model", "CLIPTokenizer"),
    "T5": ("t5", "T5TokenizerFast"),
    "Gemma2": ("gemma2", "GemmaTokenizerFast"),
}
"""Model types and tokenizers of the encoders of prompts, by the beginning of their class."""


def stand_in_for(name: str) -> str | None:
    """Return the id on the hub by which a model's stand-in is found; None: vramtop does not know its configs.

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


def _known(name: str) -> DiffusionModel | BuiltInModel | NamedModel | None:
    return find_diffusion_model(name) or find_built_in(name) or find_named_model(name)


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
        repository = made / f"models--{name.replace('/', '--')}"
        for path, content in _files(name):
            file = repository / "snapshots" / _COMMIT / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(_COMMIT, encoding="ascii")
    real = hub_cache(environ)
    for each in real.iterdir() if real.is_dir() else ():
        if not (made / each.name).exists():
            (made / each.name).symlink_to(os.path.realpath(each))
    return dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"), str(made))


def _files(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the files of a stand-in."""
    model = _known(name)
    assert model is not None  # noqa: S101 - it has a stand-in
    if isinstance(model, DiffusionModel):
        yield from _pipeline(model)
    else:
        config = {**model.config}
        yield from _with_tokenizer(config)
        sizes: dict[str, Any] = {"feature_size": bins} if (bins := config.get("num_mel_bins")) else {}
        vision = config.get("vision_config") or {}
        if (side := vision.get("image_size")) is not None:  # the others are of the usual size of their class
            whole = {"height": side, "width": side}
            crops = str(vision.get("model_type", "clip")).startswith("clip")
            sizes |= {"size": {"shortest_edge": side}, "crop_size": whole} if crops else {"size": whole}
        yield "preprocessor_config.json", msgspec.json.encode(sizes)
        merged = {"patch_size": vision.get("patch_size"), "vision_feature_select_strategy": "default"}
        if config["model_type"] == "llava":
            yield "processor_config.json", msgspec.json.encode(merged)


def _pipeline(model: DiffusionModel) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a diffusion model."""
    family = diffusion_families()[model.family]
    scheduler = "FlowMatchEulerDiscreteScheduler" if family.flows else "DDIMScheduler"
    trained = "unet" if model.trained.kind.startswith("UNet") else "transformer"
    parts = {trained: model.trained} | ({} if model.vae is None else {"vae": model.part(model.vae)})
    index = {folder: ("diffusers", part.kind) for folder, part in parts.items()}
    for folder, part in parts.items():
        yield f"{folder}/config.json", msgspec.json.encode({"_class_name": part.kind, **part.config})
    for number, part in enumerate(map(model.part, model.encoders), 1):
        end = f"_{number}" if number > 1 else ""
        kind, tokenizer = next(found for start, found in _ENCODERS.items() if part.kind.startswith(start))
        index[f"text_encoder{end}"] = "transformers", part.kind
        index[f"tokenizer{end}"] = "transformers", tokenizer
        for path, content in _with_tokenizer({"architectures": [part.kind], "model_type": kind, **part.config}):
            yield f"{'text_encoder' if path == 'config.json' else 'tokenizer'}{end}/{path}", content
    index["scheduler"] = "diffusers", scheduler
    yield "scheduler/scheduler_config.json", msgspec.json.encode({"_class_name": scheduler})
    yield PIPELINE, msgspec.json.encode({"_class_name": family.pipelines[0], **index})


def _with_tokenizer(config: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield a model's config and, if it reads text, a tokenizer."""
    kind, text = str(config["model_type"]), config.get("text_config") or config
    usual, longest = _TEXTS.get(kind, (0, 1024))
    rows = int(text.get("vocab_size", usual))
    size = _WORDS.get(rows, rows)
    speech = _SPEECH if kind == "whisper" else ()
    marks = (*_TOKENS.values(), *_MARKS, *speech)
    if size < len(marks):
        yield "config.json", msgspec.json.encode(config)
        return
    words = [*marks, *(f"word{number}" for number in range(size - len(marks)))]
    chat = _CHAT
    for what in ("image", "video"):
        place = config.get(f"{what}_token_id", config.get(f"{what}_token_index"))
        if place is not None and place < size:
            words[place] = f"<{what}>" if kind in _PLAIN_MARKS else f"<|{what}_pad|>"
            marks = (*marks, words[place])
            chat = chat.replace(what.upper(), words[place])
    ids = {word: number for number, word in enumerate(words)}
    numbers = {f"{token}_id": ids[_TOKENS[token]] for token in ("pad_token", "bos_token", "eos_token")}
    segments = ["token_type_ids"] if kind == "bert" else []
    files: dict[str, Any] = {
        "config.json": {**numbers, "decoder_start_token_id": ids["<pad>"], **config},
        "generation_config.json": {**numbers, "decoder_start_token_id": ids["<pad>"]},
        "tokenizer.json": _tokenizer(ids, kind, marks),
        "tokenizer_config.json": {
            "tokenizer_class": _CLASSES.get(kind, "PreTrainedTokenizerFast"),
            "chat_template": chat,
            **_TOKENS,
            **({"additional_special_tokens": speech} if speech else {}),
            "model_input_names": ["input_ids", *segments, "attention_mask"],
            "model_max_length": _longest(kind, text.get("max_position_embeddings", longest)),
        },
        "vocab.json": ids,
    }
    if chat != _CHAT:
        files["chat_template.json"] = {"chat_template": chat}
    yield from ((path, msgspec.json.encode(value)) for path, value in files.items())
    yield "vocab.txt", "\n".join(words).encode()
    yield "merges.txt", b"#version: 0.2\n"
    if (name := _PIECES.get(kind)) is not None:
        controls = {_TOKENS[each] for each in ("bos_token", "eos_token")}
        yield name, _sentencepiece(words[: size - len(_FREQUENT) - 1], controls)


def _longest(kind: str, positions: int) -> int:
    """Return the longest text of a tokenizer; of RoBERTa and its like no token takes the first two positions."""
    skips_two = "roberta" in kind or kind in ("camembert", "longformer", "mpnet")
    return positions - 2 if skips_two else positions


def _sentencepiece(words: Sequence[str], controls: Collection[str]) -> bytes:
    """Return a file of sentencepiece that makes a token of each frequent word, and at most two of any other.

    It is a message of protocol buffers (``sentencepiece_model.proto`` of sentencepiece 0.2).
    """

    def field(number: int, value: bytes | int) -> bytes:
        if isinstance(value, int):
            return _varint(number << 3) + _varint(value)
        return _varint(number << 3 | 2) + _varint(len(value)) + value

    def piece(word: str, kind: int) -> bytes:
        return field(1, field(1, word.encode()) + b"\x15" + struct.pack("<f", -1.0) + field(3, kind))

    normal, unknown, control = 1, 2, 3
    kinds = {_TOKENS["unk_token"]: unknown, **dict.fromkeys(controls, control)}
    found = [piece(word, kinds.get(word, normal)) for word in words]
    found += [piece(f"\u2581{word}", normal) for word in ("", *_FREQUENT)]
    numbers = {40: "unk_token", 41: "bos_token", 42: "eos_token", 43: "pad_token"}
    trainer = field(3, 1) + field(4, len(found))
    trainer += b"".join(field(number, words.index(_TOKENS[name])) for number, name in numbers.items())
    return b"".join(found) + field(2, trainer) + field(3, field(1, b"identity"))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def _marking(ids: Mapping[str, int], family: str) -> dict[str, Any] | None:
    """Return what puts marks around texts and pairs of them; None: nothing, as of models that generate text."""
    mark = {name: {"SpecialToken": {"id": _TOKENS[f"{name}_token"], "type_id": 0}} for name in ("cls", "sep", "eos")}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    if family in _ENDS:
        single, pair = [first, mark["eos"]], [first, mark["eos"], second, mark["eos"]]
    elif "bert" in family or family in ("electra", "mpnet", "bart", "mbart", "camembert", "longformer"):
        both = [mark["sep"]] if "roberta" in family or "bart" in family else []
        single = [mark["cls"], first, mark["sep"]]
        pair = [*single, *both, second, mark["sep"]]
        if not both:  # BERT numbers the two texts
            pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    else:
        return None
    used = ("cls_token", "sep_token", "eos_token")
    tokens = {
        _TOKENS[each]: {"id": _TOKENS[each], "ids": [ids[_TOKENS[each]]], "tokens": [_TOKENS[each]]} for each in used
    }
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def _tokenizer(ids: Mapping[str, int], family: str, tokens: Collection[str]) -> dict[str, Any]:
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
    is_bert = model["type"] == "WordPiece"
    normal = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": False}
    marks = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token], "content": token, **marks} for token in tokens],
        "normalizer": {"type": "BertNormalizer", **normal} if is_bert else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}]},
        "post_processor": _marking(ids, family),
        "decoder": None,
        "model": model,
    }
