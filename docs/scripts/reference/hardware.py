"""The page of the GPU catalogue."""

from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.job.gpu_catalogue import Gpu, catalogue

from .markdown import code, codes, page, table

_INTRODUCTION = """\
Names for `--gpu-type NAME` and `target.gpu = "NAME"`; `8xh100` is eight of them. Describe a card that is not listed by
its size: `--gpu-memory 80GiB`. Memory is the total that `nvidia-smi` prints, of which the driver reserves 0.2 to 2.3
GiB; **≈**: the figure is inferred, because no published capture of this very card was seen, or drivers disagree."""


def cards_page() -> str:
    """Return the page."""
    head = ("name", "MiB", "generation", "other names")
    return page("GPU catalogue", _INTRODUCTION, table(head, map(_row, catalogue())))


def _row(gpu: Gpu) -> tuple[str, ...]:
    about = "≈ " if gpu.approximate else ""
    return (
        code(gpu.name),
        f"{about}{gpu.total_bytes // MIB}",
        gpu.architecture.capitalize() + (", shared with the CPU" if gpu.unified else ""),
        codes(gpu.aliases),
    )
