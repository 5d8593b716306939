"""Training script of a model that is given images, audio or pairs of texts: transformers' Trainer on such items.

Shapes are those that the model's processor in transformers (5.23) makes of an image or a recording of the given size.
"""

import math
from collections.abc import Collection, Iterator

from ..common.errors import InputError
from ..common.records import replace
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..model.find_config import ResolvedModel
from .image_labels import IMAGES, LABELLED_TASKS, LabelledImages
from .image_layouts import ImageLayout, image_layout
from .named_models import InputSizes
from .training_script import How, TrainerScript, require_expressible

MEDIA_TASKS = (
    "image-classification",
    "zero-shot-image-classification",
    "image-text-to-text",
    *LABELLED_TASKS,
    "speech-seq2seq",
    "ctc",
    "feature-extraction",
)
_READ_IMAGES = MEDIA_TASKS[: 3 + len(LABELLED_TASKS)]
_TAKES_ANY_SIZE = frozenset(("dinov2", "convnext", "segformer", *IMAGES))
"""Model types that take images of another size than their config's: DINOv2 interpolates its positions."""
_CROPPED = {"dinov2": 224}
"""Pixels to which a processor scales images, where the config has another size."""
_IMAGES = {"segformer": 512, "sam": 1024}
"""Pixels of a side of an image where the config does not say it, unless it is 224."""
_RATE = 16_000
"""Samples in a second of audio."""
_WHISPER_SECONDS, _SPEECH_SECONDS = 30, 15
_TEXT_BESIDE_IMAGES = 512
_JOINED = ("pixel_values", "image_grid_thw", "image_sizes", "batch_num_images")
_SENTENCES = {"all-MiniLM-L6-v2": 256, "all-MiniLM-L12-v2": 128, "all-mpnet-base-v2": 384}
"""Tokens to which a model's ``sentence_bert_config.json`` cuts a text, where it takes longer ones."""
_LONGEST_SENTENCE = 512
_CONTRASTIVE = """\
class SentenceTrainer(Trainer):
    \"\"\"With the loss that sentence-transformers calls MultipleNegativesRankingLoss.\"\"\"

    def embed(self, model, ids):
        mask = torch.ones_like(ids)
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        mask = mask.unsqueeze(-1).expand(states.shape).to(states.dtype)
        means = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(means)

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        anchors, positives = (self.embed(model, inputs[name]) for name in ("anchor", "positive"))
        scores = 20 * anchors @ positives.T
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
        return (loss, {"scores": scores}) if return_outputs else loss
"""


def media_script(
    job: Job,
    model: ResolvedModel,
    *,
    sizes: InputSizes | None = None,
    processed: tuple[int, int] | None = None,
    how: How = How(),  # noqa: B008 - frozen
) -> str:
    """Return the script.

    Args:
        job: a job that trains a model on images or audio.
        model: its config.
        sizes: of the images and the audio; None: those that the model was published with.
        processed: height and width that the processor beside the config makes; None: there is none.
        how: choices of how it is written and run.

    Raises:
        InputError: the model has no such input, or takes it in another size.
        CannotTellError: no such script stands for the job; the sentence names the setting.
    """
    resolved = resolve_job(job)
    require_expressible(resolved, MEDIA_TASKS)
    return _MediaScript(resolved, model, how, sizes or InputSizes(), processed).text()


def input_words(
    job: Job,
    model: ResolvedModel,
    sizes: InputSizes,
    stated: Collection[str] | None,
    processed: tuple[int, int] | None = None,
) -> str:
    """Return one example of the job in words, such as ``1 image of 224 x 224 pixels``."""
    return _MediaScript(resolve_job(job), model, How(stated), sizes, processed).input_words()


class _MediaScript(TrainerScript):
    """The script of a text model with another batch."""

    def __init__(
        self,
        job: ResolvedJob,
        model: ResolvedModel,
        how: How,
        sizes: InputSizes,
        processed: tuple[int, int] | None,
    ) -> None:
        super().__init__(job, model, how)
        self._sizes, self._processed = sizes, processed
        self._collates = False
        kind, task = model.config["model_type"], job.model.task
        if task == "feature-extraction":
            self._trainer = replace(self._trainer, name="SentenceTrainer")
            if sizes != InputSizes():
                raise InputError(f"{model.label} is given texts; leave out the size of images or audio")
        elif task not in _READ_IMAGES and (sizes.images or sizes.height):
            raise InputError(f"--images and --resolution mean nothing for {model.label}, which is given audio")
        if task in _READ_IMAGES and sizes.seconds:
            raise InputError(f"--seconds means nothing for {model.label}, which is given images")
        if task != "image-text-to-text" and (sizes.images or 1) > 1:
            raise InputError(f"{model.label} is given one image in each example; --batch N gives it N of them")
        self._labelled = self._labels() if task in LABELLED_TASKS else None
        if self._labelled is not None:
            self._collates = self._labelled.collates
            self._imports |= set(self._labelled.needs)
            self._trainer = replace(self._trainer, name=self._labelled.trainer or self._trainer.name)
        if kind == "whisper" and sizes.seconds not in (None, _WHISPER_SECONDS):
            raise InputError(f"{model.label} pads or cuts audio to {_WHISPER_SECONDS} seconds; leave out --seconds")

    @property
    def _names_other_blocks(self) -> bool:
        return True

    def _image(self) -> tuple[int, int]:
        """Return height and width of an image in pixels, as the processor leaves it."""
        config, kind = self._model.config, self._model.config["model_type"]
        height, width = self._sizes.height, self._sizes.width
        part = config.get("vision_config", config)
        if kind in IMAGES:
            usual = self._processed or IMAGES[kind]
            wanted = height or usual[0], width or usual[1]
            if kind == "dpt" and wanted[0] != wanted[1]:  # its neck lays its tokens out as a square
                raise InputError(f"{self._model.label} takes square images only; give one side, such as 384")
            return wanted
        fixed = part.get("image_size", _IMAGES.get(kind, 224))
        wanted = (height or fixed, width or fixed)
        if kind in _CROPPED and height is None:
            wanted = (_CROPPED[kind], _CROPPED[kind])
        if wanted != (fixed, fixed) and kind not in _TAKES_ANY_SIZE:
            raise InputError(
                f"{self._model.label} takes images of {fixed} x {fixed} pixels, to which its processor scales them; "
                "leave out the size"
            )
        return wanted

    def _labels(self) -> LabelledImages:
        (height, width), task, config = self._image(), self._job.model.task, self._model.config
        comment = "" if self._sizes.height else "  # not set: the size of its processor, or of its paper's training"
        return LabelledImages(task=task, config=config, height=height, width=width, comment=comment)

    def _import_lines(self) -> str:
        lines = super()._import_lines()
        for name, why in () if self._labelled is None else self._labelled.needs.items():
            lines = lines.replace(f"import {name}", f"import {name}  # noqa: F401 - {why}")
        return lines

    def _layout(self) -> ImageLayout:
        """Return what the processor makes of one image beside a text."""
        sizes = self._sizes
        return image_layout(self._model.label, self._model.config, sizes.height, sizes.width, sizes.images or 1)

    def input_words(self) -> str:
        """Return what an example is, in words."""
        task = self._job.model.task
        if task == "speech-seq2seq":
            return f"{_WHISPER_SECONDS} s of audio"
        if task == "ctc":
            return f"{self._sizes.seconds or _SPEECH_SECONDS:g} s of audio"
        if task == "feature-extraction":
            return f"2 texts of {self._sentence()} tokens"
        if task == "image-text-to-text":
            return f"{self._images_in_words()} in {self._length():,} tokens"
        height, width = self._image()
        return f"1 image of {height} x {width} pixels"

    def _images_in_words(self) -> str:
        images, layout = self._sizes.images or 1, self._layout()
        tiles = f"in {layout.tiles} tiles of" if layout.tiles > 1 else "of"
        return f"{images} image{'s' if images > 1 else ''} {tiles} {layout.height} x {layout.width} pixels"

    def _sentence(self) -> int:
        """Return the tokens of a text: as many as the model takes, where nobody said it."""
        if self._stated is None or "training.sequence_length" in self._stated:
            return self._job.training.sequence_length
        return _SENTENCES.get((self._job.model.id or "").rpartition("/")[2], _LONGEST_SENTENCE)

    def _length(self) -> int:
        """Return the tokens of a sequence, those of its images among them."""
        beside = self._beside()
        if self._stated is not None and "training.sequence_length" not in self._stated:
            return beside + _TEXT_BESIDE_IMAGES
        length = self._job.training.sequence_length
        if length <= beside:
            raise InputError(f"the images take {beside:,} tokens, which do not fit in --seq-len {length:,}")
        return length

    def _beside(self) -> int:
        """Return the tokens of all images, with those at their ends."""
        layout = self._layout()
        return (self._sizes.images or 1) * (layout.tokens + layout.marks + len(self._ends()))

    def _ends(self) -> list[int]:
        """Return the tokens before and after an image."""
        keys = ("vision_start_token_id", "vision_end_token_id", "boi_token_index", "eoi_token_index")
        return [self._model.config[key] for key in keys if key in self._model.config]

    def _data(self) -> Iterator[str]:
        task = self._job.model.task
        if task == "image-classification":
            height, width = self._image()
            yield f'item = {{"pixel_values": torch.rand(3, {height}, {width}), "labels": 0}}'
        elif self._labelled is not None:
            yield from self._labelled.lines()
        elif task == "feature-extraction":
            comment = self._comment("training.sequence_length", "as many as the model takes")
            yield f"text = torch.randint(1000, 30000, ({self._sentence()},)){comment}"
            yield 'item = {"anchor": text, "positive": text}'
            yield ""
            yield ""
            yield _CONTRASTIVE
        elif task == "zero-shot-image-classification":
            yield from self._pair()
        elif task == "image-text-to-text":
            yield from self._conversation()
        elif task == "speech-seq2seq":
            mels, vocab = self._model.config["num_mel_bins"], self._model.config["vocab_size"]
            most = self._model.config.get("max_target_positions", 448)
            yield f"# {_WHISPER_SECONDS} s of audio: 100 frames a second; the longest transcript that the model takes"
            yield f'item = {{"input_features": torch.randn({mels}, {_WHISPER_SECONDS * 100}),'
            yield f'        "labels": torch.randint({vocab}, ({most},))}}'
        else:
            seconds = self._sizes.seconds or _SPEECH_SECONDS
            yield f"# {seconds:g} s of audio, with 15 letters a second"
            yield f'item = {{"input_values": torch.randn({math.ceil(seconds * _RATE)}),'
            yield f'        "labels": torch.randint(1, 32, ({math.ceil(seconds * 15)},))}}'

    def _pair(self) -> Iterator[str]:
        self._collates = True
        height, width = self._image()
        length = 77 if self._model.config["model_type"] == "clip" else 64
        yield f'item = {{"pixel_values": torch.rand(3, {height}, {width}),'
        yield f'        "input_ids": torch.randint(2, 30000, ({length},))}}'
        yield ""
        yield ""
        yield "def collate(items):"
        yield "    batch = {name: torch.stack([each[name] for each in items]) for name in items[0]}"
        yield '    return {**batch, "return_loss": True}'
        yield ""

    def _conversation(self) -> Iterator[str]:
        self._collates = True
        config, layout, images = self._model.config, self._layout(), self._sizes.images or 1
        beside, length = self._beside(), self._length()
        image = config.get("image_token_id", config.get("image_token_index"))
        if image is None:
            raise InputError(f"the config.json of {self._model.label} does not state image_token_id")
        ends = [f"[{each}]" for each in self._ends()]
        marks = [f"[5] * {layout.marks}"] if layout.marks else []
        words = f"{layout.tokens:,} tokens" if layout.tokens > 1 else "one token"
        yield f"image_token = {image}  # {self._images_in_words()}: {words} each"
        yield f"image = {' + '.join([*ends[:1], f'[image_token] * {layout.tokens}', *marks, *ends[1:]])}"
        comment = self._comment("training.sequence_length", f"{_TEXT_BESIDE_IMAGES} tokens of text")
        yield f"tokens = torch.tensor(image * {images} + [5] * {length - beside}){comment}"
        yield "item = {"
        yield '    "input_ids": tokens,'
        yield '    "labels": tokens.masked_fill(tokens == image_token, -100),'
        for name, tensor in layout.values.items():
            yield f'    "{name}": {tensor.format(images=images)},'
        yield "}"
        yield ""
        yield ""
        yield "def collate(items):"
        if layout.joined:
            joined = ", ".join(f'"{name}"' for name in layout.values if name in _JOINED)
            yield f"    joined = [{joined}]  # the images of all items one after the other"
            yield "    return {"
            yield "        name: (torch.cat if name in joined else torch.stack)([each[name] for each in items])"
            yield "        for name in items[0]"
            yield "    }"
        else:
            yield "    return {name: torch.stack([each[name] for each in items]) for name in items[0]}"
        yield ""

    def _arguments(self) -> Iterator[str]:
        yield from super()._arguments()
        if self._job.model.task in ("feature-extraction", "mask-generation"):
            yield "remove_unused_columns=False,  # which the model itself does not take"
        if self._model.config["model_type"] == "glpn":
            yield "average_tokens_across_devices=False,  # would scale the loss in place, a root that backward needs"

    def _given(self, has_optimizer: bool) -> Iterator[str]:
        yield from super()._given(has_optimizer)
        if self._collates:
            yield "data_collator=collate"
