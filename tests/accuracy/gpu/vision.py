"""Vision models in plain torch, for the suite: a ResNet-50, a ViT-B/16 and a U-Net, on images of 224 x 224.

Each takes ``pixel_values`` and ``labels`` and returns its loss, as models of transformers do.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

IMAGE, CHANNELS, CLASSES = 224, 3, 1000


class VisionModel(nn.Module):
    """A model whose batches can be made: images of a known size."""

    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(image_size=IMAGE, num_channels=CHANNELS)


class Bottleneck(nn.Module):
    """A residual block of three convolutions (He et al., 2015, table 1)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        same = inputs == outputs and stride == 1
        shorter = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if same else shorter

    def forward(self, hidden: Any) -> Any:
        return functional.relu(self.body(hidden) + self.shortcut(hidden), inplace=True)


class ResNet50(VisionModel):
    """25.6 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(CHANNELS, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
        layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for at in range(count):
                layers.append(Bottleneck(inputs, width, stride if at == 0 else 1))
                inputs = 4 * width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))

    def forward(self, pixel_values: Any, labels: Any = None) -> dict[str, Any]:
        return {"loss": functional.cross_entropy(self.body(pixel_values), labels)}


class VisionTransformer(VisionModel):
    """ViT-B/16, 86.6 million parameters."""

    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12, patch: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (IMAGE // patch) ** 2 + 1, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, pixel_values: Any, labels: Any = None) -> dict[str, Any]:
        hidden = self.patches(pixel_values).flatten(2).transpose(1, 2)
        hidden = torch.cat((self.first.expand(len(hidden), -1, -1), hidden), dim=1) + self.positions
        return {"loss": functional.cross_entropy(self.head(self.blocks(hidden)[:, 0]), labels)}


class UNet(VisionModel):
    """A U-Net of four levels that restores its input, 31 million parameters (Ronneberger et al., 2015)."""

    def __init__(self, width: int = 64, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(_pair(*sides) for sides in zip((CHANNELS, *widths), widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * each, each, 2, 2) for each in widths[:-1])
        self.join = nn.ModuleList(_pair(2 * each, each) for each in widths[:-1])
        self.head = nn.Conv2d(width, CHANNELS, 1)

    def forward(self, pixel_values: Any, labels: Any = None) -> dict[str, Any]:
        hidden, kept = pixel_values, []
        for at, block in enumerate(self.down):
            hidden = block(hidden if at == 0 else functional.max_pool2d(hidden, 2))
            kept.append(hidden)
        for at in reversed(range(len(self.up))):
            hidden = self.join[at](torch.cat((kept[at], self.up[at](hidden)), dim=1))
        return {"loss": functional.mse_loss(self.head(hidden), pixel_values)}


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    convolutions = ((inputs, outputs), (outputs, outputs))
    return nn.Sequential(
        *(
            layer
            for sides in convolutions
            for layer in (nn.Conv2d(*sides, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
        )
    )
