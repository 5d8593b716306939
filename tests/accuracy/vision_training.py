"""Trains a model of timm as its ``train.py`` does by default: ``vision_training.py MODEL BATCH``.

SGD with momentum, fp32, label smoothing, the prefetcher and ``cudnn.benchmark``, on images without content.
"""

import sys

import timm
import torch
from timm.data.loader import PrefetchLoader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2


def main(name: str, batch: int) -> None:
    """Train for four steps."""
    torch.backends.cudnn.benchmark = True
    model = timm.create_model(name).cuda().train()
    optimizer = create_optimizer_v2(model, "sgd", lr=0.05, momentum=0.9, weight_decay=2e-5)
    loss_of = LabelSmoothingCrossEntropy(0.1).cuda()
    images = torch.zeros(batch, *model.default_cfg["input_size"], dtype=torch.uint8)
    batches = [(images, torch.randint(0, 1000, (batch,)))] * 4
    for x, y in PrefetchLoader(batches, device=torch.device("cuda")):
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
        optimizer.zero_grad()


main(sys.argv[1], int(sys.argv[2]))
