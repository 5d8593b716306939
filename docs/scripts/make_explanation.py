"""Write what docs/explanation says of the code: CUDA contexts, shares of ranges (``make reference``).

A place in a page is a pair of comments, ``<!-- contexts -->`` and ``<!-- contexts: end -->``.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.formula.calibration import FORMULA, TRACED
from vramtop.estimator.job.gpu_catalogue import catalogue, generation_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "explanation"
_PLACE = re.compile(r"(?P<begin><!-- (?P<kind>contexts|shares) -->\n).*?(?P<end><!-- (?P=kind): end -->)", re.DOTALL)
_DOUBTS = {
    "checked": "compared with what autograd saves (transformers, LitGPT)",
    "adapters": "with adapters or quantized layers",
    "framework": "read in the sources of another framework",
    "compiled": "under torch.compile",
    "shape": "of a family without rules",
    "recurrent": "with recurrent blocks",
    "plain": "with one stream",
    "fsdp2": "under FSDP2",
    "fsdp1": "under FSDP1",
    "other": "with another library's streams",
}


def filled(text: str) -> str:
    """Return a page with what belongs into its places."""

    def table(match: re.Match[str]) -> str:
        return f"{match['begin']}\n{chr(10).join(_LINES[match['kind']]())}\n\n{match['end']}"

    return _PLACE.sub(table, text)


def _contexts() -> Iterator[str]:
    yield "| architecture | compute capability | context | with all kernels at once | cuBLAS workspace of a thread |"
    yield "| --- | --- | --- | --- | --- |"
    majors: dict[int, list[str]] = {}
    for gpu in catalogue():
        names = majors.setdefault(gpu.compute_capability[0], [])
        if gpu.architecture.title() not in names:
            names.append(gpu.architecture.title())
    for major in sorted(majors):
        gpu = next(gpu for gpu in catalogue() if gpu.compute_capability[0] == major)
        of = generation_of(gpu)
        sizes = f"{of.context_mib} MiB | {of.eager_context_mib * MIB / GIB:.2f} GiB"
        workspace = of.cublas_workspace_kib
        yield f"| {', '.join(majors[major])} | {major}.x | {sizes} | {workspace:,} KiB |"


def _shares() -> Iterator[str]:
    for name, share in FORMULA.step.items():
        yield f"- the step {_DOUBTS[name]}: {_shares_of(share, TRACED.step[name], 1)}"
    for whose, kept in FORMULA.allocator.items():
        yield f"- the allocator {_DOUBTS[whose]}: {_shares_of(kept, TRACED.allocator[whose], 0)}"


def _shares_of(formula: float, traced: float, digits: int) -> str:
    """Return the shares of both methods, once if they are alike."""
    told = dict.fromkeys((f"{formula:.{digits}%}", f"{traced:.{digits}%}"))
    return ", traced ".join(told).replace("%", " %")


_LINES: dict[str, Callable[[], Iterator[str]]] = {"contexts": _contexts, "shares": _shares}


def main() -> int:
    """Fill the places of all pages; say which pages changed."""
    for page in sorted(FOLDER.glob("*.md")):
        before = page.read_text()
        after = filled(before)
        if after != before:
            page.write_text(after)
            print(page.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
