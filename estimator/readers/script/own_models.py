"""Models that a script builds of torch's layers: the config of a decoder with the same parameters.

A module is read by its layers: embeddings, a list of blocks with attention and MLP, a head. The config that comes of it
is counted again, so that what it does not account for is known.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...common import VramtopError
from ...model.count_parameters import count_parameters
from ...model.read_architecture import read_architecture
from .models import Container, Layer, Notes, ParameterOwner, Shape, elements
from .python import Instance

_MAX_DEPTH = 12
_MAX_TENSORS = 20_000
_HEADS = ("n_head", "num_heads", "n_heads", "num_attention_heads", "nhead", "num_head", "heads")
_VOCABULARY = ("vocab_size", "padded_vocab_size", "n_vocab", "vocabulary_size")
_POSITIONS = re.compile(r"(?i)(^|[._])(wpe|pos\w*|\w*pos_?emb\w*)([._]|$)")
_DROPOUT = ("dropout", "dropout_rate", "resid_pdrop", "drop_rate")
_LENGTHS = (
    "block_size",
    "max_seq_len",
    "sequence_len",
    "context_length",
    "max_len",
    "seq_len",
    "ctx_len",
    "n_positions",
)
_BLOCK = re.compile(r"(.*?)\.(\d+)\.(.+)")
_ATTENTION = re.compile(r"(?i)(^|[._])(\w*attn\w*|\w*attention\w*|sa|mha|qkv|wq|wk|wv|wo)([._]|$)")
_MLP = re.compile(r"(?i)(^|[._])(\w*mlp\w*|ffn?|ffwd|feed_?forward\w*)([._]|$)")
_SMALL = 0.005
"""Share of the parameters below which a difference is no matter."""


@dataclass(slots=True)
class OwnModel:
    """What is known of a model of the script's own."""

    module: Instance
    shapes: dict[str, Shape] | None
    """Every parameter by name, shared ones once; None: unknown."""
    dtypes: set[str | None] = field(default_factory=set)
    trained: int = 0
    """Parameters that train."""

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(map(elements, (self.shapes or {}).values()))


def find_own_model(owners: list[ParameterOwner], notes: Notes) -> OwnModel | None:
    """Return the module that holds all the layers that are trained; the largest of several."""
    if not all(isinstance(owner, Layer) for owner in owners):
        return None
    wanted = set(map(id, owners))
    found: list[tuple[int, Instance]] = []
    for module in notes.modules:
        if isinstance(module, Instance) and any(path.endswith("Module") for path in module.kind.external_bases()):
            inside = {id(each) for _, each in _layers(module, "", 0)}
            if inside and wanted <= inside:
                found.append((len(inside), module))
    if not found:
        return None
    module = max(found, key=lambda each: each[0])[1]
    own = OwnModel(module, {})
    seen: set[int] = set()
    for name, layer in _layers(module, "", 0):
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        shapes = layer.shapes()
        if shapes is None or own.shapes is None or len(own.shapes) + len(shapes) > _MAX_TENSORS:
            own.shapes = None
            break
        if shapes:
            own.dtypes.add(layer.dtype)
        for part, shape in shapes.items():
            own.shapes[f"{name}.{part}".strip(".")] = shape
            own.trained += elements(shape) if layer.requires is None or layer.requires.get(part, True) else 0
    return own


def config_of(own: OwnModel) -> tuple[dict[str, Any], float] | None:
    """Return the config of a decoder like the model, and the share of parameters by which it differs; None: unlike."""
    sizes = _sizes(own) if own.shapes else None
    if sizes is None:
        return None
    try:
        counted = count_parameters(read_architecture(sizes)).parameters
    except (VramtopError, ArithmeticError, TypeError, ValueError):
        return None
    return sizes, (counted - own.size) / max(1, own.size)


def is_small(share: float) -> bool:
    """Return True for a difference that is no matter."""
    return abs(share) < _SMALL


def _layers(value: Any, name: str, depth: int) -> Iterator[tuple[str, Layer]]:
    """Yield the layers inside a module with their names."""
    if isinstance(value, Layer):
        yield name, value
    elif depth < _MAX_DEPTH and isinstance(value, Instance | Container):
        items = value.values if isinstance(value, Instance) else value.items
        for key, item in items.items():
            if isinstance(item, Layer | Container | Instance):
                yield from _layers(item, f"{name}.{key}".strip("."), depth + 1)


def _sizes(own: OwnModel) -> dict[str, Any] | None:
    shapes = own.shapes or {}
    blocks: dict[str, dict[str, dict[str, Shape]]] = {}
    around: dict[str, Shape] = {}
    for name, shape in shapes.items():
        found = _BLOCK.fullmatch(name)
        if found is None:
            around[name] = shape
        else:
            blocks.setdefault(found[1], {}).setdefault(found[2], {})[found[3]] = shape
    if not blocks:
        return None
    repeated = max(blocks.values(), key=len)
    usual = Counter(tuple(sorted(block.items())) for block in repeated.values()).most_common(1)[0][0]
    block = dict(usual)
    matrices = {name: shape for name, shape in around.items() if len(shape) >= 2}
    tables = [(name, shape[-2:]) for name, shape in matrices.items() if shape[-1] == _hidden(block)]
    if not tables:
        return None
    learned = [each for each in tables if _POSITIONS.search(each[0])]
    others = [each for each in tables if each not in learned]
    if not others:
        return None
    wanted = _number(own.module, _VOCABULARY)
    vocabulary = next((shape[0] for _, shape in others if shape[0] == wanted), max(shape[0] for _, shape in others))
    hidden = others[0][1][1]
    same = [name for name, shape in others if shape[0] == vocabulary]
    positions = max((shape[0] for _, shape in learned), default=0)
    inside = _block_sizes(block, hidden)
    if inside is None:
        return None
    heads = _number(own.module, _HEADS) or max(1, inside["queries"] // 64)
    dropout = _number(own.module, _DROPOUT, kind=float)
    return {
        "model_type": _kind(gated=inside["gated"], positions=positions),
        "hidden_size": hidden,
        "intermediate_size": inside["mlp"],
        "num_hidden_layers": len(repeated),
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, inside["keys"] * heads // inside["queries"]),
        "head_dim": inside["queries"] // heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions or _number(own.module, _LENGTHS) or 2**20,
        "tie_word_embeddings": len(same) < 2,
        "attention_bias": inside["biases"],
        "mlp_bias": inside["biases"],
        **({"dropout": dropout, "attention_dropout": dropout} if dropout is not None else {}),
    }


def _kind(*, gated: bool, positions: int) -> str:
    if gated:
        return "llama"
    return "plain-gpt" if positions else "plain-gpt-rotary"


def _hidden(block: Mapping[str, Shape]) -> int:
    """Return the size that most matrices of a block have in common."""
    counts = Counter(size for shape in block.values() if len(shape) == 2 for size in set(shape))
    return counts.most_common(1)[0][0] if counts else 0


def _block_sizes(block: Mapping[str, Shape], hidden: int) -> dict[str, Any] | None:
    """Return the sizes of a block; None if it has no attention or MLP that is understood."""
    attention = [shape for name, shape in block.items() if len(shape) == 2 and _ATTENTION.search(name)]
    mlp = [
        shape for name, shape in block.items() if len(shape) == 2 and _MLP.search(name) and not _ATTENTION.search(name)
    ]
    if not attention or not mlp:
        return None
    queries = next((inside for outside, inside in reversed(attention) if outside == hidden), hidden)
    projected = sum(outside for outside, inside in attention if inside == hidden)
    projected -= hidden if queries == hidden else 0  # the output projection
    keys = (projected - queries) // 2
    down = next((inside for outside, inside in reversed(mlp) if outside == hidden), 0)
    up = sum(outside for outside, inside in mlp if inside == hidden) - (hidden if down == hidden else 0)
    if keys < 1 or down < 1 or up not in (down, 2 * down):
        return None
    biases = any(len(shape) == 1 and name.endswith("bias") and _MLP.search(name) for name, shape in block.items())
    return {"queries": queries, "keys": keys, "mlp": down, "gated": up == 2 * down, "biases": biases}


def _number(module: Instance, names: tuple[str, ...], kind: type[int] | type[float] = int) -> Any:
    """Return a number that an object inside a module, such as its config, has by one of these names; None without."""
    seen: set[int] = set()
    queue: list[Any] = [module]
    while queue and len(seen) < 400:
        value = queue.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        items = value.values if isinstance(value, Instance) else value.items if isinstance(value, Container) else {}
        for name in names:
            found = items.get(name)
            if type(found) is kind and found >= 0 and (found or kind is float):
                return found
        queue += [item for item in items.values() if isinstance(item, Instance | Container)]
    return None
