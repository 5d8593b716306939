"""Write the tables of docs/explanation/accuracy.md from the accuracy table (``make figures``).

A test compares its tables with the pages.
"""

import argparse
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "accuracy"))

from accuracy_cases import read_left_out  # noqa: E402
from peers import PEERS  # noqa: E402
from predictions import Result, predict_all  # noqa: E402
from report import coverage, group_results, left_out_spans, summarize  # noqa: E402

from vramtop.estimator.common.sizes import GIB  # noqa: E402
from vramtop.estimator.job.job import Job  # noqa: E402
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS  # noqa: E402
from vramtop.estimator.job.rules.strategies import PRECISIONS, STRATEGIES  # noqa: E402
from vramtop.estimator.job.settings import Lora  # noqa: E402

PAGE = ROOT / "docs" / "explanation" / "accuracy.md"
_FIGURES = ("allocated", "reserved", "device")
_HEAD = (
    "| | rows | median error | under by > 5 % | off by > 10 % | in range | in range, source left out |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)
_SOURCES = {
    "automodel": "NeMo AutoModel, one model",
    "bert_trainer": "transformers' Trainer, BERT",
    "components": "CUDA context, NCCL, logits and loss, each alone",
    "ms_swift": "ms-swift under ZeRO-3, packed sequences",
    "fms_acceleration": "TRL with fms-acceleration, full and adapters",
    "fsdp_qlora": "FSDP1 with 4-bit weights",
    "litgpt": "LitGPT",
    "megatron": "Megatron-LM",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
}
_PEERS = {
    "accelerate": "`accelerate estimate-memory`",
    "DeepSpeed": "DeepSpeed's `estimate_zero*_model_states_mem_needs`",
    "EleutherAI": "EleutherAI's `calc_transformer_mem.py`",
    "N x b": "stored weights and 0.75 GiB, a lower bound",
    "Space": "the training-memory Space on Hugging Face",
}


_COVERED: tuple[tuple[str, Callable[[Job], str], Iterable[str]], ...] = (
    ("strategy", lambda job: job.parallel.strategy, STRATEGIES),
    ("framework", lambda job: job.training.framework, FRAMEWORKS),
    ("precision", lambda job: job.training.precision, PRECISIONS),
    ("checkpointing", lambda job: job.training.activation_checkpointing, ("none", "selective", "full")),
    ("adapters", lambda job: "full training" if job.lora is None else _adapters(job.lora), ("full training", "LoRA")),
    ("GPU", lambda job: job.target.gpu or "not stated", ()),
)


def _adapters(lora: Lora) -> str:
    return "LoRA" if lora.quantization == "none" else f"LoRA over {lora.quantization}"


def tables(results: Sequence[Result]) -> dict[str, str]:
    """Return the tables of the closed form by the name of their place in the page."""
    return {
        "closed form": "\n".join((*_HEAD, *_by_figure(results), *_by_source(results))),
        "peers": "\n".join(_peers(results)),
        "off": "\n".join(_off(results)),
        "covered": "\n".join(_covered([result.case.job for result in results])),
        "left out": f"{sum(len(each.ids) for each in read_left_out())} published figures are left out.",
    }


def with_tables(text: str, found: dict[str, str]) -> str:
    """Return a page with these tables in their places; others stay."""

    def filled(match: re.Match[str]) -> str:
        table = found.get(match["name"])
        return match[0] if table is None else f"{match['begin']}\n\n{table}\n\n{match['end']}"

    return _PLACE.sub(filled, text)


_PLACE = re.compile(r"(?P<begin><!-- table: (?P<name>[\w ]+) -->).*?(?P<end><!-- table: end -->)", re.DOTALL)


def _by_figure(results: Sequence[Result]) -> Iterator[str]:
    yield from _summaries(results, {name: name for name in _FIGURES})


def _by_source(results: Sequence[Result]) -> Iterator[str]:
    files = sorted({result.case.file for result in results})
    yield from _summaries(results, {f"file {name}": _SOURCES.get(name, name) for name in files})


def _summaries(results: Sequence[Result], names: dict[str, str]) -> Iterator[str]:
    groups, without = group_results(results), left_out_spans(results)
    for name, label in names.items():
        if name not in groups:
            continue
        members = groups[name]
        found, left_out = summarize(members), coverage(members, without)
        inside = "" if found.coverage is None else f"{found.coverage.share:.0%}, {found.coverage.width:.0%} wide"
        outside = "" if left_out is None else f"{left_out.share:.0%}, {left_out.width:.0%} wide"
        cells = (
            label,
            str(found.rows),
            f"{found.median_error:.1%}",
            f"{found.share_under:.0%}",
            f"{found.share_off:.0%}",
            inside or "no range",
            outside or "no range",
        )
        yield _line(cells)


def _peers(results: Sequence[Result]) -> Iterator[str]:
    for name in PEERS:
        rows = [(result, size) for result in results if (size := result.peers.get(name)) is not None]
        errors = [size / result.case.measured_bytes - 1 for result, size in rows]
        ours = summarize([result for result, _ in rows])
        theirs = statistics.median(map(abs, errors))
        under = sum(error < -0.05 for error in errors) / len(errors)
        told = f"{theirs:.0%} (vramtop {ours.median_error:.1%}), {under:.0%} too low (vramtop {ours.share_under:.0%})"
        yield f"- {_PEERS.get(name, name)}, {len(rows)} rows: {told}".replace("%", "\u00a0%")


def _off(results: Iterable[Result]) -> Iterator[str]:
    for result in results:
        if abs(result.error) > 0.1:
            case = result.case
            figure = case.figure if case.part is None else f"{case.part.replace('_', ' ')} alone"
            sizes = f"{result.predicted_bytes / GIB:.2f} GiB predicted, {case.measured_bytes / GIB:.2f} measured"
            error = f"{result.error:+.1%}".replace("%", "\u00a0%")
            yield f"- {case.id}, {figure} ({error}: {sizes}): {case.explained or 'No cause found.'}"


def _covered(jobs: Sequence[Job]) -> Iterator[str]:
    for label, value, known in _COVERED:
        counts = Counter(map(value, jobs))
        counted = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        without = ", ".join(sorted(set(known) - counts.keys()))
        yield f"- {label}: {counted}{f'; no row: {without}' if without else ''}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("%", "\u00a0%") for cell in cells) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables; say whether the page changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args(arguments)
    before = PAGE.read_text()
    after = with_tables(before, tables(predict_all("formula")[0]))
    if after != before:
        PAGE.write_text(after)
        print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
