"""The JSON of ``vramtop fit --slurm`` and ``--kubernetes``."""

from typing import Any, TypedDict

from vramtop.estimator.budget import BudgetJson
from vramtop.monitor.board.fit import Verdict

from .version import Versioned


class _Answer(Versioned):
    verdict: Verdict
    """Whether the job fits there."""
    sentence: str
    """The answer in words."""
    budget: BudgetJson
    """The estimate, as `vramtop estimate --json` prints it."""
    notes: list[str]
    """What is assumed or unknown, one sentence each."""


class OfferJson(TypedDict):
    """GPUs of one kind in one partition of a Slurm cluster."""

    partition: str
    """Name of the partition."""
    gres_type: str | None
    """Name of the GPUs in the cluster; null: they have none, or are of several kinds together."""
    card: str | None
    """The card behind that name; null: unknown."""
    mig: str | None
    """MIG profile; null: whole GPUs, or several profiles."""
    card_bytes: list[int]
    """Memory in bytes of each card that it may be."""
    nodes: int
    """Nodes that are up."""
    gpus: int
    """GPUs of these nodes."""
    verdict: Verdict
    """Whether the job fits there."""
    at_all: bool
    """The nodes have room for it when nothing else runs."""
    now: bool | None
    """They have room for it now; null: Slurm does not say what is free."""
    reason: str
    """Why it does not fit, or is not known; empty: it needs none."""


class _SlurmFacts(TypedDict):
    offers: list[OfferJson]
    """What the cluster has, the best first; empty: Slurm cannot be asked here."""
    partitions: list[str]
    """Partitions that can take the job, the best first."""
    partitions_now: list[str]
    """Partitions that can start it now, as far as it is known."""
    nodes_not_counted: int
    """Nodes with GPUs that are down, drained or do not answer."""
    request: list[str] | None
    """Options for sbatch; null: there is nothing to ask for."""


class SlurmFacts(_SlurmFacts, total=False):
    """What Slurm has for a job."""

    card: str
    """The card that the answer is for; absent: it is for the cluster."""


class SlurmJson(SlurmFacts, _Answer):
    """Which partitions of a Slurm cluster can take a job, and the lines that ask for it."""


class KubernetesFacts(TypedDict):
    """What a pod asks for."""

    manifest: dict[str, Any] | None
    """Part of a pod's specification; null: the job does not fit."""
    pods: int
    """Pods that the job takes."""
    gpus: list[str]
    """Cards on which it fits, by their names in the catalogue; empty: none, or only a size is given."""


class KubernetesJson(KubernetesFacts, _Answer):
    """The requests and node affinity of a pod that takes a job."""
