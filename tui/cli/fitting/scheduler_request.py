"""``vramtop fit JOB --slurm`` and ``--kubernetes``: the lines that ask a scheduler for what the job needs."""

import argparse
import textwrap
from collections.abc import Iterator, Sequence

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError, Verdict
from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.formula.host_memory import ASSUMPTION
from vramtop.monitor.board.capacity import described_devices
from vramtop.monitor.board.fit import check_fit

from ...draw.palette import VERDICTS
from ...draw.text_output import printable
from ...job.loaded_job import LoadedJob
from ...reports.budget_text import need_text
from ..json_text import json_text
from ..measured_runs import estimate_job
from ..option_values import described_gpu
from .cards import find_cards
from .fit_check import EXIT_CODES

_GPUS_PER_NODE = 8
"""GPUs of a node, of which nothing is known here."""
_NAMED_CARDS = 8
_PRODUCT_NOTE = "nvidia.com/gpu.memory is a label of GPU feature discovery, which the NVIDIA GPU operator runs."
_TASKS_NOTE = (
    "One task per rank, as srun starts them; with torchrun, accelerate or deepspeed use --ntasks-per-node=1. "
    "Add --cpus-per-task for data loading, and the cluster's name of the card: --gres=gpu:a100:1."
)


def report_request(options: argparse.Namespace, loaded: LoadedJob) -> int:
    """Print what the job needs of a scheduler; return the exit code of the verdict.

    Without a card the job fits if it fits on one of the catalogue.

    Args:
        options: with ``slurm`` or ``kubernetes``.
        loaded: the job.

    Raises:
        InputError: an option describes GPUs of this machine.
    """
    flag = "slurm" if options.slurm else "kubernetes"
    if options.gpu is not None:
        raise InputError(f"--gpu names GPUs of this machine; with --{flag} give --gpu-type")
    if options.host_memory is not None:
        raise InputError(f"--host-memory describes one machine; --{flag} requests the RAM that the job needs")
    gpu, memory_bytes = described_gpu(options, loaded.job)
    budget = estimate_job(options, loaded, gpu, memory_bytes, here=False)
    ranks, processes = len(budget.ranks), budget.job.parallel.processes
    if options.gpus is not None and options.gpus != ranks:
        raise InputError(f"--gpus {options.gpus}: the job has {ranks} rank{'s' * (ranks > 1)}, one on each GPU")
    verdict: Verdict
    if memory_bytes:
        verdict = check_fit(budget, described_devices(gpu, memory_bytes, ranks)).verdict
        cards = [gpu.label] if gpu and verdict in ("fits", "tight") else []
    elif budget.peak.says_nothing:
        verdict, cards = "unknown", []
    else:
        cards = [card.name for card in find_cards(budget.job, budget) if card.strategy is None]
        verdict = "fits" if cards else "does_not_fit"
    per_node = max(count for count in range(1, _GPUS_PER_NODE + 1) if ranks % count == 0)
    nodes = ranks // per_node
    ram_gib = None if budget.host is None else -(-budget.host.high_bytes(min(per_node, processes)) // GIB)
    request: list[str] = []
    notes = list(loaded.notes)
    if verdict != "does_not_fit":
        if options.slurm:
            words = [f"nodes={nodes}", f"ntasks-per-node={min(per_node, processes)}", f"gres=gpu:{per_node}"]
            words += [f"mem={ram_gib}G"] if ram_gib is not None else []
            request = [f"#SBATCH --{word}" for word in words]
        else:
            request = list(_pod_lines(budget, verdict, per_node, ram_gib))
        ram = ASSUMPTION if ram_gib is not None else "The job's RAM need is unknown, so none is requested."
        notes = [_TASKS_NOTE if options.slurm else _PRODUCT_NOTE, ram, *notes]
    if options.json:
        found = {
            "schema": 1,
            "verdict": verdict,
            "request": request,
            "nodes": nodes,
            "gpus_per_node": per_node,
            "cards": cards,
            "budget": budget.to_json(),
            "notes": notes,
        }
        print(json_text(found))
    else:
        head = ["#!/bin/bash"] if options.slurm and request else []
        about = tuple(_sentences(budget, verdict, cards, nodes, per_node, described=bool(memory_bytes)))
        comment = textwrap.TextWrapper(_WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
        comments = [comment.fill(printable(each)) for each in (*about, *(f"Note: {note}" for note in notes))]
        print("\n".join([*head, *comments[: len(about)], *request, *comments[len(about) :]]))
    return EXIT_CODES[verdict]


def _sentences(
    budget: Budget, verdict: Verdict, cards: Sequence[str], nodes: int, per_node: int, *, described: bool
) -> Iterator[str]:
    yield f"{VERDICTS[verdict].word.lower()}: needs {need_text(budget, len(budget.ranks))} of GPU memory"
    each = f"each of {nodes} nodes or pods" if nodes > 1 else "one node or pod"
    if verdict != "does_not_fit":
        held = "one rank on each" if budget.job.parallel.processes > 1 or per_node == 1 else "all of one process"
        yield f"{per_node} GPU{'s' * (per_node > 1)} of {each}, {held}."
    if cards and not described:
        more = f" and {len(cards) - _NAMED_CARDS} more" if len(cards) > _NAMED_CARDS else ""
        yield f"Cards on which it fits, smallest first: {', '.join(cards[:_NAMED_CARDS])}{more}."
    elif verdict == "does_not_fit":
        yield "vramtop fit --gpu-type NAME shows which changes would make it fit."


_WIDTH = 110


def _pod_lines(budget: Budget, verdict: Verdict, gpus: int, ram_gib: int | None) -> Iterator[str]:
    """Yield the part of a pod's specification, with nodes whose GPUs are large enough.

    ``nvidia.com/gpu.memory`` is the total in MiB (docs/gpu-feature-discovery/README.md of NVIDIA/k8s-device-plugin).
    """
    need = budget.peak.high_bytes if verdict == "fits" else budget.peak.device_bytes
    yield from (
        "spec:",
        "  affinity:",
        "    nodeAffinity:",
        "      requiredDuringSchedulingIgnoredDuringExecution:",
        "        nodeSelectorTerms:",
        "        - matchExpressions:",
        f"          - {{key: nvidia.com/gpu.memory, operator: Gt, values: ['{need // MIB}']}}",
        "  containers:",
        "  - name: trainer",
        "    resources:",
        "      limits:",
        f"        nvidia.com/gpu: {gpus}",
        *([f"        memory: {ram_gib}Gi"] if ram_gib is not None else []),
    )
