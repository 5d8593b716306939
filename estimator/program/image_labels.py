"""Labels of detection, segmentation and depth, as the models of transformers (5.23) take them.

Sources: the models' ``forward``, and transformers' examples run_object_detection.py and run_instance_segmentation.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ..job.settings import Task

LABELLED_TASKS: tuple[Task, ...] = (
    *("object-detection", "instance-segmentation", "universal-segmentation"),
    *("semantic-segmentation", "depth-estimation", "mask-generation"),
)
"""Tasks whose labels say something of parts of an image."""
OBJECTS = 20
"""Objects in an image; COCO has 7 on average. DETR's kind hardly depends on it, of masks each takes a copy."""
IMAGES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("detr", "conditional_detr", "deformable_detr", "table-transformer", "yolos"), (800, 1333)),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine"), (640, 640)),
    "mask2former": (1024, 1024),
    "maskformer": (640, 640),
    "upernet": (512, 512),
    "dpt": (384, 384),
    "glpn": (480, 640),
    "depth_anything": (518, 518),
    "zoedepth": (384, 512),
}
"""Height and width in pixels of an image by model type: what its processor makes (of DETR's the largest landscape
image), and for Mask2Former and MaskFormer the papers' training images of COCO and ADE20K. All take other sizes too."""
_MATCHED = ("object-detection", "instance-segmentation", "universal-segmentation")
"""Tasks whose loss matches objects with predictions."""
_PADDED = ("detr", "conditional_detr", "deformable_detr", "table-transformer", "mask2former", "maskformer")
"""Model types whose processor pads the images of a batch, and says where."""
_WITHOUT_LOSS = ("depth_anything", "dpt", "zoedepth")
"""Model types whose class for depth has no loss."""
_DEPTH = """\
class DepthTrainer(Trainer):
    \"\"\"With the mean absolute error: the model's own class has no loss.\"\"\"

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(pixel_values=inputs["pixel_values"])
        loss = torch.nn.functional.l1_loss(outputs.predicted_depth, inputs["labels"])
        return (loss, outputs) if return_outputs else loss
"""
_MASKS = """\
class MaskTrainer(Trainer):
    \"\"\"With cross entropy and Dice loss of one mask for each box: the model's own class has no loss.\"\"\"

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        labels = inputs.pop("labels")
        outputs = model(**inputs, multimask_output=False)
        masks = outputs.pred_masks.squeeze(2)
        chance, both = masks.sigmoid(), (2, 3)
        overlap = 2 * (chance * labels).sum(both) + 1
        dice = 1 - overlap / (chance.sum(both) + labels.sum(both) + 1)
        loss = dice.mean() + torch.nn.functional.binary_cross_entropy_with_logits(masks, labels)
        return (loss, outputs) if return_outputs else loss
"""
_COLLATE = """\
def collate(items):
    batch = {name: [each[name] for each in items] for name in items[0]}
    return {name: torch.stack(batch[name]) if name in joined else batch[name] for name in batch}
"""


class LabelledImages(msgspec.Struct, frozen=True, kw_only=True):
    """The images and labels of a training script, all of one size."""

    task: Task
    config: Mapping[str, Any]
    """Fields of the config of the model."""
    height: int
    """Pixels."""
    width: int
    """Pixels."""
    comment: str = ""
    """Behind the line that says how large an image is."""

    @property
    def trainer(self) -> str | None:
        """Name of the trainer that has the loss; None: the model has it."""
        if self.task == "mask-generation":
            return "MaskTrainer"
        return "DepthTrainer" if self.task == "depth-estimation" and self._kind in _WITHOUT_LOSS else None

    @property
    def collates(self) -> bool:
        """True if the labels of a batch are a list."""
        return self.task in _MATCHED

    @property
    def needs(self) -> Mapping[str, str]:
        """Packages that transformers imports for such a model, each with the reason."""
        backbone = self.config.get("backbone_config") or {}
        of_timm = self._kind in _PADDED[:4] and self.config.get("use_timm_backbone", "model_type" not in backbone)
        return {
            **({"scipy": "matches objects in the loss"} if self.collates else {}),
            **({"timm": "has the backbone"} if of_timm or backbone.get("model_type") == "timm_backbone" else {}),
        }

    def lines(self) -> Iterator[str]:
        """Yield what makes an item, and the functions and classes that go with it."""
        if self.collates:
            yield f"objects = {OBJECTS}  # in each image; COCO has 7 on average"
        values = self._values()
        yield "item = {"
        for name, value in values.items():
            yield f'    "{name}": {value},{self.comment if name == "pixel_values" else ""}'
        yield "}"
        if self.collates:
            joined = ", ".join(f'"{name}"' for name in values if name.startswith("pixel_"))
            yield f"joined = [{joined}]  # the labels of a batch are a list"
            yield from ("", "", _COLLATE)
        elif self.trainer is not None:
            yield from ("", "", _MASKS if self.task == "mask-generation" else _DEPTH)

    def _values(self) -> dict[str, str]:
        """Return the tensors of an item, by argument of the model."""
        size = f"{self.height}, {self.width}"
        values = {"pixel_values": f"torch.rand(3, {size})"}
        if self._kind in _PADDED:
            values["pixel_mask"] = f"torch.ones({size}, dtype=torch.long)"
        classes = "torch.zeros(objects, dtype=torch.long)"
        if self.task == "object-detection":
            values["labels"] = f'{{"class_labels": {classes}, "boxes": torch.rand(objects, 4)}}'
        elif self.collates:
            values["mask_labels"] = f"torch.randint(2, (objects, {size})).float()"
            values["class_labels"] = classes
        elif self.task == "semantic-segmentation":
            values["labels"] = f"torch.zeros({size}, dtype=torch.long)"
        elif self.task == "depth-estimation":
            values["labels"] = f"torch.rand({size}) + 1"
        else:
            side = self.height // 4  # the mask decoder's
            values["input_boxes"] = f"torch.tensor([[0.0, 0.0, {self.width}.0, {self.height}.0]])"
            values["labels"] = f"torch.randint(2, (1, {side}, {side})).float()"
        return values

    @property
    def _kind(self) -> str:
        return str(self.config["model_type"])
