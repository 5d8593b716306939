"""Tells whether a script may read its command line in a way that is not followed: then no flag can be called unread."""

import ast
import sys
from collections.abc import Iterable, Iterator

from ..python.imports import LIBRARIES

_FOLLOWED = ("HfArgumentParser", "TrlParser", "H4ArgumentParser", "print")
"""What may be given a parser, or its class, and adds no options to it."""
_OTHER_PARSERS = ("getopt", "optparse", "click", "cli")
_OTHER_LIBRARIES = {
    *("numpy", "pandas", "tqdm", "wandb", "PIL", "tensorboard", "tensorboardX", "matplotlib", "sklearn", "scipy"),
    *("requests", "yaml", "cv2", "einops", "flash_attn", "xformers", "tokenizers", "sentencepiece", "tiktoken"),
    *("safetensors", "huggingface_hub", "triton", "apex", "timm", "torchmetrics", "rouge_score", "nltk", "packaging"),
    *("psutil", "dotenv", "loguru", "rich", "jsonlines", "liger_kernel", "mlflow", "comet_ml", "swanlab", "torchaudio"),
}
"""Libraries that leave the command line to the script."""


def may_parse_elsewhere(trees: Iterable[ast.Module], modules: set[str]) -> bool:
    """Return True if something besides the parsers that are followed may read the command line.

    Args:
        trees: the script, and the modules beside it that were followed.
        modules: the names of these modules.
    """
    roots = {name.partition(".")[0] for name in modules} | LIBRARIES | _OTHER_LIBRARIES | sys.stdlib_module_names
    return any(_is_sign(node, roots) for tree in trees for node in ast.walk(tree))


def _is_sign(node: ast.AST, known: set[str]) -> bool:
    """Return True for a module that is not here, for the words of the line, and for a function that gets a parser."""
    if isinstance(node, ast.Attribute):
        return node.attr == "argv"
    if isinstance(node, ast.Name):
        return node.id in ("argv", "exec", "eval")
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any(
            root not in known or any(part.lower() in _OTHER_PARSERS or part.endswith("CLI") for part in parts)
            for root, *parts in _imported(node)
        )
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called not in _FOLLOWED and any(isinstance(each, ast.Name) and "parser" in each.id for each in node.args)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, ...]]:
    """Yield the root of each module that a statement imports, and the parts of what it imports."""
    for each in node.names:
        whole = each.name if isinstance(node, ast.Import) else f"{node.module or each.name}.{each.name}"
        yield (whole.partition(".")[0], *whole.split("."))
