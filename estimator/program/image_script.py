"""Training scripts of torchvision's and timm's models, in the order of the libraries' own training scripts.

Sources: references/classification/train.py, references/segmentation/train.py, references/detection/train.py and
references/video_classification/train.py of torchvision 0.29, and train.py of timm 1.0.31, with their defaults.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..common.errors import InputError
from ..job.job import Job
from ..job.settings import ModelSpec
from ..model.find_config import resolve_model
from .loop_script import LoopScript
from .named_models import InputSizes
from .training_script import How, not_written

_SEGMENTATION, _VIDEO = "torchvision.models.segmentation", "torchvision.models.video"
_DETECTION = "torchvision.models.detection"
_UNREHEARSED = {
    "torchvision.models.optical_flow": "its loop has no script yet",
    "torchvision.models.quantization": "its weights are quantized after the training",
}
_CROPS = {"inception_v3": 299}
"""Pixels of a side of torchvision's training images where they are not 224: as its README says."""
_CLIPS = {"mvit": (16, 224), "swin3d": (32, 224)}
"""Frames and pixels of clips, by the beginning of a name; of all others 16 and 112, the script's defaults."""
_SIZED = {"vit_": "image_size={height}", "maxvit": "input_size=({height}, {width})"}
"""Arguments of torchvision's models that are built for a size, by the beginning of their name."""
_SEVERAL_OUTPUTS = ("googlenet", "inception_v3")
_LARGEST = (800, 1333)
"""Height and width of the largest images that torchvision's detectors make of theirs, but those of one size."""
_OBJECTS = 8
"""Objects in an image: COCO has 7.3 (arXiv 1405.0312, section 5)."""


class LibraryModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that torchvision or timm builds by name."""

    name: str
    """Name that its library takes."""
    module: str
    """Module that defines it: ``torchvision.models.resnet``, ``timm.models.vision_transformer``."""
    python: Path
    """Interpreter that has it."""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name

    def loop(self, *, adapts: bool) -> str:  # noqa: ARG002 - no such model has adapters
        """Return the name of the script whose loop trains it, in words."""
        return f"{self.module.partition('.')[0]}'s training script"

    @property
    def spec(self) -> ModelSpec:
        """The model of its job."""
        config = {"model_type": self.module.partition(".")[0], "torch_dtype": "float32"}
        return ModelSpec(id=self.name, task="image-classification", config=config)

    @property
    def usual(self) -> Mapping[str, Any]:
        """Settings of its job where nothing states them, by dotted key."""
        return {}


def image_script(
    job: Job,
    model: LibraryModel,
    *,
    sizes: InputSizes | None = None,
    how: How = How(),  # noqa: B008 - frozen
) -> str:
    """Return the script.

    Args:
        job: a job that trains the model.
        model: the model.
        sizes: of its images; None: those of the library's training script.
        how: choices of how it is written and run.

    Raises:
        InputError: the model has no such input.
        CannotTellError: no such script stands for the job; the sentence names the setting.
    """
    kind = _DetectionScript if model.module.startswith(_DETECTION) else _ImageScript
    return kind(job, model, sizes or InputSizes(), how).text()


def image_words(model: LibraryModel, sizes: InputSizes) -> str:
    """Return one example in words, such as ``1 image of 224 x 224 pixels``."""
    if model.module.startswith("timm") and sizes.height is None:
        return "1 image of the size that timm has for it"
    frames, height, width = _shape(model, sizes)
    clip = f"{frames} frames" if frames else "1 image"
    return f"{clip} of {height} x {width} pixels"


def _shape(model: LibraryModel, sizes: InputSizes) -> tuple[int | None, int, int]:
    """Return frames, height and width of an example of torchvision's."""
    if model.module.startswith(_DETECTION):
        height, width = _one_size(model) or _LARGEST
        return None, sizes.height or height, sizes.width or width
    frames, side = None, _CROPS.get(model.name, 480 if model.module.startswith(_SEGMENTATION) else 224)
    if model.module.startswith(_VIDEO):
        frames, side = next((size for start, size in _CLIPS.items() if model.name.startswith(start)), (16, 112))
        frames = sizes.frames or frames
    return frames, sizes.height or side, sizes.width or side


def _one_size(model: LibraryModel) -> tuple[int, int] | None:
    """Return the only size that a detector takes: ``ssd300``, ``ssdlite320``; None: it takes any."""
    found = re.match(r"ssd\D*(\d+)_", model.name)
    return (int(found[1]), int(found[1])) if found else None


class _ImageScript(LoopScript):
    tunes_cudnn = True
    """cuDNN tries its algorithms, as the library's training script lets it."""
    trained = "model.parameters()"
    rate = 0.1
    given = "image"

    def __init__(self, job: Job, model: LibraryModel, sizes: InputSizes, how: How) -> None:
        self._named, self._sizes = model, sizes
        self._is_timm = model.module.startswith("timm")
        if self._is_timm:
            self.places = frozenset(("training.activation_checkpointing",))
        super().__init__(job, resolve_model(job.model), how)
        for start, why in _UNREHEARSED.items():
            if model.module.startswith(start):
                raise not_written(why, model.name)
        if (sizes.images or 1) > 1 or sizes.seconds:
            raise InputError(f"{model.name} is given one image in each example; --batch N gives it N of them")
        if sizes.frames and not model.module.startswith(_VIDEO):
            raise InputError(f"--frames means nothing for {model.name}, which is given images")
        if self._job.training.activation_checkpointing == "selective":
            raise not_written("timm checkpoints whole blocks")

    def _parts(self) -> Iterable[Iterable[str]]:
        tuned = ["torch.backends.cudnn.benchmark = True"] if self.tunes_cudnn else []
        return [*self._device_lines(), *tuned], self._made(), self._loader(), self._loop()

    def _made(self) -> Iterator[str]:
        job = self._job
        yield from self._of_timm() if self._is_timm else self._of_torchvision()
        layout = ", memory_format=torch.channels_last" if self._sizes.channels_last else ""
        dtype = f", dtype=torch.{job.precision.dtype}" if job.precision.half_weights else ""
        yield f"model.to(device{dtype}{layout})"
        if job.training.activation_checkpointing == "full":
            yield "model.set_grad_checkpointing()"
        if self._is_timm:
            if not self._has_optimizer:
                self._imports.add("timm.optim.create_optimizer_v2")
            usual = 'create_optimizer_v2(model, opt="sgd", lr=0.1, momentum=0.9, weight_decay=2e-5)'
        else:
            usual = f"torch.optim.SGD({self.trained}, lr={self.rate}, momentum=0.9, weight_decay=1e-4)"
        comment = "" if self._has_optimizer else "  # not set: the default of its training script"
        yield f"optimizer = {self._optimizer_of(self.trained, usual)}{comment}"
        if job.parallel.world_size > 1:
            yield "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])"
        if job.training.compile:
            yield "model = torch.compile(model)"
        if self._is_mixed and job.precision.dtype == "float16":
            yield "scaler = torch.amp.GradScaler(device.type)"
        yield from self._criterion()

    def _criterion(self) -> Iterator[str]:
        yield f"criterion = {'LabelSmoothingCrossEntropy(0.1)' if self._is_timm else 'torch.nn.CrossEntropyLoss()'}"

    def _of_torchvision(self) -> Iterator[str]:
        self._imports.add("torchvision")
        name = self._named.name
        classes, height, width = self._classes(), *_shape(self._named, self._sizes)[1:]
        backbone = ", weights_backbone=None" if self._named.module.startswith(_SEGMENTATION) else ""
        sized = next((text for start, text in _SIZED.items() if name.startswith(start)), "")
        size = f", {sized.format(height=height, width=width)}" if sized and self._sizes.height else ""
        if "image_size" in size and height != width:
            raise InputError(f"{name} takes square images only; leave out the size or give one side")
        yield f'model = torchvision.models.get_model("{name}", weights=None{backbone}, num_classes={classes}{size})'

    def _of_timm(self) -> Iterator[str]:
        self._imports |= {"timm", "timm.data.loader.PrefetchLoader", "timm.loss.LabelSmoothingCrossEntropy"}
        labels = self._job.model.num_labels
        yield f'model = timm.create_model("{self._named.name}"{f", num_classes={labels}" if labels else ""})'
        if self._sizes.height:
            yield f"size = {self._sizes.height}, {self._sizes.width}"
            yield 'if hasattr(model, "set_input_size"):'
            yield "    model.set_input_size(img_size=size)"

    def _classes(self) -> int:
        usual = 21 if self._named.module.startswith(_SEGMENTATION) else 400 if self._is_video else 1000
        return self._job.model.num_labels or usual

    @property
    def _is_video(self) -> bool:
        return self._named.module.startswith(_VIDEO)

    def _loader(self) -> Iterator[str]:
        batch = self._job.training.micro_batch
        comment = self._comment("training.micro_batch")
        yield f"batch = {batch}{comment}"
        if self._is_timm:
            if not self._sizes.height:
                self._imports.add("timm.data.resolve_data_config")
            shape = "3, *size" if self._sizes.height else '*resolve_data_config({}, model=model)["input_size"]'
            yield f"images = torch.randint(256, (batch, {shape}), dtype=torch.uint8)"
            yield "loader = [(images, torch.zeros(batch, dtype=torch.long))] * " + str(self._steps)
            dtype = f", img_dtype=torch.{self._job.precision.dtype}" if self._job.precision.half_weights else ""
            yield f"loader = PrefetchLoader(loader, device=device{dtype})  # has the next batch on the GPU already"
            return
        frames, height, width = _shape(self._named, self._sizes)
        clip = f"{frames}, " if frames else ""
        labels = f"batch, {height}, {width}" if self._named.module.startswith(_SEGMENTATION) else "batch"
        yield f"images = torch.rand(batch, 3, {clip}{height}, {width})"
        yield f"loader = [(images, torch.zeros({labels}, dtype=torch.long))] * {self._steps}"

    def _loop(self) -> Iterator[str]:
        accumulated, scaled = self._job.training.gradient_accumulation, self._job.precision.dtype == "float16"
        scaled = scaled and self._is_mixed
        yield "model.train()"
        yield "for step, (image, target) in enumerate(loader):" if accumulated > 1 else "for image, target in loader:"
        yield from self._moved()
        inner = "    "
        if self._is_mixed:
            yield f"    with torch.autocast(device.type, dtype=torch.{self._job.precision.dtype}):"
            inner = "        "
        yield f"{inner}output = model({self.given})"
        yield f"{inner}loss = {self._loss()}{f' / {accumulated}' if accumulated > 1 else ''}"
        if not self._is_timm and accumulated == 1:
            yield "    optimizer.zero_grad()"
        yield f"    {'scaler.scale(loss)' if scaled else 'loss'}.backward()"
        if accumulated > 1:
            yield f"    if (step + 1) % {accumulated} == 0:"
        inner = "        " if accumulated > 1 else "    "
        yield f"{inner}{'scaler.step(optimizer)' if scaled else 'optimizer.step()'}"
        if scaled:
            yield f"{inner}scaler.update()"
        if self._is_timm or accumulated > 1:
            yield f"{inner}optimizer.zero_grad()"

    def _moved(self) -> Iterator[str]:
        if not self._is_timm:
            dtype = f".to(torch.{self._job.precision.dtype})" if self._job.precision.half_weights else ""
            yield f"    image, target = image.to(device){dtype}, target.to(device)"
        if self._sizes.channels_last:
            yield "    image = image.contiguous(memory_format=torch.channels_last)"

    def _loss(self) -> str:
        if self._named.module.startswith(_SEGMENTATION):
            return 'torch.nn.functional.cross_entropy(output["out"], target, ignore_index=255)'
        if not self._is_timm and self._named.name in _SEVERAL_OUTPUTS:
            return "sum(criterion(each, target) for each in output)"
        return "criterion(output, target)"


class _DetectionScript(_ImageScript):
    """The loop of a detector, which is given lists of images and of their objects, and returns its losses."""

    tunes_cudnn = False
    trained = "trained"
    rate = 0.02
    given = "image, target"

    def _of_torchvision(self) -> Iterator[str]:
        self._imports.add("torchvision")
        if self._job.precision.half_weights or self._sizes.channels_last:
            raise not_written("its training script has weights in fp32, and no channels-last", self._named.name)
        size = ""
        if self._sizes.height:
            if _one_size(self._named):
                raise InputError(f"{self._named.name} makes all images the same size; leave out the size")
            height, width = _shape(self._named, self._sizes)[1:]
            size = f", min_size={min(height, width)}, max_size={max(height, width)}"
        yield "# a pretrained backbone, as with its training script: the last layers are trained, no batch norm is"
        yield (
            f'model = torchvision.models.get_model("{self._named.name}", weights=None, weights_backbone="DEFAULT", '
            f"num_classes={self._classes()}{size})"
        )
        yield "trained = [each for each in model.parameters() if each.requires_grad]"

    def _classes(self) -> int:
        return self._job.model.num_labels or (2 if "keypoint" in self._named.name else 91)

    def _criterion(self) -> Iterator[str]:
        return iter(())

    def _loader(self) -> Iterator[str]:
        _, height, width = _shape(self._named, self._sizes)
        yield f"batch, objects = {self._job.training.micro_batch}, {_OBJECTS}{self._comment('training.micro_batch')}"
        if not self._sizes.height and not _one_size(self._named):
            yield "# the largest images that the model makes of those of a set"
        yield f"image = torch.rand(3, {height}, {width})"
        yield f"box = torch.tensor([0.25 * {width}, 0.25 * {height}, 0.75 * {width}, 0.75 * {height}])"
        yield 'target = {"boxes": box.repeat(objects, 1), "labels": torch.ones(objects, dtype=torch.long)}'
        if "mask" in self._named.name:
            yield f'target["masks"] = torch.zeros(objects, {height}, {width}, dtype=torch.uint8)'
        if "keypoint" in self._named.name:
            yield f'target["keypoints"] = torch.tensor([0.5 * {width}, 0.5 * {height}, 1.0]).repeat(objects, 17, 1)'
        yield f"loader = [([image] * batch, [target] * batch)] * {self._steps}"

    def _moved(self) -> Iterator[str]:
        yield "    image = [each.to(device) for each in image]"
        yield "    target = [{name: each.to(device) for name, each in one.items()} for one in target]"

    def _loss(self) -> str:
        return "sum(output.values())"
