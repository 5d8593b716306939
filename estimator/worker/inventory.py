"""Worker program: builds a model on the meta device and lists its parameters, as JSON lines over pipes.

Run by its file's path under any Python (3.9 or newer) that has torch (2.4 or newer) and transformers (4.45 or newer);
vramtop itself need not be installed there. One request a line on stdin, one answer a line on stdout:

    {"id": 1, "op": "ping"}
        -> {"id": 1, "versions": {"python": ..., "torch": ..., "transformers": ...}}
    {"id": 2, "op": "inventory", "config": {"model_type": ..., ...}, "task": "causal-lm"}
        -> {"id": 2, "groups": [{"name", "shape", "repeat", "dtype", "kind"}, ...],
            "layers": ..., "tied_head": ..., "versions": {...}}

A request that fails is answered with {"id": ..., "error": "one sentence"}. No weights are read, nothing is downloaded,
and no code that came with a model is run.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any, TextIO

AUTO_CLASSES = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "feature-extraction": "AutoModel",
}
IGNORED_FIELDS = {
    "model_type",
    "architectures",
    "auto_map",  # names code that came with the model
    "transformers_version",
    "quantization_config",  # the count is of the parameters before any quantization
    "_attn_implementation",
    "attn_implementation",
    "_name_or_path",
}
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
BLOCK = re.compile(r"^(.*?)\.\d+(?=\.)")


def main() -> None:
    """Answer requests until stdin ends."""
    answers = _own_stdout()
    os.environ.update(
        CUDA_VISIBLE_DEVICES="",  # counting must not take memory of the cards that are being watched
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        TRANSFORMERS_VERBOSITY="error",
        TOKENIZERS_PARALLELISM="false",
    )
    here = Path(__file__).resolve().parent  # this folder's names must not hide libraries'
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    for line in sys.stdin:
        if line.strip():
            answers.write(json.dumps(answer(line)) + "\n")
            answers.flush()


def answer(line: str) -> dict[str, Any]:
    """The answer to one request line; a failure becomes its ``error``."""
    number = None
    try:
        request = json.loads(line)
        number = request.get("id")
        result = OPERATIONS[request["op"]](request)
    except Exception as error:  # noqa: BLE001 - any library's failure has to reach the other side as a sentence
        text = " ".join(str(error).split())[:300]
        result = {"error": text if isinstance(error, RefusedError) else f"{type(error).__name__}: {text}"}
    return {"id": number, **result}


class RefusedError(Exception):
    """The installed libraries cannot build what was asked for; the message is a sentence."""


def ping(_request: dict[str, Any]) -> dict[str, Any]:
    """Which versions would answer."""
    return {"versions": versions()}


def inventory(request: dict[str, Any]) -> dict[str, Any]:
    """Every parameter of the model that config and task describe, once, grouped by name and shape."""
    model = build(request["config"], request["task"])
    groups: dict[tuple[str, tuple[int, ...], str, str], int] = {}
    blocks = set()
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():  # tied parameters come once, under their first name
        path, _, leaf = name.rpartition(".")
        dtype = str(parameter.dtype).replace("torch.", "")
        key = (NUMBER.sub("*", name), tuple(parameter.shape), kind_of(modules[path], leaf), dtype)
        groups[key] = groups.get(key, 0) + 1
        block = BLOCK.match(name)
        if block:
            blocks.add(block.group(0))
    return {
        "groups": [
            {"name": name, "shape": shape, "repeat": repeat, "dtype": dtype, "kind": kind}
            for (name, shape, kind, dtype), repeat in groups.items()
        ],
        "layers": len(blocks),
        "tied_head": has_tied_head(model),
        "versions": versions(),
    }


def build(fields: dict[str, Any], task: str) -> Any:
    """The model itself, on the meta device: shapes without storage."""
    import torch
    import transformers

    name = fields["model_type"]
    if name not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        raise RefusedError(f"transformers {transformers.__version__} does not know the model type {name!r}")
    kwargs = {key: value for key, value in fields.items() if key not in IGNORED_FIELDS}
    config = transformers.AutoConfig.for_model(name, **kwargs)
    auto_class = getattr(transformers, AUTO_CLASSES[task])
    if type(config) not in auto_class._model_mapping:
        raise RefusedError(f"transformers {transformers.__version__} has no {task} head for the model type {name!r}")
    with torch.device("meta"):
        model = auto_class.from_config(config, attn_implementation="eager", trust_remote_code=False)
    if fields.get("tie_word_embeddings") is False and has_tied_head(model):
        # transformers 5 ties T5's head whatever the config says, but keeps apart what a checkpoint holds apart
        output = model.get_output_embeddings()
        output.weight = torch.nn.Parameter(torch.empty_like(output.weight))
    return model


def kind_of(module: Any, leaf: str) -> str:
    """What a parameter is to its module: ``linear``, ``conv1d``, ``embedding``, ``norm``, ``bias`` or ``parameter``."""
    import torch

    class_name = type(module).__name__
    if "norm" in class_name.lower():
        return "norm"
    if isinstance(module, torch.nn.Linear):
        return "linear" if leaf == "weight" else "bias"
    if class_name == "Conv1D":
        return "conv1d" if leaf == "weight" else "bias"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    return "parameter"


def has_tied_head(model: Any) -> bool:
    """The output layer's weight is the token embedding itself."""
    head, tokens = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and tokens is not None and getattr(head, "weight", None) is tokens.weight


def versions() -> dict[str, str]:
    """Of Python and the libraries that count."""
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
    }


OPERATIONS = {"ping": ping, "inventory": inventory}


def _own_stdout() -> TextIO:
    """A private copy of stdout for answers; what libraries print goes to stderr from here on."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return private


if __name__ == "__main__":
    main()
