"""Schedulers: the GPUs that they have to give, to match a job with them before it is submitted."""

import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.common.trust import find_program, why_not_found
from vramtop.estimator.job.gpu_catalogue import Gpu, catalogue

# The cards behind the names that clusters give their GPUs: ``a100``, ``nvidia_a100_80gb_pcie``, ``1g.10gb``.
#
# A name may stand for several cards of the catalogue, and then each counts: what fits on all of them fits.


_WORD = re.compile(r"[a-z]+\d*[a-z]*|\d+[a-z]*")
_VENDOR = {"nvidia", "tesla", "geforce", "quadro", "gpu", "gpus", "generation", "graphics"}
_FORMS = {"sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "pcie", "hbm2", "hbm2e", "hbm3", "hbm3e", "server", "edition"}
"""Words for the form of a card; the catalogue may lack the one that a cluster has."""
_AMBIGUOUS = {"rtx", "4000", "5000", "6000", "8000"}
"""An RTX 6000 may be of Turing (24 GB), Ada (48) or Blackwell (96): of the first the catalogue has none."""
_SERIES = re.compile(r"(rtx|gtx)?(\d{4})(ti|super|ada)?")
_BARE_SIZE_WORD = re.compile(r"([1-9]\d{1,2})g?")
_MIG = re.compile(r"(?:^|[_:.-])(\d)g\.(\d+)gb", re.IGNORECASE)
_SIZE = re.compile(r"(?<!\d)(\d{1,3})g(?:i?b)?(?![0-9a-z])", re.IGNORECASE)
_BARE_SIZE = re.compile(r"(?:gpu|vram|gmem)[a-z_-]*[_:=-]?(\d{1,3})(?![0-9a-z])", re.IGNORECASE)
_GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSize:
    """A card that a name may stand for."""

    gpu: Gpu | None
    """Entry of the catalogue; None: only the size is known."""
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMatch:
    """The cards that the name of a GPU may stand for."""

    cards: tuple[CardSize, ...] = ()
    """Smallest first; empty: its memory is unknown."""
    mig: str | None = None
    """Profile of a MIG device: ``3g.20gb``."""
    feature: str | None = None
    """Feature of the node that told the card or its size; None: its name did."""

    @property
    def label(self) -> str:
        """Name in sentences: ``A100 80GB``, ``A100 40GB or A100 80GB``, ``MIG 3g.20gb``."""
        if self.mig:
            return f"MIG {self.mig}"
        named = (card.gpu.label if card.gpu else f"{card.total_bytes / GIB:.0f} GiB" for card in self.cards)
        return " or ".join(dict.fromkeys(named)) or "unknown card"


def match_card(name: str | None, features: Iterable[str] = ()) -> CardMatch:
    """Return the cards that a cluster's name for a GPU may stand for.

    Args:
        name: type of the Gres; None: it has none.
        features: those of the node, which may name the card, or its size where the name leaves several.
    """
    return _match(name, tuple(features))


@functools.lru_cache(maxsize=4096)
def _match(name: str | None, features: tuple[str, ...]) -> CardMatch:
    if name and (mig := _MIG.search(name)):
        return _mig(name, mig)
    if name:
        return _narrowed(_named(name), name, features)
    for feature in features:  # no type: a feature that names a card, if all that do name the same
        found = _named(feature)
        others = [each for each in features if each != feature and (named := _named(each)) and named != found]
        if found and not others:
            match = _narrowed(found, feature, features)
            return CardMatch(cards=match.cards, feature=match.feature or feature)
    return CardMatch()


def _mig(name: str, mig: re.Match[str]) -> CardMatch:
    """Return a MIG device: its name rounds its size, so that it lies between that many GB and that many GiB."""
    parents = _named(name[: mig.start()])
    parent = parents[0] if parents else None
    size = int(mig[2])
    sizes = (CardSize(gpu=parent, total_bytes=size * _GB), CardSize(gpu=parent, total_bytes=size * GIB))
    return CardMatch(cards=sizes, mig=f"{mig[1]}g.{size}gb")


def _narrowed(gpus: tuple[Gpu, ...], name: str, features: tuple[str, ...]) -> CardMatch:
    """Return cards, those of the size only that a feature of the node gives."""
    told = None
    if len({_nominal(gpu) for gpu in gpus}) > 1:
        for feature in features:
            size = _size_in(feature, name)
            fitting = tuple(gpu for gpu in gpus if size is not None and _nominal(gpu) == size)
            if fitting:
                gpus, told = fitting, feature
                break
    cards = sorted({gpu.total_bytes: gpu for gpu in reversed(gpus)}.items())
    return CardMatch(cards=tuple(CardSize(gpu=gpu, total_bytes=size) for size, gpu in cards), feature=told)


def _size_in(feature: str, name: str) -> int | None:
    """Return the GB of a GPU that a feature gives: ``gpu_mem_80``, ``a100_80gb``, ``80gb``; networks have sizes too."""
    rest = feature.casefold()
    about_gpu = name.casefold() in rest or any(word in rest for word in ("gpu", "vram", "gmem"))
    rest = rest.replace(name.casefold(), " ")
    if found := _SIZE.search(rest):
        return int(found[1]) if about_gpu or re.fullmatch(r"\s*\d+gi?b", rest) else None
    if about_gpu and (found := _BARE_SIZE.search(feature)):
        return int(found[1])
    found = re.fullmatch(r"\s*[_-](\d{2,3})", rest) if about_gpu else None
    return int(found[1]) if found else None


def _nominal(gpu: Gpu) -> int:
    """Return the size in a GPU's name, in GB."""
    found = re.search(r"(\d+)gb", " ".join((gpu.name, *gpu.aliases, gpu.label.casefold())), re.IGNORECASE)
    return int(found[1]) if found else round(gpu.total_bytes / GIB)


@functools.lru_cache(maxsize=4096)
def _named(name: str) -> tuple[Gpu, ...]:
    """Return the GPUs that may be meant: the one of exactly this name, else all that have every word of it."""
    words = _words(name)
    for each in (words, words - _FORMS):
        if not any(character.isdigit() for word in each for character in word) or each <= _AMBIGUOUS:
            continue
        exact = tuple(gpu for gpu in catalogue() if any(each == own for own in _own_words(gpu, aliases=False)))
        found = exact or tuple(gpu for gpu in catalogue() if any(each <= own for own in _own_words(gpu, aliases=True)))
        if found:
            return found
    return ()


@functools.cache
def _own_words(gpu: Gpu, *, aliases: bool) -> list[set[str]]:
    return [_words(each) for each in (*gpu.nvml_names, gpu.label, gpu.name, *(gpu.aliases if aliases else ()))]


def _words(name: str) -> set[str]:
    """Return the words of a name: {rtx, 4090} of ``rtx4090`` and of ``NVIDIA GeForce RTX 4090``."""
    found: set[str] = set()
    for word in _WORD.findall(name.casefold()):
        parts = _SERIES.fullmatch(word)
        for part in filter(None, parts.groups() if parts else [word]):
            size = _BARE_SIZE_WORD.fullmatch(part)
            found.add(f"{size[1]}gb" if size else part)
    return found - _VENDOR


# Nodes and partitions of a Slurm cluster, from the one-line records of ``scontrol show node`` and ``show partition``.
#
# Sources: scontrol(1), slurm.conf(5) and gres.conf(5) of Slurm 20.11 to 25.05; states from sinfo(1), "NODE STATE
# CODES". A record is ``Name=value`` pairs; values such as OS and Reason contain spaces, and Reason, Comment and Extra
# are free text, which is why only the first pair of a name counts: these stand last.


_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*)=")
_GRES = re.compile(
    r"(?P<name>[a-z_]+)(?::(?P<type>[A-Za-z][^:()]*|\d+g\.[^:()]+|\d+[A-Za-z_][^:()]*))?(?::(?P<count>\d+)(?P<unit>[KM]?))?"
)
_UNITS = {"": 1, "K": 1024, "M": 1024**2}
_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")
_NOT_A_TYPE = "no_consume"
_GONE = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "FUTURE", "INVALID_REG", "INVAL"),
    *("NOT_RESPONDING", "NO_RESPOND", "DYNAMIC_FUTURE"),
}
"""States of a node that takes no job until somebody has looked after it."""
_LATER = {
    *("RESERVED", "MAINTENANCE", "MAINT", "PLANNED", "COMPLETING", "REBOOT_REQUESTED", "REBOOT_ISSUED", "BLOCKED"),
    *("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "POWER_DRAIN"),
}
"""States of a node that takes jobs, but not at once or not those of everybody."""
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWERING_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""Marks that scontrol and sinfo put behind a state."""
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """GPUs of one type on one node."""

    type: str | None
    """Name that the cluster gave them; None: none."""
    count: int
    used: int | None
    """GPUs that jobs have; None: Slurm does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """One node, as far as Slurm knows it."""

    name: str
    gpus: tuple[NodeGpus, ...]
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    states: frozenset[str]
    cpus: int | None
    free_cpus: int | None
    memory_bytes: int | None
    """RAM that jobs may have."""
    free_memory_bytes: int | None
    """RAM that no job has."""

    @property
    def is_gone(self) -> bool:
        """Whether it is down, drained, or does not answer."""
        return not self.states or bool(self.states & _GONE)

    @property
    def takes_jobs_now(self) -> bool:
        """Whether a job could start on it at once, if there is room."""
        return not self.is_gone and not self.states & _LATER


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPartition:
    """One partition."""

    name: str
    is_up: bool
    is_default: bool
    max_nodes: int | None
    """Most nodes of a job; None: any number."""


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Return the nodes of ``scontrol show node -o``, with or without ``-d``."""
    return tuple(_node(record) for record in _records(text) if _NAME.fullmatch(record.get("NodeName", "")))


def parse_partitions(text: str) -> tuple[SlurmPartition, ...]:
    """Return the partitions of ``scontrol show partition -o``."""
    return tuple(
        SlurmPartition(
            name=record["PartitionName"],
            is_up=record.get("State", "UP").upper() == "UP",
            is_default=record.get("Default", "NO").upper() == "YES",
            max_nodes=_whole(record.get("MaxNodes")),
        )
        for record in _records(text)
        if _NAME.fullmatch(record.get("PartitionName", ""))
    )


def _records(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        pairs = list(_PAIR.finditer(line))
        ends = [*(pair.start() for pair in pairs), len(line)][1:]
        record: dict[str, str] = {}
        for pair, end in zip(pairs, ends, strict=True):
            record.setdefault(pair[1], line[pair.end() : end].strip())
        if record:
            yield record


def _node(record: Mapping[str, str]) -> SlurmNode:
    states = _states(record.get("State", ""))
    real, reserved = _whole(record.get("RealMemory")), _whole(record.get("MemSpecLimit")) or 0
    taken = _whole(record.get("AllocMem"))
    memory = None if real is None else max(0, real - reserved)
    cpus, busy = _whole(record.get("CPUEfctv")) or _whole(record.get("CPUTot")), _whole(record.get("CPUAlloc"))
    return SlurmNode(
        name=record["NodeName"],
        gpus=tuple(_gpus(record, states)),
        features=_names(record.get("ActiveFeatures") or record.get("AvailableFeatures") or record.get("Features", "")),
        partitions=_names(record.get("Partitions", "")),
        states=states,
        cpus=cpus,
        free_cpus=None if cpus is None or busy is None else max(0, cpus - busy),
        memory_bytes=None if memory is None else memory * MIB,
        free_memory_bytes=None if memory is None or taken is None else max(0, memory - taken) * MIB,
    )


def _states(text: str) -> frozenset[str]:
    found: set[str] = set()
    for word in text.upper().split("+"):
        name = word.rstrip("".join(_SUFFIXES))
        found.update(_SUFFIXES[mark] for mark in word[len(name) :])
        found.update([name] if name else [])
    return frozenset(found)


def _gpus(record: Mapping[str, str], states: frozenset[str]) -> Iterator[NodeGpus]:
    counts = _gpu_counts(record.get("Gres", ""))
    used = _used(record, counts, states)
    for name, count in counts.items():
        taken = used.get(name) if used is not None else None
        yield NodeGpus(type=name, count=count, used=None if taken is None else min(count, taken))


def _used(
    record: Mapping[str, str], counts: Mapping[str | None, int], states: frozenset[str]
) -> dict[str | None, int] | None:
    """Return how many GPUs of each type jobs have; None: not known.

    ``GresUsed`` stands in the output of ``-d``. AllocTRES has ``gres/gpu`` only where AccountingStorageTRES names it.
    """
    if "GresUsed" in record:
        return dict.fromkeys(counts, 0) | _gpu_counts(record["GresUsed"])
    if "gres/gpu" in record.get("CfgTRES", ""):
        allocated = dict(pair.split("=", 1) for pair in record.get("AllocTRES", "").split(",") if "=" in pair)
        if len(counts) == 1:
            return dict.fromkeys(counts, _whole(allocated.get("gres/gpu", "0")) or 0)
        if "gres/gpu" not in allocated or any(name.startswith("gres/gpu:") for name in allocated):
            return {name: _whole(allocated.get(f"gres/gpu:{name}", "0")) or 0 for name in counts}
        return None
    if states & {"ALLOCATED", "ALLOC"}:
        return dict(counts)  # no processor is left for another job
    return dict.fromkeys(counts, 0) if "IDLE" in states else None


def _gpu_counts(text: str) -> dict[str | None, int]:
    """Return the number of GPUs by type: of ``gpu:a100:4(S:0-1),gpu:2,shard:8``, {a100: 4, None: 2}."""
    counts: dict[str | None, int] = {}
    for part in _OUTSIDE_PARENTHESES.split(text):
        plain = part.partition("(")[0].replace(f":{_NOT_A_TYPE}", "")
        found = _GRES.fullmatch(plain.strip())
        if found and found["name"] == "gpu":
            count = int(found["count"] or 1) * _UNITS[found["unit"] or ""]
            counts[found["type"]] = counts.get(found["type"], 0) + count
    return counts


def _names(text: str) -> tuple[str, ...]:
    words = (word.partition("(")[0].strip() for word in text.split(","))
    return tuple(word for word in words if _NAME.fullmatch(word) and word not in ("null", "N/A"))


def _whole(text: str | None) -> int | None:
    """Return a number; None for UNLIMITED, N/A and the like."""
    return int(text) if text and text.isascii() and text.isdecimal() else None


# Reads the nodes and partitions of the Slurm cluster that this machine belongs to.


_SECONDS = 30
"""The controller of a large cluster may take seconds to answer (``MessageTimeout`` is 10 by default)."""


class NoSlurmError(CannotTellError):
    """This machine has no scontrol that may be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCluster:
    """Nodes and partitions of a cluster."""

    nodes: tuple[SlurmNode, ...]
    partitions: tuple[SlurmPartition, ...]


def read_cluster() -> SlurmCluster:
    """Ask ``scontrol`` for the nodes and partitions.

    Raises:
        NoSlurmError: there is no scontrol.
        CannotTellError: it fails, or says nothing that can be read.
    """
    program = find_program("scontrol", os.environ.get("PATH"))
    if program is None:
        reason = why_not_found("scontrol", os.environ.get("PATH"))
        raise NoSlurmError(f"{reason}, so the cluster's cards are unknown")
    try:
        nodes = _ask(program, "show", "node", "-o", "-d")
    except CannotTellError:
        nodes = _ask(program, "show", "node", "-o")
    try:
        partitions = _ask(program, "show", "partition", "-o")
    except CannotTellError:
        partitions = ""
    return parse_cluster(nodes, partitions)


def parse_cluster(nodes: str, partitions: str) -> SlurmCluster:
    """Return the cluster of ``scontrol show node -o`` and ``scontrol show partition -o``.

    Raises:
        CannotTellError: there is no node in it.
    """
    found = parse_nodes(nodes)
    if not found:
        raise CannotTellError("scontrol show node -o lists no nodes; ask your administrators whether you may see them")
    named = parse_partitions(partitions)
    known = {partition.name for partition in named}
    others = sorted({name for node in found for name in node.partitions} - known)
    unread = (SlurmPartition(name=name, is_up=True, is_default=False, max_nodes=None) for name in others)
    return SlurmCluster(nodes=found, partitions=(*named, *unread))


def _ask(program: Path, *words: str) -> str:
    try:
        answer = subprocess.run(
            [program, *words], capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise CannotTellError(
            f"scontrol {' '.join(words)} did not answer within {_SECONDS} s; scontrol ping says whether Slurm is up"
        ) from None
    except OSError as error:
        raise CannotTellError(f"scontrol cannot be started: {error.strerror}") from None
    if answer.returncode:
        lines = answer.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise CannotTellError(f"scontrol {' '.join(words)} failed: {lines[-1][:200]}")
    return answer.stdout.decode(errors="replace")


# Spreads the ranks of a job over nodes: the same number on each, and on as few nodes as possible.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpace:
    """GPUs, RAM and processors that one node has for a job."""

    gpus: int
    memory_bytes: int | None
    """RAM; None: unknown, and not checked."""
    cpus: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Nodes of a job, and its ranks on each."""

    nodes: int
    per_node: int


def spread_over(
    ranks: int, nodes: Sequence[NodeSpace], memory_bytes: Callable[[int], int], *, max_nodes: int | None = None
) -> Spread | None:
    """Return the spread on the fewest nodes; None: there is no room.

    Args:
        ranks: of the job, each on a GPU of its own.
        nodes: those that may be taken.
        memory_bytes: RAM that this number of ranks needs on one node.
        max_nodes: most nodes that a job may have.
    """
    most = max((node.gpus for node in nodes), default=0)
    for per_node in range(min(most, ranks), 0, -1):
        count = ranks // per_node
        if ranks % per_node or (max_nodes is not None and count > max_nodes):
            continue
        need = memory_bytes(per_node)
        fitting = sum(
            node.gpus >= per_node
            and (node.memory_bytes is None or node.memory_bytes >= need)
            and (node.cpus is None or node.cpus >= per_node)
            for node in nodes
        )
        if fitting >= count:
            return Spread(nodes=count, per_node=per_node)
    return None
