"""Models whose input is not one text, by name, and the sizes of what they are given."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..common.errors import InputError
from ..job.settings import ModelSpec, Task
from ..model.find_config import ResolvedModel, read_config

_HEADS: Mapping[Task, str] = {
    "image-classification": "ForImageClassification",
    "object-detection": "ForObjectDetection",
    "instance-segmentation": "ForInstanceSegmentation",
    "universal-segmentation": "ForUniversalSegmentation",
    "semantic-segmentation": "ForSemanticSegmentation",
    "depth-estimation": "ForDepthEstimation",
    "mask-generation": "Model",
    "zero-shot-image-classification": "Model",
    "image-text-to-text": "ForConditionalGeneration",
    "speech-seq2seq": "ForConditionalGeneration",
    "ctc": "ForCTC",
}
"""Ends of the names of the classes that have a task's head."""
_OTHER_TASKS: Mapping[str, tuple[Task, ...]] = {
    "table-transformer": ("object-detection",),
    "zoedepth": ("depth-estimation",),
    "dpt": ("semantic-segmentation",),
    "beit": ("semantic-segmentation",),
}
"""Tasks of model types for which no model is named here, but whose checkpoints on disk have scripts."""


class NamedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of transformers that is trained on images, audio or pairs of texts."""

    id: str
    """Hub id."""
    task: Task
    """Task that it is usually trained for."""
    parameters: int | None
    """Published parameter count with the head of that task; None: it is a checkpoint of somebody's own."""
    aliases: tuple[str, ...] = ()
    config: dict[str, Any]
    """The fields of its config.json that differ from the defaults of its class."""
    processed: tuple[int, int] | None = None
    """Height and width that the processor beside its config.json makes of an image; None: there is none."""

    @property
    def label(self) -> str:
        """The last part of its id."""
        return self.id.rpartition("/")[2]

    @property
    def spec(self) -> ModelSpec:
        """The model of its job."""
        return ModelSpec(id=self.id, config=self.config, task=self.task)

    @property
    def usual(self) -> Mapping[str, Any]:
        """Settings of its job where nothing states them, by dotted key."""
        return {}


class InputSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one example's images and audio; None: those that the model was published with."""

    images: int | None = None
    """Number of images."""
    height: int | None = None
    """Pixels."""
    width: int | None = None
    """Pixels."""
    seconds: float | None = None
    """Seconds of audio."""
    frames: int | None = None
    """Frames of a video."""
    channels_last: bool = False
    """The channels of a pixel lie side by side in memory (``torch.channels_last``)."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    model: tuple[NamedModel, ...]


@functools.cache
def named_models() -> tuple[NamedModel, ...]:
    """Return all models of transformers that are known by name and have no closed form."""
    return msgspec.toml.decode(Path(__file__).with_name("named_models.toml").read_bytes(), type=_File).model


def find_named_model(name: str) -> NamedModel | None:
    """Return the model for a name: hub id, its last part, or another name of it, in any case, blanks for dashes."""
    return _by_name().get(name.rstrip("/").casefold().replace(" ", "-"))


def named_by_config(model: ResolvedModel) -> NamedModel | None:
    """Return the model of a checkpoint on disk whose class is that of a named model; None: it is of another class."""
    if model.source not in ("folder", "cache"):
        return None
    kind = str(model.config.get("model_type"))
    named = (each.task for each in named_models() if each.config["model_type"] == kind)
    tasks = [task for task in (*named, *_OTHER_TASKS.get(kind, ())) if task in _HEADS]
    name = next(iter(model.config.get("architectures") or ()), "Model")
    headed = (task for task in tasks if name.endswith(_HEADS[task]))
    task = next(headed, tasks[0] if tasks and name.endswith("Model") else None)
    if task is None:
        return None
    processed = _processed_size(Path(model.where).with_name("preprocessor_config.json"))
    stated = {"dtype", "torch_dtype"} & model.config.keys()
    config = {**model.config} if stated else {**model.config, "torch_dtype": "float32"}  # as older configs leave out
    return NamedModel(id=model.label, task=task, parameters=None, config=config, processed=processed)


def _processed_size(file: Path) -> tuple[int, int] | None:
    """Return height and width of the largest landscape image that a processor makes; None: its file does not say."""
    try:
        fields = read_config(file)
    except InputError:
        return None
    size = fields.get("size")
    sides = {"shortest_edge": size, "longest_edge": fields.get("max_size")} if isinstance(size, int) else size or {}
    height = sides.get("height") or sides.get("shortest_edge") or sides.get("longest_edge")
    width = sides.get("width") or sides.get("longest_edge") or height
    step = fields.get("size_divisor") or 1
    if not isinstance(height, int) or not isinstance(width, int):
        return None
    return -(-height // step) * step, -(-width // step) * step


@functools.cache
def _by_name() -> dict[str, NamedModel]:
    found: dict[str, NamedModel] = {}
    for model in named_models():
        owner = model.id.rpartition("/")[0]
        also = [f"{owner}/{each}" for each in model.aliases if "/" not in each]
        found |= {word.casefold(): model for word in (model.id, model.label, *model.aliases, *also)}
    return found


def _numbers(text: str, most: int, example: str) -> list[int]:
    parts = text.casefold().replace("×", "x").split("x")
    if len(parts) > most or not all(part.isdecimal() and 0 < int(part[:6]) <= 2**14 for part in parts):
        raise InputError(f"{text!r} is no size in pixels, such as {example}")
    return [int(part) for part in parts]


def read_size(what: str, text: str) -> dict[str, Any]:
    """Read a size as it is typed: of ``images``, the ``resolution``, ``seconds`` of audio, ``frames``.

    Raises:
        InputError: it is none.
    """
    if what == "images":
        numbers = _numbers(text, 3, "2x1024x768 (number x height x width), 1024x768 or 2")
        names = {1: ("images",), 2: ("height", "width"), 3: ("images", "height", "width")}[len(numbers)]
        return dict(zip(names, numbers, strict=True))
    if what == "resolution":
        numbers = _numbers(text, 2, "1024, or 1024x768 (height x width)")
        return {"height": numbers[0], "width": numbers[-1]}
    if what == "seconds":
        if not text.replace(".", "", 1).isdecimal() or not 0 < float(text) <= 3600:
            raise InputError(f"{text!r} is no number of seconds, such as 12.5")
        return {"seconds": float(text)}
    if not text.isdecimal() or not 0 < int(text[:6]) <= 2**12:
        raise InputError(f"{text!r} is no number of frames, such as 16")
    return {"frames": int(text)}
