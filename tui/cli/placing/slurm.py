"""``vramtop fit JOB --slurm``: which partitions can take a job, now and at all, and the lines of its batch script."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vramtop.estimator.common import GIB, format_gib
from vramtop.monitor.board.fit import Verdict
from vramtop.monitor.fleet.schedulers import (
    CardMatch,
    CardSize,
    NoSlurmError,
    Room,
    SlurmCluster,
    SlurmNode,
    SlurmPartition,
    Spread,
    match_card,
    read_cluster,
    spread_over,
)

from ...draw import format_table
from .answer import Answer, Target, whole_gib
from .card_judge import BEST_FIRST, CardJudge, need_sentence

_MAX_ROWS = 30
_USUAL_GPUS = 8
"""GPUs of a node that nothing is known of."""
_TORCHRUN = (
    "One task per rank, as srun starts them; with torchrun, accelerate or deepspeed, which start the ranks "
    "of a node themselves, use --ntasks-per-node=1."
)
_NO_HOST = "How much RAM the job needs is not known, so --mem is left to the partition's default."
_CPUS = "How many processors the job's data loading needs is not known: add --cpus-per-task."


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """GPUs of one kind in one partition."""

    partition: SlurmPartition
    type: str | None
    match: CardMatch
    nodes: tuple[tuple[SlurmNode, int, int | None], ...]
    """Nodes that are up, each with its GPUs of that kind and how many of them are free (None: not known)."""
    verdict: Verdict
    at_all: Spread | None
    now: Spread | None
    now_known: bool
    """Slurm says how many of the GPUs are free on every node."""
    reason: str

    @property
    def name(self) -> str:
        """Name of the GPUs in the cluster: ``a100``, ``gpu without a type``."""
        return self.type or "gpu without a type"

    def to_json(self) -> dict[str, Any]:
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


def slurm_answer(judge: CardJudge, target: Target) -> Answer:
    """Return which partitions can take the job, and the lines that ask for it.

    Raises:
        CannotTellError: scontrol fails; or it is missing, and no card is named.
    """
    try:
        cluster = read_cluster()
    except NoSlurmError as error:
        if target.memory_bytes is None:
            raise NoSlurmError(f"{error.message}; run this on a login node, or name a card with --gpu-type") from None
        return _without_cluster(judge, target, error.message)
    return judge_cluster(cluster, judge, target)


def judge_cluster(cluster: SlurmCluster, judge: CardJudge, target: Target) -> Answer:
    """Return which partitions of a cluster can take the job.

    Args:
        cluster: as read.
        judge: of the job.
        target: only this card.
    """
    offers = sorted(_offers(cluster, judge, target), key=_preference)
    need = f"{need_sentence(judge.budget)}{_host_words(judge, offers)}"
    gone = [node for node in cluster.nodes if node.gpus and node.is_gone]
    notes = [f"Not counted: {len(gone)} node{'s' * (len(gone) > 1)} with GPUs down, drained or not answering."] * bool(
        gone
    )
    facts: dict[str, Any] = {"offers": [offer.to_json() for offer in offers], "nodes_not_counted": len(gone)}
    usable = [offer for offer in offers if offer.at_all is not None and offer.verdict in ("fits", "tight")]
    table = _table(offers)
    if not usable:
        verdict: Verdict = "unknown" if any(offer.verdict == "unknown" for offer in offers) else "does_not_fit"
        sentence = _why_not(offers, cluster, target)
        return Answer(verdict=verdict, need=need, sentence=sentence, json=_json(facts, None), table=table, notes=notes)
    best = usable[0]
    spread = best.now or best.at_all
    if spread is None:  # at_all was looked at above
        raise AssertionError
    request = _request(best, spread, judge, cluster)
    nodes = f"{spread.nodes} node{'s' * (spread.nodes > 1)}"
    where = f"{nodes} of partition {best.partition.name}, {spread.per_node} × {best.name} each"
    able = list(dict.fromkeys(offer.partition.name for offer in usable))
    now = list(dict.fromkeys(offer.partition.name for offer in usable if offer.now))
    facts |= {"partitions": able, "partitions_now": now}
    asks = f"This asks for {where}."
    waits = (
        "would start now"
        if best.now
        else "would wait: not enough of them are free"
        if best.now_known
        else "may have to wait: what is free is not known"
    )
    sentence = f"{asks} It {waits}."
    return Answer(
        verdict=best.verdict,
        need=need,
        sentence=sentence,
        json=_json(facts, request),
        before="#!/bin/bash",
        request=[f"#SBATCH {line}" for line in request],
        table=table,
        notes=[*notes, _TORCHRUN, _CPUS, *([_NO_HOST] if judge.budget.host is None else [])],
    )


def _json(facts: dict[str, Any], request: Sequence[str] | None) -> dict[str, Any]:
    return {"partitions": [], "partitions_now": [], **facts, "request": None if request is None else list(request)}


def _offers(cluster: SlurmCluster, judge: CardJudge, target: Target) -> Iterator[Offer]:
    for partition in cluster.partitions:
        kinds: dict[tuple[str | None, CardMatch], list[tuple[SlurmNode, int, int | None]]] = {}
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
        for (name, match), nodes in kinds.items():
            yield _offer(partition, name, match, tuple(nodes), judge)


def _is_wanted(match: CardMatch, target: Target) -> bool:
    """Return whether a kind may be the card that the command line names; an unknown one may."""
    return target.gpu is None or not match.cards or target.gpu in [card.gpu for card in match.cards]


def _offer(
    partition: SlurmPartition,
    name: str | None,
    match: CardMatch,
    nodes: tuple[tuple[SlurmNode, int, int | None], ...],
    judge: CardJudge,
) -> Offer:
    verdict = judge.verdict(match)
    reason = _reason(verdict, match, judge)
    now_known = all(free is not None for _, _, free in nodes)
    at_all = now = None
    if verdict in ("fits", "tight", "unknown") and partition.is_up:
        whole = [
            Room(name=node.name, gpus=count, memory_bytes=node.memory_bytes, cpus=node.cpus) for node, count, _ in nodes
        ]
        free_now = [
            Room(name=node.name, gpus=free or 0, memory_bytes=node.free_memory_bytes, cpus=node.free_cpus)
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
    return (BEST_FIRST.index(offer.verdict), free, size, generation, default, offer.partition.name, offer.name)


def _request(offer: Offer, spread: Spread, judge: CardJudge, cluster: SlurmCluster) -> list[str]:
    kind = f":{offer.type}" if offer.type else ""
    lines = [
        f"--partition={offer.partition.name}",
        f"--nodes={spread.nodes}",
        f"--ntasks-per-node={spread.per_node}",
        f"--gres=gpu{kind}:{spread.per_node}",
    ]
    if judge.budget.host is not None:
        high, least = judge.host_bytes(spread.per_node), judge.least_host_bytes(spread.per_node)
        smallest = min((node.memory_bytes for node, _, _ in offer.nodes if node.memory_bytes), default=high)
        lines.append(f"--mem={whole_gib(high if offer.verdict == 'fits' or high <= smallest else least)}G")
    return [*lines, *_selection(offer, cluster)]


def _selection(offer: Offer, cluster: SlurmCluster) -> Iterator[str]:
    """Yield what keeps the job off nodes whose GPUs the request would take too, and which may be too small."""
    good = {node.name: node for node, _, _ in offer.nodes}
    others = [
        node
        for node in cluster.nodes
        if offer.partition.name in node.partitions
        and node.name not in good
        and any(gpus.type == offer.type or offer.type is None for gpus in node.gpus)
    ]
    if not others:
        return
    shared = set.intersection(*(set(node.features) for node in good.values()))
    only = sorted(shared - {feature for node in others for feature in node.features})
    preferred = [offer.match.feature] if offer.match.feature in only else only
    if preferred:
        yield f"--constraint={preferred[0]}"
    else:
        yield f"--exclude={','.join(node.name for node in others)}"


def _host_words(judge: CardJudge, offers: Sequence[Offer]) -> str:
    spread = next((found for offer in offers if (found := offer.now or offer.at_all)), None)
    ranks = spread.per_node if spread else min(judge.ranks, _USUAL_GPUS)
    return f", and {whole_gib(judge.host_bytes(ranks))} GiB of RAM per node" if judge.budget.host else ""


def _why_not(offers: Sequence[Offer], cluster: SlurmCluster, target: Target) -> str:
    if not any(node.gpus for node in cluster.nodes):
        return "No node of this cluster has a GPU."
    if not offers:
        what = f"No node that is up has the card {target.gpu.label}" if target.gpu else "No node with GPUs is up"
        return f"{what}, or it is in no partition."
    if any(offer.verdict == "unknown" for offer in offers):
        return "Nothing known to fit can take it; of some GPUs the memory is not known."
    known = [card for offer in offers for card in offer.match.cards if card.gpu and not offer.match.mig]
    largest = max(known, key=lambda card: card.total_bytes, default=None)
    name = largest.gpu.name if largest and largest.gpu else "NAME"
    return f"No partition can take it. vramtop fit --gpu-type {name} says what would make it fit there."


def _table(offers: Sequence[Offer]) -> list[str]:
    if not offers:
        return []
    rows = [("PARTITION", "GPU", "CARD", "NODES", "GPUS", "VERDICT", "NOW", "")]
    for offer in offers[:_MAX_ROWS]:
        now = "yes" if offer.now else "no" if offer.now_known or offer.at_all is None else "?"
        gpus = str(sum(count for _, count, _ in offer.nodes))
        verdict = offer.verdict.replace("_", " ")
        rows.append(
            (
                offer.partition.name,
                offer.name,
                offer.match.label,
                str(len(offer.nodes)),
                gpus,
                verdict,
                now,
                offer.reason,
            )
        )
    more = len(offers) - _MAX_ROWS
    further = [f"and {more} more, none of them better (--json lists all)"] if more > 0 else []
    return ["", *format_table(rows, "<<<>><<<"), *further]


def _without_cluster(judge: CardJudge, target: Target, reason: str) -> Answer:
    """Return the request for the card that the command line names, without facts of a cluster."""
    card = CardSize(gpu=target.gpu, total_bytes=target.memory_bytes or 0)
    match = CardMatch(cards=(card,))
    verdict = judge.verdict(match)
    per_node = max(size for size in range(1, _USUAL_GPUS + 1) if judge.ranks % size == 0)
    nodes = judge.ranks // per_node
    kind = (
        f":{target.gpu.name.partition('-')[0] if target.gpu.name[0].isalpha() else target.gpu.name}"
        if target.gpu
        else ""
    )
    lines = [f"--nodes={nodes}", f"--ntasks-per-node={per_node}", f"--gres=gpu{kind}:{per_node}"]
    if judge.budget.host is not None:
        lines.append(f"--mem={whole_gib(judge.host_bytes(per_node))}G")
    need = f"{need_sentence(judge.budget_on(match))}, and {whole_gib(judge.host_bytes(per_node))} GiB of RAM per node"
    fits = verdict in ("fits", "tight")
    sentence = f"{reason[:1].upper()}{reason[1:]}: this is for the card {match.label} alone."
    notes = [
        f"Nodes with {_USUAL_GPUS} GPUs are assumed; the GPU's name in the cluster may differ (sinfo -o %G).",
        _TORCHRUN,
        _CPUS,
    ]
    facts = {"offers": [], "card": match.label, "nodes_not_counted": 0}
    return Answer(
        verdict=verdict,
        need=need,
        sentence=sentence,
        json=_json(facts, lines if fits else None),
        before="#!/bin/bash",
        request=[f"#SBATCH {line}" for line in lines] if fits else (),
        notes=notes if fits else [],
    )
