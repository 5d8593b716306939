"""Places for a job beyond this machine: requests to Slurm and Kubernetes."""

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError, Verdict
from vramtop.estimator.common.sizes import GIB, MIB, format_gib
from vramtop.estimator.formula.rank_memory import ASSUMPTION
from vramtop.estimator.job.gpu_catalogue import BF16_CAPABILITY, Gpu, catalogue, find_gpu
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.fit import VERDICTS_BEST_FIRST, check_fit, described_devices
from vramtop.monitor.fleet.schedulers import (
    CardMatch,
    CardSize,
    NodeSpace,
    NoSlurmError,
    SlurmCluster,
    SlurmNode,
    SlurmPartition,
    Spread,
    match_card,
    read_cluster,
    spread_over,
)

from ..draw.text_output import format_table, printable
from ..job.budgets_by_card import beyond_formula, estimator_on_card
from ..job.load_job import LoadedJob
from ..reports.budget_text import need_text
from .fitting.fit_check import EXIT_CODES
from .json_text import json_text
from .measured_runs import estimate_job
from .option_values import described_gpu

if TYPE_CHECKING:
    from .json_types import KubernetesFacts, OfferJson, SlurmFacts

# Answers of ``fit --slurm`` and ``--kubernetes``, as text that a scheduler takes, and as JSON.


_WIDTH = 110
_WORDS: dict[Verdict, str] = {
    "fits": "fits",
    "tight": "tight",
    "does_not_fit": "does not fit",
    "unknown": "unknown whether it fits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Verdict, request and facts."""

    verdict: Verdict
    need: str
    """What the job needs, in words."""
    sentence: str
    json: Mapping[str, Any]
    before: str | None = None
    """First line of the text: ``#!/bin/bash``."""
    request: Sequence[str] = ()
    """Lines for the scheduler; empty: there is nothing to ask it for."""
    table: Sequence[str] = ()
    """Lines of the table below."""
    notes: Sequence[str] = field(default=())

    def lines(self, notes: Sequence[str]) -> Iterator[str]:
        """Yield the text: the request as it is, everything else as comments, so that the whole is a valid file.

        Args:
            notes: further sentences.
        """
        if self.before and self.request:
            yield self.before
        yield f"# {_WORDS[self.verdict]}: needs {self.need}"
        yield from _comment(self.sentence)
        yield from self.request
        yield from (f"# {printable(line)}".rstrip() for line in self.table)
        for note in notes:
            yield from _comment(f"Note: {note}")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(printable(text), _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def whole_gib(size_bytes: int) -> int:
    """Return a size in whole GiB, rounded up."""
    return -(-size_bytes // GIB)


# A job on one card after another: its budget there, and whether its ranks fit on cards that a name may stand for.


GOOD: tuple[Verdict, ...] = ("fits", "tight")
"""Verdicts with which a job may be started there."""
USUAL_GPUS_PER_NODE = 8
"""GPUs of a node that nothing is known of."""


@dataclass(slots=True, kw_only=True)
class CardJudge:
    """Judges one job on cards, each only once."""

    job: Job
    budget: Budget
    gpu: Gpu | None
    """The only card that is wanted, for which the budget was estimated; None: any."""
    memory_bytes: int | None
    """Memory of the cards that are wanted; None: any."""
    _beyond: int | None = None
    _known: dict[tuple[str | None, int], tuple[Budget, Verdict]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """GPUs that the job takes."""
        return len(self.budget.ranks)

    @property
    def ranks_per_usual_node(self) -> int:
        """Maximum of ranks on a node of the usual size, with the same number on each node."""
        return max(size for size in range(1, USUAL_GPUS_PER_NODE + 1) if self.ranks % size == 0)

    def on(self, card: CardSize) -> tuple[Budget, Verdict]:
        """Return the budget on a card, and whether the job fits on as many of them as it has ranks."""
        key = (card.gpu.name if card.gpu else None, card.total_bytes)
        if key not in self._known:
            budget = self._estimate(card.gpu)
            verdict = check_fit(budget, described_devices(card.gpu, card.total_bytes, self.ranks)).verdict
            self._known[key] = (budget, verdict)
        return self._known[key]

    def verdict(self, match: CardMatch) -> Verdict:
        """Return whether the job fits whichever of the cards is meant; unknown: only on some of them."""
        if match.mig and self.ranks > 1:
            return "does_not_fit"
        verdicts = [self.on(card)[1] for card in match.cards]
        if not verdicts:
            return "unknown"
        if "does_not_fit" in verdicts and any(verdict in GOOD for verdict in verdicts):
            return "unknown"
        return max(verdicts, key=VERDICTS_BEST_FIRST.index)

    def budget_on(self, match: CardMatch) -> Budget:
        """Return the budget on the smallest of the cards; the one that was estimated first if none is known."""
        return self.on(match.cards[0])[0] if match.cards else self.budget

    def emulating_cards(self, verdict: Verdict) -> list[str]:
        """Return the labels of the cards judged so, fits or tight, that can only emulate the job's bf16, slowly.

        Without emulation torch's is_bf16_supported asks for compute capability 8 (2.13, torch/cuda/__init__.py).
        """
        if verdict not in GOOD or not self.budget.job.training.precision.startswith("bf16"):
            return []
        names = dict.fromkeys(name for (name, _), (_, found) in self._known.items() if name and found == verdict)
        return [gpu.label for gpu in map(find_gpu, names) if gpu.compute_capability < BF16_CAPABILITY]

    def host_bytes(self, ranks: int) -> int:
        """Return the RAM that this number of ranks needs on one machine, at most; 0: unknown."""
        return 0 if self.budget.host is None else self.budget.host.high_bytes(ranks)

    def least_host_bytes(self, ranks: int) -> int:
        """Return the RAM that is expected to be needed; 0: unknown."""
        return 0 if self.budget.host is None else self.budget.host.peak_bytes(ranks)

    def _estimate(self, gpu: Gpu | None) -> Budget:
        if gpu is None or gpu == self.gpu:
            return self.budget
        if self._beyond is None:
            self._beyond = beyond_formula(self.job, self.budget, self.gpu)
        estimate = estimator_on_card(self.job, gpu, self._beyond)
        return estimate(self.job) if estimate else self.budget


def need_sentence(budget: Budget) -> str:
    """Return what a job needs: ``8 × 62.1 GiB (58.0 - 66.3) of GPU memory``."""
    return f"{need_text(budget, len(budget.ranks))} of GPU memory"


# ``vramtop fit JOB --slurm`` and ``--kubernetes``: the estimate, and the report of each.


_EMULATED = "The job computes in bf16, which {} can only emulate slowly; fp16 or a newer card (--gpu-type) is faster."


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
        raise InputError(f"--host-memory describes one machine; --{flag} checks the RAM of each machine it lists")
    if options.gpus is not None and options.gpus != loaded.job.parallel.world_size:
        ranks = loaded.job.parallel.world_size
        raise InputError(f"--gpus {options.gpus}: the job has {ranks} rank{'s' * (ranks > 1)}, one on each GPU")
    gpu, memory_bytes = described_gpu(options, loaded.job)
    budget = estimate_job(options, loaded, gpu, memory_bytes, here=False)
    judge = CardJudge(job=loaded.job, budget=budget, gpu=gpu, memory_bytes=memory_bytes)
    answer = (slurm_answer if options.slurm else kubernetes_answer)(judge)
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


# ``vramtop fit JOB --kubernetes``: resource requests and node affinity of a pod that takes the job, as YAML.
#
# Labels of nodes: GPU feature discovery, docs/gpu-feature-discovery/README.md of NVIDIA/k8s-device-plugin:
# ``nvidia.com/gpu.product`` is the product's name with dashes for spaces, ``nvidia.com/gpu.memory`` its memory in
# MiB, and ``nvidia.com/gpu.count`` the GPUs of the node. GPUs that are shared or in MIG mode have another product
# (``...-SHARED``, ``...-MIG-1g.5gb``), so that they are not chosen.


_KEY = "nvidia.com/gpu"


def kubernetes_answer(judge: CardJudge) -> Answer:
    """Return the part of a pod's specification that the job needs."""
    need = need_sentence(judge.budget)
    per_pod = judge.ranks_per_usual_node
    pods = judge.ranks // per_pod
    verdict, gpus = _cards(judge)
    if verdict not in GOOD:
        where = f"a {judge.gpu.label}" if judge.gpu else "any card of the catalogue, with one rank per GPU"
        nothing: KubernetesFacts = {"manifest": None, "pods": pods, "gpus": []}
        sentence = f"It does not fit on {where}; vramtop fit --gpu-type NAME shows which changes would make it fit."
        return Answer(verdict=verdict, need=need, sentence=sentence, json=nothing)
    manifest = _manifest(judge, gpus, per_pod)
    text = yaml.safe_dump(manifest, sort_keys=False, width=120).splitlines()
    each = f"each of {pods} pods" if pods > 1 else "the pod"
    sentence = f"Put this into the specification of {each}: {per_pod} GPU{'s' * (per_pod > 1)}, one rank on each."
    notes = [
        "The affinity needs the labels of GPU feature discovery, which the NVIDIA GPU operator runs.",
        *(["The job's RAM need is unknown, so the pod requests no memory."] if judge.budget.host is None else []),
    ]
    facts: KubernetesFacts = {"manifest": manifest, "pods": pods, "gpus": [gpu.name for gpu in gpus]}
    return Answer(verdict=verdict, need=need, sentence=sentence, json=facts, request=text, notes=notes)


def _cards(judge: CardJudge) -> tuple[Verdict, list[Gpu]]:
    """Return the verdict, and the cards that fit; none where only a size is given."""
    if judge.gpu is None and judge.memory_bytes:
        return judge.verdict(_match(None, judge.memory_bytes)), []
    gpus = [judge.gpu] if judge.gpu else [gpu for gpu in catalogue() if not gpu.unified]
    verdicts = {gpu.name: judge.verdict(_match(gpu, gpu.total_bytes)) for gpu in gpus}
    for wanted in GOOD:
        found = [gpu for gpu in gpus if verdicts[gpu.name] == wanted]
        if found:
            return verdicts[found[0].name], found
    return next(iter(verdicts.values())) if judge.gpu else "does_not_fit", []


def _match(gpu: Gpu | None, total_bytes: int) -> CardMatch:
    return CardMatch(cards=(CardSize(gpu=gpu, total_bytes=total_bytes),))


def _manifest(judge: CardJudge, gpus: list[Gpu], per_pod: int) -> dict[str, Any]:
    resources: dict[str, Any] = {_KEY: per_pod}
    if judge.budget.host is not None:
        resources["memory"] = f"{whole_gib(judge.host_bytes(per_pod))}Gi"
    smallest = min((gpu.total_bytes for gpu in gpus), default=judge.memory_bytes or 0)
    rules: list[dict[str, Any]] = [_rule("memory", "Gt", [_least_label(judge, smallest, gpus)])]
    products = sorted({_label(name) for gpu in gpus for name in gpu.nvml_names})
    if products:
        rules.insert(0, _rule("product", "In", products))
    if per_pod > 1:
        rules.append(_rule("count", "Gt", [str(per_pod - 1)]))
    terms = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    return {
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "containers": [
                {"name": "trainer", "resources": {"requests": dict(resources), "limits": dict(resources)}},
            ],
        },
    }


def _least_label(judge: CardJudge, smallest: int, gpus: list[Gpu]) -> str:
    """Return the MiB that the label must exceed: what the smallest of the cards needs and its driver keeps.

    Drivers of one card differ by up to 1 % in the total that they report, so that is no measure.
    """
    budgets = [judge.on(CardSize(gpu=gpu, total_bytes=gpu.total_bytes))[0] for gpu in gpus] or [judge.budget]
    need = max(budget.peak.device_bytes for budget in budgets)
    reserved = max((gpu.reserved_bytes or 0 for gpu in gpus), default=0)
    return str(max(0, min(smallest, need + reserved) // MIB - 1))


def _rule(label: str, operator: str, values: list[str]) -> dict[str, Any]:
    return {"key": f"{_KEY}.{label}", "operator": operator, "values": values}


def _label(name: str) -> str:
    """Return a product's name as GPU feature discovery writes it."""
    return name.replace(" ", "-")


# The GPUs that a Slurm cluster has for a job: by partition and kind, with what fits at all and what is free now.


_NodeGpus = tuple[SlurmNode, int, int | None]
"""A node, its GPUs of one kind, and how many of them are free (None: not known)."""


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


def find_offers(cluster: SlurmCluster, judge: CardJudge) -> list[Offer]:
    """Return what a cluster has for a job, the best first."""
    offers = [
        _offer(partition, name, match, tuple(nodes), judge)
        for partition in cluster.partitions
        for (name, match), nodes in _kinds(cluster, partition, judge).items()
    ]
    return sorted(offers, key=_preference)


def _kinds(
    cluster: SlurmCluster, partition: SlurmPartition, judge: CardJudge
) -> dict[tuple[str | None, CardMatch], list[_NodeGpus]]:
    """Return the GPUs of a partition by their name and the card behind it."""
    kinds: dict[tuple[str | None, CardMatch], list[_NodeGpus]] = {}
    for node in cluster.nodes:
        if partition.name not in node.partitions or node.is_gone:
            continue
        for gpus in node.gpus:
            match = match_card(gpus.type, node.features)
            free = None if gpus.used is None else gpus.count - gpus.used
            if not match.cards and judge.gpu is None and judge.memory_bytes:  # --gpu-memory tells it
                match = _match(None, judge.memory_bytes)
            if judge.gpu is None or not match.cards or judge.gpu in [card.gpu for card in match.cards]:
                kinds.setdefault((gpus.type, match), []).append((node, gpus.count, free))
    return kinds


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
            reason = "the RAM of the nodes is tight"
        now = at_all and spread_over(judge.ranks, free_now, host, max_nodes=partition.max_nodes)
    if not partition.is_up:
        reason = "the partition is not up"
    elif at_all is None and verdict != "does_not_fit":
        most = sum(count for _, count, _ in nodes)
        need = f"{judge.ranks} GPUs" if judge.ranks > 1 else "a GPU"
        reason = f"has {most} of these GPUs, but no room for {need} with their RAM and processors"
        verdict = "does_not_fit"
    return Offer(
        partition=partition, type=name, match=match, nodes=nodes, verdict=verdict,
        at_all=at_all, now=now, now_known=now_known, reason=reason,
    )  # fmt: skip


def _reason(verdict: Verdict, match: CardMatch, judge: CardJudge) -> str:
    if match.mig and judge.ranks > 1:
        return "a MIG device takes only jobs with one rank"
    if not match.cards:
        return "neither the node's GPU type nor its features name the card; give --gpu-memory"
    if verdict == "unknown":
        sizes = " or ".join(f"{format_gib(card.total_bytes)} GiB" for card in match.cards)
        return f"the card is ambiguous ({match.label}: {sizes}), and the job fits only on the larger one"
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


# ``vramtop fit JOB --slurm``: which partitions can take a job, now and at all, and the lines of its batch script.


_MAX_ROWS = 30
_TORCHRUN = (
    "One task per rank, as srun starts them; with torchrun, accelerate or deepspeed, which start the ranks "
    "of a node themselves, use --ntasks-per-node=1."
)
_NO_HOST = "The job's RAM need is unknown, so --mem keeps the partition's default."
_CPUS = "The number of processors for data loading is unknown: add --cpus-per-task."


def slurm_answer(judge: CardJudge) -> Answer:
    """Return which partitions can take the job, and the lines that ask for it.

    Raises:
        CannotTellError: scontrol fails; or it is missing, and no card is named.
    """
    try:
        cluster = read_cluster()
    except NoSlurmError as error:
        if judge.memory_bytes is None:
            raise NoSlurmError(f"{error.message}; run this on a login node, or name a card with --gpu-type") from None
        return _without_cluster(judge, error.message)
    offers = find_offers(cluster, judge)
    need = f"{need_sentence(judge.budget)}{_host_words(judge, offers)}"
    gone = [node for node in cluster.nodes if node.gpus and node.is_gone]
    notes = [
        (f"Not counted: {len(gone)} node{'s' * (len(gone) > 1)} with GPUs that are down, drained or not answering.")
    ] * bool(gone)
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
        sentence = _why_not(offers, cluster, judge)
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
        else "may have to wait: the number of free GPUs is unknown"
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


def _why_not(offers: Sequence[Offer], cluster: SlurmCluster, judge: CardJudge) -> str:
    if not any(node.gpus for node in cluster.nodes):
        return "No node of this cluster has a GPU."
    if not offers:
        what = f"No available node has the card {judge.gpu.label}" if judge.gpu else "No node with GPUs is available"
        return f"{what}, or it is in no partition."
    if any(offer.verdict == "unknown" for offer in offers):
        return "No partition is known to fit; the memory of some GPUs is unknown."
    known = [card for offer in offers for card in offer.match.cards if card.gpu and not offer.match.mig]
    largest = max(known, key=lambda card: card.total_bytes, default=None)
    name = largest.gpu.name if largest and largest.gpu else "NAME"
    return f"No partition can take it. vramtop fit --gpu-type {name} shows which changes would make it fit there."


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


def _without_cluster(judge: CardJudge, reason: str) -> Answer:
    """Return the request for the card that the command line names, without facts of a cluster."""
    card = CardSize(gpu=judge.gpu, total_bytes=judge.memory_bytes or 0)
    match = CardMatch(cards=(card,))
    verdict = judge.verdict(match)
    per_node = judge.ranks_per_usual_node
    nodes = judge.ranks // per_node
    kind = (
        f":{judge.gpu.name.partition('-')[0] if judge.gpu.name[0].isalpha() else judge.gpu.name}" if judge.gpu else ""
    )
    lines = [f"--nodes={nodes}", f"--ntasks-per-node={per_node}", f"--gres=gpu{kind}:{per_node}"]
    if judge.budget.host is not None:
        lines.append(f"--mem={whole_gib(judge.host_bytes(per_node))}G")
    need = f"{need_sentence(judge.budget_on(match))}, and {whole_gib(judge.host_bytes(per_node))} GiB of RAM per node"
    fits = verdict in GOOD
    sentence = f"{reason[:1].upper()}{reason[1:]}: this request is only for the card {match.label}."
    notes = [
        f"Nodes with {USUAL_GPUS_PER_NODE} GPUs are assumed; the cluster may name the GPU differently (sinfo -o %G).",
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
