"""The GPUs that a Slurm cluster has for a job: by partition and kind, with what fits at all and what is free now."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common import GIB, format_gib
from vramtop.monitor.board.fit import VERDICTS_BEST_FIRST, Verdict
from vramtop.monitor.fleet.schedulers import (
    CardMatch,
    CardSize,
    NodeSpace,
    SlurmCluster,
    SlurmNode,
    SlurmPartition,
    Spread,
    match_card,
    spread_over,
)

from .answer import Target
from .card_judge import GOOD, CardJudge

if TYPE_CHECKING:
    from ..json_types import OfferJson

_NodeGpus = tuple[SlurmNode, int, int | None]
"""A node, its GPUs of one kind, and how many of them are free (None: not known)."""
_Kind = tuple[str | None, CardMatch, tuple[_NodeGpus, ...]]
"""Name of GPUs in the cluster, the card behind it, and the nodes that have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """GPUs of one kind in one partition."""

    partition: SlurmPartition
    type: str | None
    match: CardMatch
    nodes: tuple[_NodeGpus, ...]
    """Nodes that are up."""
    verdict: Verdict
    at_all: Spread | None
    now: Spread | None
    now_known: bool
    """Slurm says how many of the GPUs are free on every node."""
    reason: str

    @property
    def name(self) -> str:
        """Name of the GPUs in the cluster: ``a100``; ``gpu`` without a type, or of several types together."""
        return self.type or "gpu"

    def to_json(self) -> "OfferJson":
        """Return the offer as ``fit --slurm --json`` lists it."""
        return {
            "partition": self.partition.name,
            "gres_type": self.type,
            "card": self.match.label if self.match.cards else None,
            "mig": self.match.mig,
            "card_bytes": [card.total_bytes for card in self.match.cards],
            "nodes": len(self.nodes),
            "gpus": sum(count for _, count, _ in self.nodes),
            "verdict": self.verdict,
            "at_all": self.at_all is not None,
            "now": (self.now is not None) if self.now_known or self.now else None,
            "reason": self.reason,
        }


def find_offers(cluster: SlurmCluster, judge: CardJudge, target: Target) -> list[Offer]:
    """Return what a cluster has for a job, the best first.

    Args:
        cluster: as read.
        judge: of the job.
        target: only this card.
    """
    return sorted(_offers(cluster, judge, target), key=_preference)


def _offers(cluster: SlurmCluster, judge: CardJudge, target: Target) -> Iterator[Offer]:
    for partition in cluster.partitions:
        kinds = _joined(_kinds(cluster, partition, target), judge)
        offers = [_offer(partition, name, match, nodes, judge) for name, match, nodes in kinds]
        yield from offers
        good = [kind for kind in kinds if judge.verdict(kind[1]) in GOOD]
        if len(good) > 1 and not any(offer.at_all for offer in offers):  # no kind alone has room: all of them, then
            mixed = _offer(partition, None, _any_of([match for _, match, _ in good]), _per_node(good), judge)
            if mixed.at_all:
                yield mixed


def _kinds(cluster: SlurmCluster, partition: SlurmPartition, target: Target) -> list[_Kind]:
    """Return the GPUs of a partition by their name and the card behind it."""
    kinds: dict[tuple[str | None, CardMatch], list[_NodeGpus]] = {}
    for node in cluster.nodes:
        if partition.name not in node.partitions or node.is_gone:
            continue
        for gpus in node.gpus:
            match = match_card(gpus.type, node.features)
            free = None if gpus.used is None else gpus.count - gpus.used
            if not match.cards and target.gpu is None and target.memory_bytes:  # --gpu-memory tells it
                match = CardMatch(cards=(CardSize(gpu=None, total_bytes=target.memory_bytes),))
            if _is_wanted(match, target):
                kinds.setdefault((gpus.type, match), []).append((node, gpus.count, free))
    return [(name, match, tuple(nodes)) for (name, match), nodes in kinds.items()]


def _joined(kinds: Sequence[_Kind], judge: CardJudge) -> list[_Kind]:
    """Return the kinds, those of one name that do equally well as one: a job may have nodes of each."""
    found: list[_Kind] = []
    for name in dict.fromkeys(name for name, _, _ in kinds):
        own = [kind for kind in kinds if kind[0] == name]
        for verdict in VERDICTS_BEST_FIRST:
            alike = [kind for kind in own if judge.verdict(kind[1]) == verdict]
            if verdict in GOOD and len(alike) > 1:
                nodes = tuple(node for _, _, nodes in alike for node in nodes)
                alike = [(name, _any_of([match for _, match, _ in alike]), nodes)]
            found += alike
    return found


def _any_of(matches: Sequence[CardMatch]) -> CardMatch:
    """Return the cards of several kinds as what one kind may be."""
    cards = sorted({card for match in matches for card in match.cards}, key=lambda card: card.total_bytes)
    profiles = {match.mig for match in matches}
    return CardMatch(cards=tuple(cards), mig=profiles.pop() if len(profiles) == 1 else None)


def _per_node(kinds: Sequence[_Kind]) -> tuple[_NodeGpus, ...]:
    """Return the GPUs of several kinds together, node by node."""
    found: dict[str, _NodeGpus] = {}
    for node, count, free in (each for _, _, nodes in kinds for each in nodes):
        _, before, free_before = found.get(node.name, (node, 0, 0))
        found[node.name] = (node, before + count, None if free is None or free_before is None else free_before + free)
    return tuple(found.values())


def _is_wanted(match: CardMatch, target: Target) -> bool:
    """Return whether a kind may be the card that the command line names; an unknown one may."""
    return target.gpu is None or not match.cards or target.gpu in [card.gpu for card in match.cards]


def _offer(
    partition: SlurmPartition,
    name: str | None,
    match: CardMatch,
    nodes: tuple[_NodeGpus, ...],
    judge: CardJudge,
) -> Offer:
    verdict = judge.verdict(match)
    reason = _reason(verdict, match, judge)
    now_known = all(free is not None for _, _, free in nodes)
    at_all = now = None
    if verdict != "does_not_fit" and partition.is_up:
        whole = [NodeSpace(gpus=count, memory_bytes=node.memory_bytes, cpus=node.cpus) for node, count, _ in nodes]
        free_now = [
            NodeSpace(gpus=free or 0, memory_bytes=node.free_memory_bytes, cpus=node.free_cpus)
            for node, _, free in nodes
            if node.takes_jobs_now
        ]
        host = judge.host_bytes
        at_all = spread_over(judge.ranks, whole, host, max_nodes=partition.max_nodes)
        if at_all is None and (
            least := spread_over(judge.ranks, whole, judge.least_host_bytes, max_nodes=partition.max_nodes)
        ):
            at_all, host = least, judge.least_host_bytes
            verdict = "tight" if verdict == "fits" else verdict
            reason = "the nodes' RAM is tight"
        now = at_all and spread_over(judge.ranks, free_now, host, max_nodes=partition.max_nodes)
    if not partition.is_up:
        reason = "the partition is not up"
    elif at_all is None and verdict != "does_not_fit":
        most = sum(count for _, count, _ in nodes)
        need = f"{judge.ranks} GPUs" if judge.ranks > 1 else "a GPU"
        reason = f"has {most} of them, no room for {need} with the RAM and processors that go with them"
        verdict = "does_not_fit"
    return Offer(
        partition=partition, type=name, match=match, nodes=nodes, verdict=verdict,
        at_all=at_all, now=now, now_known=now_known, reason=reason,
    )  # fmt: skip


def _reason(verdict: Verdict, match: CardMatch, judge: CardJudge) -> str:
    if match.mig and judge.ranks > 1:
        return "a MIG device takes jobs with one rank only"
    if not match.cards:
        return "neither the type nor a feature of the node says which card it is; give --gpu-memory"
    if verdict == "unknown":
        sizes = " or ".join(f"{format_gib(card.total_bytes)} GiB" for card in match.cards)
        return f"the name does not say which card it is ({match.label}: {sizes}), and it fits only on the larger"
    if verdict == "does_not_fit":
        return f"has {format_gib(match.cards[-1].total_bytes)} GiB"
    return ""


def _preference(offer: Offer) -> tuple[Any, ...]:
    """Return the sort key: what fits before what is tight, what is free before what is not, the smallest card first."""
    card = offer.match.cards[0] if offer.match.cards else None
    size = round(card.total_bytes / GIB) if card else 0
    generation = card.gpu.compute_capability if card and card.gpu else ()
    free = 0 if offer.now else 1 if offer.at_all else 2
    default = not offer.partition.is_default
    return (VERDICTS_BEST_FIRST.index(offer.verdict), free, size, generation, default, offer.partition.name, offer.name)
