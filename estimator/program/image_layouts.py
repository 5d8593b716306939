"""Images of vision-language models, as their processors in transformers (5.23) give them to the model."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..common.errors import InputError

_USUAL = 1024
"""Pixels of a side of an image where nothing states them and the model takes any size."""
_PATCHES = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16}
"""Pixels of a side of a patch of a model that takes images of any size; four patches make a token."""
_MOST_TOKENS = 16_384
"""Tokens of the largest image: the processors' ``max_pixels`` (``longest_edge``), to which they scale larger ones."""
_LONGEST_SIDE = 1024
"""Pixels to which Pixtral's processor scales the longer side of a larger image."""
_TILES_A_SIDE = 4
"""Number of tiles along the longer side, to which the processors of Idefics3 and SmolVLM scale it (``size``)."""
_SPELLED = 9
"""Tokens of ``<row_1_col_1>`` where the vocabulary has no token of its own for it."""
_OWN_TAGS = 49_280
"""Vocabulary that has such tokens."""
_ONEVISION_TILES = 6
"""Tiles of a side of the largest of LLaVA-OneVision's ``image_grid_pinpoints``, which are all combinations."""
_ONEVISION_MOST = 9
"""Tiles whose tokens an image has at most (``anyres_max_9``)."""
_MLLAMA_TILES = 4


class ImageLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Size and token count of one image, and the image tensors of one training example."""

    height: int
    """Pixels of what the model is given; of a tile, where it is given tiles."""
    width: int
    """Pixels."""
    tokens: int
    """Placeholders of one image in the text."""
    values: Mapping[str, str]
    """Expressions of the tensors beside the text, by argument of the model; ``{images}`` stands for their number."""
    tiles: int = 1
    """Parts of the image that the model is given."""
    marks: int = 0
    """Tokens around its placeholders that the config does not name."""
    joined: bool = True
    """A batch concatenates the images of its examples, instead of stacking them."""


def image_layout(
    label: str, config: Mapping[str, Any], height: int | None, width: int | None, images: int
) -> ImageLayout:
    """Return the layout of an image of a size in pixels; None: of the usual size.

    Raises:
        InputError: the model takes images of another size, or its config lacks what decides how many tokens one takes.
    """
    try:
        return _layout(label, config, height, width, images)
    except KeyError as error:
        raise InputError(
            f"the config.json of {label} does not state {error.args[0]}, which decides how many tokens an image takes"
        ) from None


def _layout(label: str, config: Mapping[str, Any], height: int | None, width: int | None, images: int) -> ImageLayout:
    kind = config["model_type"]
    if kind == "llava" and config["vision_config"].get("model_type") == "pixtral":
        kind = "pixtral"
    if kind in _ANY_SIZE:
        return _ANY_SIZE[kind](config, height or _USUAL, width or _USUAL, images)
    layout = _fixed(config)
    side = layout.height
    if (height or side, width or side) != (side, side):
        raise InputError(
            f"{label} takes images of {side} x {side} pixels, to which its processor scales them; leave out the size"
        )
    return layout


def _fixed(config: Mapping[str, Any]) -> ImageLayout:
    """Return the image layout of a model that takes images of one size only."""
    kind, eyes = config["model_type"], config["vision_config"]
    if kind == "mllama":  # padded to four tiles, and read by the layers that attend to them: one token stands for it
        side = eyes["image_size"]
        values = {
            "pixel_values": f"torch.rand({{images}}, {_MLLAMA_TILES}, 3, {side}, {side})",
            "aspect_ratio_ids": "torch.full(({images},), 6)",
            "aspect_ratio_mask": f"torch.ones({{images}}, {_MLLAMA_TILES}, dtype=torch.long)",
            "cross_attention_mask": f"torch.ones(len(tokens), {{images}}, {_MLLAMA_TILES}, dtype=torch.long)",
        }
        return ImageLayout(height=side, width=side, tokens=1, values=values, tiles=_MLLAMA_TILES, joined=False)
    side = eyes.get("image_size", 448 if kind == "internvl" else 224)
    side = side[0] if isinstance(side, list) else side
    # InternVL: patches of 14, four of which make a token
    stated = 256 if kind == "internvl" else config.get("mm_tokens_per_image")
    types = {"gemma3": "(tokens == image_token).long()", "paligemma": "torch.ones_like(tokens)"}
    values = {"token_type_ids": types[kind]} if kind in types else {}
    values["pixel_values"] = f"torch.rand({{images}}, 3, {side}, {side})"
    return ImageLayout(height=side, width=side, tokens=stated or (side // int(eyes["patch_size"])) ** 2, values=values)


def _of_qwen(config: Mapping[str, Any], height: int, width: int, images: int) -> ImageLayout:
    patch = _PATCHES[config["model_type"]]
    height, width = _scaled(height, width, 2 * patch)
    rows, columns = height // patch, width // patch
    values = {
        "mm_token_type_ids": "(tokens == image_token).long()",
        "pixel_values": f"torch.rand({images * rows * columns}, {3 * 2 * patch * patch})",
        "image_grid_thw": f"torch.tensor([[1, {rows}, {columns}]] * {{images}})",
    }
    return ImageLayout(height=height, width=width, tokens=rows * columns // 4, values=values)


def _scaled(height: int, width: int, multiple: int) -> tuple[int, int]:
    """Return the size to which a processor of Qwen's scales an image (``smart_resize``)."""
    sides, most = (height, width), _MOST_TOKENS * multiple**2
    rounded = [max(multiple, round(side / multiple) * multiple) for side in sides]
    if rounded[0] * rounded[1] > most:
        smaller = math.sqrt(height * width / most)
        rounded = [max(multiple, math.floor(side / smaller / multiple) * multiple) for side in sides]
    return rounded[0], rounded[1]


def _of_pixtral(config: Mapping[str, Any], height: int, width: int, images: int) -> ImageLayout:  # noqa: ARG001
    patch = config["vision_config"].get("patch_size", 16)
    ratio = max(1.0, height / _LONGEST_SIDE, width / _LONGEST_SIDE)
    rows, columns = (math.ceil(math.floor(side / ratio) / patch) for side in (height, width))
    values = {
        "pixel_values": f"torch.rand({{images}}, 3, {rows * patch}, {columns * patch})",
        "image_sizes": f"torch.tensor([[{rows * patch}, {columns * patch}]] * {{images}})",
    }
    # a row ends with [IMG_BREAK], the last one with [IMG_END]
    return ImageLayout(height=rows * patch, width=columns * patch, tokens=rows * columns, values=values, marks=rows)


def _of_idefics(config: Mapping[str, Any], height: int, width: int, images: int) -> ImageLayout:
    eyes, side = config["vision_config"], config["vision_config"]["image_size"]
    larger = _TILES_A_SIDE * side / max(height, width)
    rows, columns = (max(1, math.ceil(int(each * larger) / side)) for each in (height, width))
    tiles = rows * columns + 1  # and the whole image
    tokens = (side // eyes["patch_size"]) ** 2 // config["scale_factor"] ** 2
    tag = 1 if config["text_config"]["vocab_size"] == _OWN_TAGS else _SPELLED
    values = {
        "pixel_values": f"torch.rand({images * tiles}, 3, {side}, {side})",
        "pixel_attention_mask": f"torch.ones({images * tiles}, {side}, {side}, dtype=torch.long)",
    }
    marks = tiles * (1 + tag) + rows + 2  # before each tile, at the end of each row, and of the image
    return ImageLayout(
        height=side, width=side, tokens=tiles * tokens, values=values, tiles=tiles, marks=marks, joined=False
    )


def _of_onevision(config: Mapping[str, Any], height: int, width: int, images: int) -> ImageLayout:
    eyes = config["vision_config"]
    side, patches = eyes["image_size"], eyes["image_size"] // eyes["patch_size"]
    if images > 1:  # of several images, each is one tile and a newline
        values = {"pixel_values": f"torch.rand({{images}}, 1, 3, {side}, {side})"}
        tiles, tokens = 1, patches**2 + 1
        values["batch_num_images"] = "torch.tensor([{images}])"
    else:
        rows, columns = _best_grid(height, width, side)
        tiles, tokens = rows * columns + 1, patches**2 + _kept_tokens(height, width, rows, columns, patches)
        values = {"pixel_values": f"torch.rand({{images}}, {tiles}, 3, {side}, {side})"}
    values["image_sizes"] = f"torch.tensor([[{height}, {width}]] * {{images}})"
    return ImageLayout(height=side, width=side, tokens=tokens, values=values, tiles=tiles)


def _best_grid(height: int, width: int, side: int) -> tuple[int, int]:
    """Return the rows and columns of tiles that keep most pixels, and waste fewest (``select_best_resolution``)."""

    def fitness(grid: tuple[int, int]) -> tuple[int, int]:
        room = grid[0] * side, grid[1] * side
        scale = min(room[0] / height, room[1] / width)
        kept = min(int(height * scale) * int(width * scale), height * width)
        return kept, kept - room[0] * room[1]

    sides = range(1, _ONEVISION_TILES + 1)
    return max(((rows, columns) for rows in sides for columns in sides), key=fitness)


def _kept_tokens(height: int, width: int, rows: int, columns: int, patches: int) -> int:
    """Return the tokens of an image's tiles without their padding, and the newlines (``_get_unpadded_features``)."""
    tall, wide = patches * rows, patches * columns
    if width / height > wide / tall:
        tall -= (tall - int(round(height * (wide / width), 7))) // 2 * 2
    else:
        wide -= (wide - int(round(width * (tall / height), 7))) // 2 * 2
    ratio = math.sqrt(tall * wide / (_ONEVISION_MOST * patches**2))
    if ratio > 1.1:
        tall, wide = int(tall // ratio), int(wide // ratio)
    return tall * wide + tall


_ANY_SIZE: Mapping[str, Callable[[Mapping[str, Any], int, int, int], ImageLayout]] = {
    **dict.fromkeys(_PATCHES, _of_qwen),
    "pixtral": _of_pixtral,
    "idefics3": _of_idefics,
    "smolvlm": _of_idefics,
    "llava_onevision": _of_onevision,
}
"""Layouts of models that take images of any size."""
