"""The cards of the catalogue on which a job fits, smallest first; what ``vramtop fit`` prints without GPUs."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from vramtop.estimator.advice.bounded_search import shifted
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, ExitCode, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.estimation import quick_estimator
from vramtop.estimator.job.gpu_catalogue import Gpu, catalogue
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.learning.correction import uncorrected
from vramtop.monitor.board.capacity import described_devices
from vramtop.monitor.board.fit import check_fit
from vramtop.monitor.board.fit_result import FitResult

from ...draw.palette import VERDICTS
from ...draw.text_output import TextOutput, detect_output, format_table
from ...job.advice import Advice
from ...job.loaded_job import LoadedJob
from ...reports.budget_text import budget_lines, closing_lines, need_text
from ..assumptions import assumed_lines
from ..json_text import json_text
from ..rehearsing import offer_of
from .fit_check import fit_json

_COUNTS = (1, 2, 4, 8)
"""Numbers of GPUs that are tried for a job of one rank; over more than one it is split."""
_MANY = (16, 32, 64)
"""Numbers that are tried if it fits on fewer of no card."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A card of the catalogue on which the job certainly fits."""

    gpu: str
    """Its name in the catalogue, as for `--gpu-type`."""
    name: str
    """Its name for people."""
    total_bytes: int
    """Its memory."""
    gpus: int
    """GPUs that the job takes."""
    strategy: str | None
    """Value of `parallel.strategy` that the job is changed to, to use several; None: it stays as it is."""
    device_bytes: int
    """Expected peak on each."""


def find_cards(job: Job, budget: Budget) -> tuple[Card, ...]:
    """Return the GPUs of the catalogue on which the job fits, with the fewest of each; smallest first.

    None where the range of the need says nothing.
    """
    if budget.peak.says_nothing:
        return ()
    gpus = [gpu for gpu in catalogue() if not gpu.unified]
    beyond = 0  # bytes by which the budget exceeds the closed form, where that knows the model
    if budget.method != "formula":
        with suppress(CannotTellError):
            beyond = uncorrected(budget).peak.device_bytes - quick_estimator(job)(job).peak.device_bytes
    trains = job.training.mode == "train"
    counts = [(1,)] if len(budget.ranks) > 1 or job.is_served else [_COUNTS, _MANY] if trains else [_COUNTS]
    found: list[Card] = []
    for tried in counts:
        found = found or [card for gpu in gpus if (card := _fewest(job, budget, beyond, gpu, tried)) is not None]
    return tuple(sorted(found, key=lambda card: (card.total_bytes, card.gpus)))


_SHARDED, _SPLIT = "fsdp2", "tensor"
"""How a job that trains is split over several GPUs, and one that generates text."""
_MAX_ROWS = 10


def card_lines(cards: Sequence[Card], job: Job, output: TextOutput) -> Iterator[str]:
    """Yield the table of cards, those of the same size in one row."""
    if not cards:
        trains = job.training.mode == "train"
        tried = f"{_MANY[-1]} of them with --fsdp" if trains else f"{_COUNTS[-1]} of them with --tp"
        most = f", not even on {tried}" if job.parallel.world_size == 1 and not job.is_served else ""
        quantized = job.lora is not None and job.lora.quantization != "none"
        if not trains:
            quantized = job.inference is not None and job.inference.weights not in ("auto", "bf16", "fp16", "fp32")
        fewer_bits = [] if quantized else ["--qlora" if trains else "--int4"]
        ways = ", or ".join([*fewer_bits, "a shorter --seq-len"])
        yield from output.wrapped(f"it fits on no card of the catalogue{most}; try {ways}")
        return
    split = next((card.strategy for card in cards if card.strategy), None)
    several = {_SHARDED: "; several GPUs: sharded with --fsdp", _SPLIT: "; several GPUs: split with --tp"}.get(
        split or "", ""
    )
    yield output.text(f"cards on which it fits, smallest first{several}:")
    rows = list(_rows(cards))
    head = ("GPUS", "MEMORY", "NEEDS EACH", "CARDS")
    yield from (output.text(f"  {line}") for line in format_table([head, *rows[:_MAX_ROWS]], ">>><"))


_MAX_CARDS = 4
"""Cards that a row names."""
_LARGER_ROWS = 2
"""Larger cards that are listed below the smallest, with as few GPUs; then a row says that every larger card fits."""


def _rows(cards: Sequence[Card]) -> Iterator[tuple[str, str, str, str]]:
    groups: dict[tuple[int, int], list[Card]] = {}
    for card in cards:
        groups.setdefault((round(card.total_bytes / 2**30), card.gpus), []).append(card)
    fewest, rows = min(count for _, count in groups), 0
    so_few = max(count for _, count in groups)
    for (size, count), alike in groups.items():
        if count > so_few:  # older cards of this size need more than smaller ones that were named
            continue
        so_few = count
        rows += count == fewest
        if rows > _LARGER_ROWS + 1:
            yield (str(count), "more", "", "every larger card")
            return
        names = ", ".join(card.name for card in alike[:_MAX_CARDS])
        more = f" and {len(alike) - _MAX_CARDS} more" if len(alike) > _MAX_CARDS else ""
        need = format_gib(max(card.device_bytes for card in alike))
        yield (str(count), f"{size} GiB", f"{need} GiB", f"{names}{more}")


def _fewest(job: Job, budget: Budget, beyond: int, gpu: Gpu, counts: Sequence[int]) -> Card | None:
    """Return the smallest number of these GPUs on which the job fits; None: it does not."""
    own = len(budget.ranks)
    try:
        quick = quick_estimator(job, gpu=gpu)
    except CannotTellError:  # what was estimated counts for every card
        return _card(budget, gpu, own, split=None)
    for count in counts:
        if count == 1:
            split, changed = None, job
        elif job.training.mode == "train":
            split, changed = _SHARDED, with_changes(job, {"parallel.strategy": _SHARDED, "parallel.data_shard": count})
        else:
            split, changed = _SPLIT, with_changes(job, {"parallel.tensor": count})
        try:
            found = quick(changed)
            card = _card(shifted(found, beyond) if beyond else found, gpu, max(own, count), split=split)
        except InputError:  # its heads cannot be divided by so many
            continue
        if card is not None:
            return card
    return None


def _card(budget: Budget, gpu: Gpu, count: int, *, split: str | None) -> Card | None:
    verdict = check_fit(budget, described_devices(gpu, gpu.total_bytes, count))
    if verdict.verdict != "fits":
        return None
    return Card(
        gpu=gpu.name,
        name=gpu.label,
        total_bytes=gpu.total_bytes,
        gpus=count,
        strategy=split,
        device_bytes=budget.peak.device_bytes,
    )


def report_without_gpus(options: argparse.Namespace, loaded: LoadedJob, budget: Budget, reason: str) -> int:
    """Print the need, why there is no verdict, and the cards; exit code 3.

    Args:
        options: of the command line.
        loaded: the job.
        budget: of the job.
        reason: why the GPUs of this machine cannot be read, and what to do.
    """
    job, offer = budget.job, offer_of(options, loaded, budget)
    # a card decides what is left open of weights that are not trained
    cards = find_cards(job if job.training.mode == "train" else loaded.job, budget)
    if options.json:
        verdict = FitResult(verdict="unknown", gpus=(), rank_devices=(), margin_bytes=None, sentence=reason)
        noted = replace(loaded, notes=(*loaded.notes, *([offer] if offer else [])))
        found = fit_json(verdict, budget, Advice(budget=budget), noted)
        print(json_text({**found, "cards": msgspec.to_builtins(cards)}))
        return ExitCode.CANNOT_TELL
    output = detect_output(ascii_only=options.ascii)
    mark, need = VERDICTS["unknown"], need_text(budget, len(budget.ranks))
    print(output.paint(f"{mark.letter} {mark.word}", mark.colour, bold=True) + output.text(f"  needs {need}"))
    print("\n".join(output.wrapped(f"{reason[:1].upper()}{reason[1:]}", indent="  ")))
    print("\n".join(assumed_lines(budget, loaded, output)))
    print()
    if not budget.peak.says_nothing:
        print("\n".join([*card_lines(cards, job, output), ""]))
    print("\n".join(budget_lines(budget, output)))
    print("\n".join(closing_lines(budget, loaded.notes, output, verbose=options.verbose)))
    if offer is not None:
        print("\n".join(output.wrapped(offer, further="  ")))
    return ExitCode.CANNOT_TELL
