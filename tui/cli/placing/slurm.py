"""``vramtop fit JOB --slurm``: which partitions can take a job, now and at all, and the lines of its batch script."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vramtop.monitor.fleet.schedulers import (
    CardMatch,
    CardSize,
    NoSlurmError,
    SlurmCluster,
    Spread,
    read_cluster,
)

from ...draw import format_table
from .answer import Answer, Target, whole_gib
from .card_judge import GOOD, USUAL_GPUS_PER_NODE, CardJudge, need_sentence
from .slurm_offers import Offer, find_offers

if TYPE_CHECKING:
    from vramtop.monitor.board.fit import Verdict

    from ..json_types import SlurmFacts

_MAX_ROWS = 30
_TORCHRUN = (
    "One task per rank, as srun starts them; with torchrun, accelerate or deepspeed, which start the ranks "
    "of a node themselves, use --ntasks-per-node=1."
)
_NO_HOST = "How much RAM the job needs is not known, so --mem is left to the partition's default."
_CPUS = "How many processors the job's data loading needs is not known: add --cpus-per-task."


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
    offers = find_offers(cluster, judge, target)
    need = f"{need_sentence(judge.budget)}{_host_words(judge, offers)}"
    gone = [node for node in cluster.nodes if node.gpus and node.is_gone]
    notes = [f"Not counted: {len(gone)} node{'s' * (len(gone) > 1)} with GPUs down, drained or not answering."] * bool(
        gone
    )
    facts: SlurmFacts = {
        "partitions": [],
        "partitions_now": [],
        "offers": [offer.to_json() for offer in offers],
        "nodes_not_counted": len(gone),
        "request": None,
    }
    usable = [offer for offer in offers if offer.at_all is not None and offer.verdict in GOOD]
    table = _table(offers)
    if not usable:
        verdict: Verdict = "unknown" if any(offer.verdict == "unknown" for offer in offers) else "does_not_fit"
        sentence = _why_not(offers, cluster, target)
        return Answer(verdict=verdict, need=need, sentence=sentence, json=facts, table=table, notes=notes)
    best = usable[0]
    spread = best.now or best.at_all
    if spread is None:  # at_all was looked at above
        raise AssertionError
    request = _request(best, spread, judge, cluster)
    nodes = f"{spread.nodes} node{'s' * (spread.nodes > 1)}"
    where = f"{nodes} of partition {best.partition.name}, {spread.per_node} × {best.name} each"
    able = list(dict.fromkeys(offer.partition.name for offer in usable))
    now = list(dict.fromkeys(offer.partition.name for offer in usable if offer.now))
    facts["partitions"], facts["partitions_now"], facts["request"] = able, now, request
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
        json=facts,
        before="#!/bin/bash",
        request=[f"#SBATCH {line}" for line in request],
        table=table,
        notes=[*notes, _TORCHRUN, _CPUS, *([_NO_HOST] if judge.budget.host is None else [])],
    )


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
    ranks = spread.per_node if spread else min(judge.ranks, USUAL_GPUS_PER_NODE)
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
    per_node = judge.ranks_per_usual_node
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
    fits = verdict in GOOD
    sentence = f"{reason[:1].upper()}{reason[1:]}: this is for the card {match.label} alone."
    notes = [
        f"Nodes with {USUAL_GPUS_PER_NODE} GPUs are assumed; the GPU's name in the cluster may differ (sinfo -o %G).",
        _TORCHRUN,
        _CPUS,
    ]
    facts: SlurmFacts = {
        "partitions": [],
        "partitions_now": [],
        "offers": [],
        "card": match.label,
        "nodes_not_counted": 0,
        "request": lines if fits else None,
    }
    return Answer(
        verdict=verdict,
        need=need,
        sentence=sentence,
        json=facts,
        before="#!/bin/bash",
        request=[f"#SBATCH {line}" for line in lines] if fits else (),
        notes=notes if fits else [],
    )
