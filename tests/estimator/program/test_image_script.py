"""Scripts of torchvision's and timm's models: they take on the CPU what their rehearsal says."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rehearsed import rehearse_script_beside_cpu

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.program.image_script import LibraryModel, image_script, image_words
from vramtop.estimator.program.named_models import InputSizes
from vramtop.estimator.program.training_script import How
from vramtop.estimator.trace.installed_packages import image_model

PYTHON = Path(sys.executable)
TORCHVISION = {
    "torchvision/__init__.py": "from . import models\n",
    "torchvision/models/__init__.py": """
import torch
class Net(torch.nn.Sequential):
    segments = detects = False
    def forward(self, image, target=None):
        if self.detects:
            losses = super().forward(torch.stack(image)), torch.stack([each["boxes"] for each in target])
            return {"classes": losses[0].square().mean(), "boxes": losses[1].mean()}
        if not self.segments:
            return super().forward(image)
        return {"out": torch.nn.functional.interpolate(self[:3](image), scale_factor=2)}
def get_model(name, *, weights, num_classes, weights_backbone=None, **_):
    layers = [torch.nn.Conv2d(3, 16, 7, 2, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU()]
    net = Net(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, num_classes))
    net.segments, net.detects = "fcn" in name, "rcnn" in name
    net[0].bias.requires_grad = not net.detects
    return net
""",
    "torchvision/models/resnet.py": """
def register_model():
    return lambda function: function
def handle_legacy_interface(**_):
    return lambda function: function
@register_model()
@handle_legacy_interface(
    weights=("pretrained", None),
)
def resnet7(*, weights=None):
    pass
def _resnet(block):
    pass
""",
}
"""A package with torchvision's layout and another network."""


def has(package: str) -> bool:
    try:
        return import_module(package) is not None
    except (ImportError, RuntimeError):  # torchvision's operators need CUDA
        return False


def resnet(name: str = "resnet7", module: str = "torchvision.models.resnet") -> LibraryModel:
    return LibraryModel(name=name, module=module, python=PYTHON)


def script_of(model: LibraryModel, changes: dict[str, Any] | None = None, **options: Any) -> str:
    job = with_changes(Job(model=model.spec), {"training.micro_batch": 4, **(changes or {})})
    return image_script(job, model, sizes=options.pop("sizes", None), how=How(steps=3, **options))


@pytest.fixture
def package(in_folder: Path, monkeypatch) -> Path:
    for name, text in TORCHVISION.items():
        path = in_folder / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(in_folder / "site"))
    return in_folder


def test_a_library_is_found_by_its_sources(package: Path) -> None:
    assert image_model("resnet7", (PYTHON,)) == ("resnet7", "torchvision.models.resnet", PYTHON)
    assert image_model("torchvision/resnet7", (PYTHON,)) == ("resnet7", "torchvision.models.resnet", PYTHON)
    assert image_model("_resnet", (PYTHON,)) is None


CHANGES = [
    {},
    *(
        pytest.param(changes, marks=pytest.mark.slow)
        for changes in (
            {"training.gradient_accumulation": 2, "training.optimizer": "adamw"},
            {"training.precision": "bf16-mixed"},
            {"training.precision": "bf16"},
        )
    ),
]


@pytest.mark.usefixtures("quick_rehearsals")
@pytest.mark.parametrize("changes", CHANGES, ids=lambda each: "-".join(map(str, each.values())) or "fp32")
def test_its_rehearsal_takes_what_a_real_run_takes(changes: dict[str, Any], package: Path) -> None:
    cast = changes.get("training.precision") == "bf16"
    script = script_of(resnet(), changes, sizes=InputSizes(height=64, width=96))
    rehearse_script_beside_cpu(script, host_bytes=4 * 3 * 64 * 96 * 4 if cast else 0, ranks=1)


@pytest.mark.usefixtures("quick_rehearsals")
def test_a_segmentation_has_a_class_for_each_pixel(package: Path) -> None:
    model = resnet("fcn_resnet7", "torchvision.models.segmentation.fcn")
    script = script_of(model, sizes=InputSizes(height=32, width=48))
    assert "torch.zeros(batch, 32, 48, dtype=torch.long)" in script
    assert "num_classes=21" in script
    assert image_words(model, InputSizes()) == "1 image of 480 x 480 pixels"
    rehearse_script_beside_cpu(script, host_bytes=0, ranks=1)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_rehearsals")
def test_a_detector_is_given_lists_and_returns_its_losses(package: Path) -> None:
    model = resnet("maskrcnn_resnet7", "torchvision.models.detection.mask_rcnn")
    script = script_of(model, {"training.precision": "fp16-mixed"}, sizes=InputSizes(height=64, width=96))
    assert "num_classes=91, min_size=64, max_size=96)" in script
    assert "torch.zeros(objects, 64, 96, dtype=torch.uint8)" in script
    assert image_words(model, InputSizes()) == "1 image of 800 x 1333 pixels"
    rehearse_script_beside_cpu(
        script, host_bytes=-3 * (4 * 3 + 8) * 64 * 96, ranks=1
    )  # the CPU copies no image or mask
    with pytest.raises(InputError, match="makes all images the same size"):
        script_of(resnet("ssd300_vgg7", "torchvision.models.detection.ssd"), sizes=InputSizes(height=64, width=96))


@pytest.mark.skipif(not has("timm"), reason="timm and torchvision cannot be imported")
@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_convnext", "test_efficientnet"])
def test_models_of_timm_take_what_a_real_run_takes(name: str, in_folder: Path) -> None:
    found = image_model(name, (PYTHON,))
    side = 96 if name == "test_vit" else 160  # timm's own size of these models
    sizes = InputSizes(height=side, width=side) if name == "test_vit" else InputSizes()
    changes = CHANGES[1] if name == "test_convnext" else {}
    script = script_of(resnet(*found[:2]), changes, sizes=sizes)
    rehearse_script_beside_cpu(script, host_bytes=4 * 3 * side * side, ranks=1)


def test_the_library_has_the_sizes_of_its_own_script() -> None:
    assert "torch.rand(batch, 3, 224, 224)" in script_of(resnet())
    assert "torch.rand(batch, 3, 299, 299)" in script_of(resnet("inception_v3"))
    video = resnet("mvit_v1_b", "torchvision.models.video.mvit")
    assert "torch.rand(batch, 3, 16, 224, 224)" in script_of(video)
    assert "torch.rand(batch, 3, 8, 224, 224)" in script_of(video, sizes=InputSizes(frames=8))
    assert 'get_model("vit_b_16", weights=None, num_classes=1000, image_size=384)' in script_of(
        resnet("vit_b_16"), sizes=InputSizes(height=384, width=384)
    )


def test_its_loop_is_that_of_the_library() -> None:
    script = script_of(resnet(), {"training.precision": "fp16-mixed"}, sizes=InputSizes(channels_last=True))
    assert "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)" in script
    assert "scaler.scale(loss).backward()" in script
    assert "model.to(device, memory_format=torch.channels_last)" in script
    timm = resnet("vit_tiny_patch16_224", "timm.models.vision_transformer")
    script = script_of(timm, {"training.activation_checkpointing": "full", "model.num_labels": 10})
    assert 'timm.create_model("vit_tiny_patch16_224", num_classes=10)' in script
    assert "model.set_grad_checkpointing()" in script
    assert "PrefetchLoader(loader, device=device)" in script


@pytest.mark.parametrize(
    ("module", "changes", "sizes", "error", "said"),
    [
        (
            *("torchvision.models.detection.mask_rcnn", {"training.precision": "bf16"}, {}, CannotTellError),
            "has weights in fp32",
        ),
        ("torchvision.models.resnet", {"training.activation_checkpointing": "full"}, {}, CannotTellError, "no place"),
        ("torchvision.models.resnet", {"parallel.strategy": "fsdp2"}, {}, CannotTellError, "strategy = fsdp2"),
        ("torchvision.models.resnet", {"lora.rank": 8}, {}, CannotTellError, "no place for lora"),
        ("torchvision.models.resnet", {}, {"images": 2}, InputError, "one image in each example"),
        ("timm.models.resnet", {}, {"frames": 2}, InputError, "--frames means nothing"),
    ],
)
def test_what_its_loop_has_no_place_for_is_refused(module, changes, sizes, error, said: str) -> None:
    with pytest.raises(error, match=said):
        script_of(resnet("resnet7", module), changes, sizes=InputSizes(**sizes))
