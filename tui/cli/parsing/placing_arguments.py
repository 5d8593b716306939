"""Arguments about places to run a job that are not this machine."""

import argparse


def add_placing_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--slurm``, ``--kubernetes`` and ``--cloud``."""
    group = parser.add_argument_group(
        "elsewhere", "What the job needs of a scheduler or cloud, instead of this machine."
    )
    places = group.add_mutually_exclusive_group()
    text = "Print #SBATCH lines for this Slurm cluster, and which partitions can take the job, now and at all."
    places.add_argument("--slurm", action="store_true", help=text)
    text = "Print resource requests and node affinity for a pod, as YAML."
    places.add_argument("--kubernetes", "--k8s", action="store_true", help=text)
    text = "List the clouds' instance types on which it fits, with SkyPilot and dstack snippets."
    places.add_argument("--cloud", action="store_true", help=text)
