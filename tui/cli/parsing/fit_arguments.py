"""The arguments of ``vramtop fit`` and ``vramtop wait``."""

import argparse
from typing import TYPE_CHECKING

from .host_arguments import add_host_arguments
from .shared_flags import (
    JOB_USAGE,
    add_estimate_arguments,
    add_host_memory_argument,
    add_verbose_argument,
    positive_seconds,
    rare_group,
)

if TYPE_CHECKING:
    from .parser import Parser

_FIT_EXAMPLES = """\
  vramtop fit llama-3.1-8b --qlora --gpu-type 4090
  vramtop fit qwen2.5-7b --batch-size 4 --seq-len 4k --bf16 --gpu-memory 24GiB
  vramtop fit llama-3.1-70b --fsdp 16 --pure-bf16 --gpu-type h100
  vramtop fit job.toml                        on this machine, now
  vramtop fit axolotl.yml --gpu-type a100-80gb
  vramtop fit job.toml --prometheus http://prometheus:9090    on which host?
  vramtop fit job.toml --slurm > head.sbatch   the #SBATCH lines that it needs
  vramtop fit -- torchrun --nproc-per-node 8 train.py --bf16 --output_dir out
"""
_FLEET_EPILOG = (
    "With --prometheus, --host or --hosts: exit code 0 some host can take it now (or several together), 1 none can "
    "now, 3 none with figures of now can, and there are others; --gpu-type then considers only GPUs of that type."
)


def add_fit_arguments(parser: "Parser") -> None:
    """Add the arguments of ``vramtop fit``."""
    parser.usage = JOB_USAGE.format("fit")
    parser.examples = _FIT_EXAMPLES
    parser.epilog = _FLEET_EPILOG
    _add_judging_arguments(parser)
    _add_placing_arguments(parser)
    waiting = rare_group(parser, "waiting")
    text = "Wait until the job fits on GPUs of this machine; then exit code 0 (vramtop wait)."
    waiting.add_argument("--wait", action="store_true", help=text)
    _add_waiting_arguments(waiting)
    add_host_arguments(parser, suppress_defaults=True)


def add_wait_arguments(parser: "Parser") -> None:
    """Add the arguments of ``vramtop wait``, which is ``vramtop fit --wait``."""
    parser.usage = JOB_USAGE.format("wait")
    parser.set_defaults(wait=True, slurm=False, kubernetes=False)
    parser.examples = """\
  vramtop wait llama-3.1-8b --lora --pure-bf16 && ./train.sh
  vramtop wait --exec -- torchrun --nproc-per-node 2 train.py --bf16
  vramtop wait job.toml --timeout 3600 --exec python train.py
"""
    _add_judging_arguments(parser)
    _add_waiting_arguments(parser.add_argument_group("waiting"))


def _add_judging_arguments(parser: "Parser") -> None:
    """Add the job, the machine, and how the verdict is made and shown."""
    add_estimate_arguments(parser)
    add_host_memory_argument(parser)
    text = "Consider only micro-batches with which some gradient accumulation keeps the sequences per step."
    parser.add_argument("--keep-global-batch", action="store_true", help=text)
    add_verbose_argument(parser)


def _add_waiting_arguments(group: argparse._ArgumentGroup) -> None:
    text = "Give up after this time, with the exit code of the verdict."
    group.add_argument("--timeout", type=positive_seconds, metavar="SECONDS", help=text)
    text = "Time between readings (default: 2)."
    group.add_argument("--interval", type=positive_seconds, default=2.0, metavar="SECONDS", help=text)
    text = "Then run this command on the GPUs that were found (the rest of the line; without one, the launch line)."
    group.add_argument("--exec", nargs=argparse.REMAINDER, metavar="COMMAND", help=text)


def _add_placing_arguments(parser: "Parser") -> None:
    """Add ``--slurm`` and ``--kubernetes``."""
    group = parser.add_argument_group("elsewhere", "What the job needs of a scheduler, instead of this machine.")
    places = group.add_mutually_exclusive_group()
    text = "Print #SBATCH lines for this Slurm cluster, and which partitions can take the job, now and at all."
    places.add_argument("--slurm", action="store_true", help=text)
    text = "Print resource requests and node affinity for a pod, as YAML."
    places.add_argument("--kubernetes", "--k8s", action="store_true", help=text)
