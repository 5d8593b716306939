"""Write what docs/explanation says of the code: modules with their first lines, CUDA contexts, shares of ranges.

A place in a page is a pair of comments, ``<!-- modules: FILES -->`` and ``<!-- modules: end -->``, which
``make figures`` fills.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.formula.ranges import FORMULA, TRACED
from vramtop.estimator.job.gpu_catalogue import catalogue, generation_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "explanation"
_PLACE = re.compile(
    r"(?P<begin><!-- (?P<kind>modules|contexts|shares)(: (?P<files>[^>\n]+?))? -->\n).*?"
    r"(?P<end><!-- (?P=kind): end -->)",
    re.DOTALL,
)
_DOUBTS = {
    "checked": "compared with what autograd saves: transformers, LitGPT",
    "adapters": "likewise, with adapters or quantized layers",
    "framework": "read in the sources of another framework",
    "compiled": "torch.compile decides",
    "shape": "a family without rules, counted by its shape",
    "recurrent": "recurrent blocks, which no rule describes",
    "plain": "one stream",
    "fsdp2": "FSDP2",
    "fsdp1": "FSDP1",
    "other": "another library's streams",
}


def filled(text: str) -> str:
    """Return a page with what belongs into its places."""

    def table(match: re.Match[str]) -> str:
        lines = _LINES[match["kind"]](match["files"])
        return f"{match['begin']}\n{chr(10).join(lines)}\n\n{match['end']}"

    return _PLACE.sub(table, text)


def modules_of(patterns: str) -> list[Path]:
    """Return the modules of a place, given paths or globs; rooms' front doors only if they are named.

    Raises:
        FileNotFoundError: a path or glob has none.
    """
    found: list[Path] = []
    for pattern in patterns.split():
        paths = [path for path in sorted(ROOT.glob(pattern)) if path.name != "__init__.py" or "__init__" in pattern]
        if not paths:
            raise FileNotFoundError(f"{pattern} is no module")
        found += [path for path in paths if path not in found]
    return found


def first_line(module: Path) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _modules(patterns: str | None) -> Iterator[str]:
    yield "| module | what it has |"
    yield "| --- | --- |"
    for module in modules_of(patterns or ""):
        words = first_line(module).replace("|", "\\|").replace("``", "`")
        yield f"| `{module.relative_to(ROOT)}` | {words} |"


def _contexts(_: str | None) -> Iterator[str]:
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


def _shares(_: str | None) -> Iterator[str]:
    yield "| in doubt | how well it is known | closed form | traced |"
    yield "| --- | --- | --- | --- |"
    for name, share in FORMULA.step.items():
        yield f"| the step | {_DOUBTS[name]} | {share:.1%} | {TRACED.step[name]:.1%} |".replace("%", " %")
    for whose, kept in FORMULA.allocator.items():
        yield f"| the allocator | {_DOUBTS[whose]} | {kept:.0%} | {TRACED.allocator[whose]:.0%} |".replace("%", " %")


_LINES: dict[str, Callable[[str | None], Iterable[str]]] = {
    "modules": _modules,
    "contexts": _contexts,
    "shares": _shares,
}


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
