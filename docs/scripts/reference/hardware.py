"""The page of the GPU catalogue."""

from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.job.gpu_catalogue import Gpu, catalogue

from .markdown import code, codes, page, table

_INTRODUCTION = """\
These cards can be named with `--gpu-type NAME` and `target.gpu = "NAME"`. Usual names are understood too: `4090`,
`H100`, `RTX 3090`, `8xh100` for eight of them. A card that is not listed is described by its size:
`--gpu-memory 80GiB`.

- **Memory** is the total that NVML reports, as `nvidia-smi` prints it: less than the nominal size where ECC lies in the
  memory itself, or the driver keeps a part back. **≈**: no published capture of this very card was seen, or drivers
  disagree; the figure is inferred.
- **Reserved** is the part of the total that the driver keeps on an idle GPU; empty: it was never observed. It is not
  available to a job.
- A GPU of this machine is read by NVML itself; the catalogue gives only its name and generation then."""


def cards_page() -> str:
    """Return the page."""
    head = ("name", "card", "memory, MiB", "reserved, MiB", "generation", "compute", "other names")
    return page("GPU catalogue", _INTRODUCTION, table(head, map(_row, catalogue())))


def _row(gpu: Gpu) -> tuple[str, ...]:
    about = "≈ " if gpu.approximate else ""
    return (
        code(gpu.name),
        gpu.label,
        f"{about}{gpu.total_bytes // MIB}",
        "" if gpu.reserved_bytes is None else f"{gpu.reserved_bytes // MIB}",
        gpu.architecture.capitalize() + (", shared with the CPU" if gpu.unified else ""),
        ".".join(map(str, gpu.compute_capability)),
        codes(gpu.aliases),
    )
