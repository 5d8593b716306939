"""The page of the GPU catalogue."""

from itertools import groupby

from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.job.gpu_catalogue import Gpu, catalogue

from .markdown import bullets, code, codes, page

_INTRODUCTION = """\
Names for `--gpu-type NAME` and `target.gpu = "NAME"`, with other names for the same card; `8xh100` is eight of them.
For a card that is not listed, give its size: `--gpu-memory 80GiB`. Memory (MiB) is the total that `nvidia-smi` prints,
of which the driver reserves 0.2 to 2.3 GiB; ≈ is inferred, because no published capture of this card was seen, or
drivers disagree."""


def cards_page() -> str:
    """Return the page."""
    generations = groupby(catalogue(), key=lambda gpu: gpu.architecture.capitalize())
    parts = [part for name, gpus in generations for part in (f"## {name}", bullets(map(_line, gpus)))]
    return page("GPU catalogue", _INTRODUCTION, *parts)


def _line(gpu: Gpu) -> str:
    about = "≈" if gpu.approximate else ""
    memory = f"{about}{gpu.total_bytes // MIB}{', shared with the CPU' if gpu.unified else ''}"
    return f"{code(gpu.name)}: {'; '.join(filter(None, (memory, codes(gpu.aliases))))}"
