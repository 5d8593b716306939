"""``vramtop fit JOB --slurm`` and ``--kubernetes``: the estimate, and the report of each."""

import argparse

from vramtop.estimator.common import InputError
from vramtop.estimator.formula import ASSUMPTION

from ...job import LoadedJob
from ..fitting import EXIT_CODES
from ..json_text import json_text
from ..measured_runs import estimate_job
from ..option_values import described_gpu
from .answer import Answer, Target
from .card_judge import CardJudge

_EMULATED = (
    "The job computes in bf16, which {} can only emulate, slowly: fp16, or --gpu-type with a newer card, is faster."
)


def report_elsewhere(options: argparse.Namespace, loaded: LoadedJob) -> int:
    """Print what the job needs of a scheduler; return the exit code of ``fit``.

    Args:
        options: with ``slurm`` or ``kubernetes``.
        loaded: the job.

    Raises:
        InputError: ``--gpu`` is given, which means GPUs of this machine.
    """
    flag = next(name for name in ("slurm", "kubernetes") if getattr(options, name))
    if options.gpu is not None:
        raise InputError(f"--gpu names GPUs of this machine; with --{flag} give --gpu-type")
    if options.host_memory is not None:
        raise InputError(f"--host-memory describes one machine; --{flag} checks the RAM of each that it lists")
    if options.gpus is not None and options.gpus != loaded.job.parallel.world_size:
        ranks = loaded.job.parallel.world_size
        raise InputError(f"--gpus {options.gpus}: the job has {ranks} rank{'s' * (ranks > 1)}, one on each GPU")
    gpu, memory_bytes = described_gpu(options, loaded.job)
    budget = estimate_job(options, loaded.job, gpu, memory_bytes, here=False)
    target = Target(gpu=gpu, memory_bytes=memory_bytes)
    judge = CardJudge(job=loaded.job, budget=budget, gpu=gpu)
    answer = _answer(flag, judge, target)
    emulating = judge.emulating_cards(answer.verdict)
    loaded_notes = (
        *([ASSUMPTION] if budget.host is not None and answer.request else []),
        *([_EMULATED.format(", ".join(emulating))] if emulating else []),
        *loaded.notes,
    )
    if options.json:
        notes = [*answer.notes, *loaded_notes]
        about = {"schema": 1, "verdict": answer.verdict, "sentence": answer.sentence}
        print(json_text({**about, **answer.json, "budget": budget.to_json(), "notes": notes}))
    else:
        print("\n".join(answer.lines((*answer.notes, *loaded_notes))))
    return EXIT_CODES[answer.verdict]


def _answer(flag: str, judge: CardJudge, target: Target) -> Answer:
    if flag == "slurm":
        from .slurm import slurm_answer

        return slurm_answer(judge, target)
    from .kubernetes import kubernetes_answer

    return kubernetes_answer(judge, target)
