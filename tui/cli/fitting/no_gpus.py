"""``vramtop fit`` on a machine whose GPUs cannot be read: what the job needs, and the cards on which it fits."""

import argparse

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import ExitCode
from vramtop.estimator.common.records import replace
from vramtop.monitor.board.fit_result import FitResult

from ...draw.palette import VERDICTS
from ...draw.text_output import detect_output
from ...job.advice import Advice
from ...job.loaded_job import LoadedJob
from ...reports.budget_text import budget_lines, closing_lines, need_text
from ..assumptions import assumed_lines
from ..json_text import json_text
from ..rehearsing import offer_of
from .cards import card_lines, find_cards
from .fit_check import fit_json


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
