"""``vramtop fit JOB --cloud``: instance types of clouds on which a job fits, and snippets for SkyPilot and dstack."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common import GIB
from vramtop.monitor.board.fit import VERDICTS_BEST_FIRST, Verdict
from vramtop.monitor.fleet.schedulers import (
    CardMatch,
    CardSize,
    InstanceType,
    NodeSpace,
    instance_types,
    spread_over,
    table_date,
)

from ...draw import format_table
from .answer import Answer, Target, whole_gib
from .card_judge import GOOD, CardJudge, need_sentence

if TYPE_CHECKING:
    from ..json_types import CloudFacts, InstanceJson

_PER_CLOUD = 4
"""Rows of a cloud in the table: those with the fewest instances and the smallest cards."""
_MOST_TIMES = 2
"""Instance types of which the job takes more than this many times the fewest are not in the table."""
_MAX_CARDS = 3
"""Cards in a snippet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """An instance type, and how many of them the job takes."""

    type: InstanceType
    verdict: Verdict
    count: int
    per_node: int

    def to_json(self) -> "InstanceJson":
        return {
            "cloud": self.type.source.cloud,
            "name": self.type.name,
            "gpu": self.type.gpu.name,
            "gpus": self.type.gpus,
            "ram_bytes": self.type.ram_bytes,
            "instances": self.count,
            "ranks_each": self.per_node,
            "verdict": self.verdict,
            "source": self.type.source.address,
            "date": self.type.source.date,
            "read": table_date(),
        }


def cloud_answer(judge: CardJudge, target: Target) -> Answer:
    """Return the instance types on which the job fits.

    Args:
        judge: of the job.
        target: only this card, or cards of at least this memory.
    """
    choices = sorted(_choices(judge, target), key=lambda choice: _preference(choice, judge))
    need = need_sentence(judge.budget)
    facts: CloudFacts = {
        "instances": [choice.to_json() for choice in choices],
        "table_date": table_date(),
        "skypilot": None,
        "dstack": None,
    }
    dated = f"Instance types as they were read on {table_date()}, without prices; check what is free in your region."
    if not choices:
        known = {kind.gpu.name for kind in instance_types()}
        if target.gpu is not None and target.gpu.name not in known:
            sentence = f"The table has no instance type with {target.gpu.label} GPUs."
            return Answer(verdict="unknown", need=need, sentence=sentence, json=facts, notes=[dated])
        sentence = "It fits on no instance type of the table; vramtop fit --gpu-type NAME says what would make it fit."
        return Answer(verdict="does_not_fit", need=need, sentence=sentence, json=facts, notes=[dated])
    best = choices[0]
    emulated = judge.emulates_bf16(best.type.gpu)
    alike = [
        choice
        for choice in choices
        if choice.verdict == best.verdict and judge.emulates_bf16(choice.type.gpu) == emulated
    ]
    skypilot, dstack = _skypilot(alike, judge), _dstack(alike, judge)
    facts["skypilot"], facts["dstack"] = "\n".join(skypilot) or None, "\n".join(dstack) or None
    snippets = [
        part for part in (_block("SkyPilot: task.yaml", skypilot), _block("dstack: .dstack.yml", dstack)) if part
    ]
    clouds = len({choice.type.source.cloud for choice in choices})
    sentence = f"{len(choices)} instance types of {clouds} clouds can take it."
    return Answer(
        verdict=best.verdict,
        need=need,
        sentence=sentence,
        json=facts,
        table=_table(choices),
        request=[line for part in snippets for line in part],
        notes=[dated],
    )


def _choices(judge: CardJudge, target: Target) -> Iterator[_Choice]:
    for kind in instance_types():
        if target.gpu is not None and kind.gpu.name != target.gpu.name:
            continue
        if target.gpu is None and target.memory_bytes and kind.gpu.total_bytes < target.memory_bytes:
            continue
        verdict = judge.verdict(CardMatch(cards=(CardSize(gpu=kind.gpu, total_bytes=kind.gpu.total_bytes),)))
        if verdict not in GOOD:
            continue
        room = [NodeSpace(gpus=kind.gpus, memory_bytes=kind.ram_bytes, cpus=None)] * judge.ranks
        spread = spread_over(judge.ranks, room, judge.host_bytes)
        if spread is None:
            spread, verdict = spread_over(judge.ranks, room, judge.least_host_bytes), "tight"
        if spread is not None:
            yield _Choice(type=kind, verdict=verdict, count=spread.nodes, per_node=spread.per_node)


def _preference(choice: _Choice, judge: CardJudge) -> tuple[Any, ...]:
    kind = choice.type
    memory = kind.gpus * kind.gpu.total_bytes
    emulated = judge.emulates_bf16(kind.gpu)
    return (VERDICTS_BEST_FIRST.index(choice.verdict), emulated, choice.count, memory, kind.ram_bytes or 0, kind.name)


def _table(choices: Sequence[_Choice]) -> list[str]:
    rows = [("CLOUD", "INSTANCE TYPE", "GPUS", "RAM", "TAKES", "VERDICT", "SOURCE, AS OF")]
    shown: dict[str, int] = {}
    sources: dict[str, str] = {}
    few = [choice for choice in choices if choice.count <= _MOST_TIMES * choices[0].count]
    for choice in few:
        source, kind = choice.type.source, choice.type
        shown[source.cloud] = shown.get(source.cloud, 0) + 1
        if shown[source.cloud] > _PER_CLOUD:
            continue
        mark = sources.setdefault(f"{source.address}", f"[{len(sources) + 1}]")
        ram = f"{kind.ram_bytes / GIB:.0f} GiB" if kind.ram_bytes else "?"
        takes = f"{choice.count} instance{'s' * (choice.count > 1)}"
        rows.append(
            (
                source.cloud,
                kind.name,
                f"{kind.gpus} × {kind.gpu.label}",
                ram,
                takes,
                choice.verdict,
                f"{mark} {source.date or f'read {table_date()}'}",
            )
        )
    more = len(choices) - (len(rows) - 1)
    further = [f"and {more} more (--json lists all)"] if more else []
    return [
        "",
        *format_table(rows, "<<<><<<"),
        *further,
        "",
        *(f"{mark} {address}" for address, mark in sources.items()),
    ]


def _cards(choices: Sequence[_Choice], name: str) -> list[tuple[str, _Choice]]:
    """Return the name of each card that the tool knows, smallest first, on the fewest nodes."""
    fewest = min(choice.count for choice in choices)
    found: dict[str, _Choice] = {}
    for choice in sorted(choices, key=lambda each: each.type.gpu.total_bytes):
        own = getattr(choice.type, name)
        if own and choice.count == fewest:
            found.setdefault(own, choice)
    return list(found.items())[:_MAX_CARDS]


def _skypilot(choices: Sequence[_Choice], judge: CardJudge) -> list[str]:
    cards = _cards(choices, "skypilot")
    if not cards:
        return []
    nodes, per_node = cards[0][1].count, cards[0][1].per_node
    ram = judge.host_bytes(per_node)
    lines = [f"num_nodes: {nodes}", "resources:"]
    if len(cards) == 1:
        lines.append(f"  accelerators: {cards[0][0]}:{per_node}")
    else:
        lines += ["  any_of:", *(f"    - accelerators: {name}:{choice.per_node}" for name, choice in cards)]
    return [*lines, *([f"  memory: {whole_gib(ram)}+"] if ram else [])]


def _dstack(choices: Sequence[_Choice], judge: CardJudge) -> list[str]:
    cards = _cards(choices, "dstack")
    if not cards:
        return []
    nodes, per_node = cards[0][1].count, cards[0][1].per_node
    ram = judge.host_bytes(per_node)
    smallest = min(choice.type.gpu.total_bytes for _, choice in cards)
    names = ", ".join(name for name, _ in cards)
    return [
        "type: task",
        f"nodes: {nodes}",
        "resources:",
        "  gpu:",
        f"    name: [{names}]",
        f"    memory: {_nominal(cards, smallest)}GB..",
        f"    count: {per_node}",
        *([f"  memory: {whole_gib(ram)}GB.."] if ram else []),
    ]


def _nominal(cards: Sequence[tuple[str, _Choice]], smallest: int) -> int:
    """Return the GB in the name of the smallest card, below which another card of the same name would not do."""
    label = next(choice.type.gpu.name for _, choice in cards if choice.type.gpu.total_bytes == smallest)
    found = re.search(r"(\d+)gb", label)
    return int(found[1]) if found else int(smallest // GIB)


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"# --- {title}", *lines] if lines else []
