"""Small training scripts with what really trains in them: texts in ``corpus/``, truths recorded by running them.

After ``###`` stand the name and the arguments; ``?`` before them: the script leaves something open.
"""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "corpus"
_DECODER = {"num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 64}
TINY: dict[str, dict[str, Any]] = {
    "tiny-llama": {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, **_DECODER},
    "tiny-llama-large": {
        "model_type": "llama",
        **_DECODER,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 6,
    },
    "tiny-gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    "tiny-bert": {"model_type": "bert", "hidden_size": 64, "intermediate_size": 96, **_DECODER},
    "tiny-t5": {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 96,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 128,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
    },
}
"""Models that the scripts load, by the name of their folder."""


@dataclass(frozen=True)
class Example:
    """A script of the corpus."""

    name: str
    arguments: list[str]
    text: str
    is_open: bool
    """It leaves something open, or does what a job file cannot say; all others must be right."""


def examples() -> list[Example]:
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for part in re.split(r"^### ", path.read_text(), flags=re.MULTILINE)[1:]:
            title, _, text = part.partition("\n")
            name, _, arguments = title.removeprefix("? ").partition(" | ")
            found.append(Example(name.strip(), shlex.split(arguments), text, title.startswith("? ")))
    return found


def truths() -> dict[str, Any]:
    return json.loads((FOLDER / "truth.json").read_text())  # type: ignore[no-any-return]


def write_models(folder: Path) -> None:
    """Write the configs of the models that the scripts load."""
    for name, config in TINY.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
