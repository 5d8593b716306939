"""Wordings in which programs say that memory ran out: one table, with what each tells and what helps."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, toml

from ..common.records import replace
from ..common.sizes import size_text
from .records import FailureKind, OutOfMemory

SIZE = r"\d[\d,]{0,24}(?:\.\d{1,9})? ?(?:bytes|[KMGTPE]i?B?|B)\b"
_PARTS = re.compile(r"([\d,]+(?:\.\d+)?) ?([A-Za-z]*)")
_MAX_BYTES = 2**50
"""Larger figures are -1 as an unsigned number: the driver did not know."""


def size_bytes(text: str, *, binary: bool = False) -> int | None:
    """Return the bytes of a size such as ``2.25GiB``, ``20.00 MiB``, ``0 bytes`` or ``184549376B``; None: unknown.

    Args:
        text: a size; XLA's ``G`` and ``M`` are powers of 1024. Without a unit it is bytes, a decimal GiB.
        binary: ``GB`` and ``MB`` are powers of 1024 too.
    """
    match = _PARTS.match(text)
    if match is None or len(match[1]) > 24:
        return None
    unit = match[2] or ("GiB" if "." in match[1] else "")
    power = "KMGTPE".find(unit[0].upper()) + 1 if unit and unit != "bytes" else 0
    base = 1000 if unit[1:] in ("B", "b") and not binary else 1024
    size = float(match[1].replace(",", "")) * base**power
    return round(size) if size < _MAX_BYTES else None


class Wording(Struct, frozen=True, kw_only=True):
    """One way of saying that memory ran out."""

    kind: FailureKind
    source: str | None = None
    """Name of the program or library that says it; None: the wording does not tell."""
    pattern: str
    """Regular expression of the line that says it; named groups are figures."""
    sure: bool = True
    """False: it has other causes than memory too."""
    caught: bool = False
    """The line says that the program goes on."""
    figures: tuple[str, ...] = ()
    """Expressions whose named groups are figures too, in the same line or one that follows it."""
    binary: bool = False
    """``MB`` and ``GB`` are powers of 1024 here."""
    says: tuple[str, ...] = ()
    """What it means and what helps; ``{name}`` is a figure, and a sentence whose figures the log lacks is left out."""

    def memory(self, found: Mapping[str, str]) -> OutOfMemory | None:
        """Return the figures of the GPU; None: the log has none."""
        known = {name: self.size(found[name]) for name in ("tried", "total", "free", "allocated") if name in found}
        if self.kind in ("host", "killed", "on chip") or not (known or "gpu" in found):
            return None
        return OutOfMemory(
            backend=self.source or "CUDA",
            gpu=int(found["gpu"]) if "gpu" in found else None,
            tried_bytes=known.get("tried"),
            total_bytes=known.get("total"),
            free_bytes=known.get("free"),
            allocated_bytes=known.get("allocated"),
        )

    def sentences(self, found: Mapping[str, str]) -> Iterator[str]:
        """Yield what it says, with the figures of the log.

        Args:
            found: figures by name, as the log has them.
        """
        sizes = {name: size for name, text in found.items() if name in _SIZES and (size := self.size(text)) is not None}
        texts = {name: text for name, text in found.items() if name not in _SIZES}
        texts |= {name: size_text(size) for name, size in sizes.items()}
        if sizes.get("total") and "free" in sizes:
            texts["others"] = size_text(sizes["total"] - sizes["free"])
            percent = int(100 * sizes["free"] / sizes["total"])  # rounded down
            texts["share"] = f"{percent / 100:.2f}"
        for sentence in self.says:
            if all(name in texts for name in re.findall(r"\{(\w+)\}", sentence)):
                yield sentence.format_map(texts)

    def size(self, text: str) -> int | None:
        """Return the bytes of a size as this program prints it."""
        return size_bytes(text, binary=self.binary)


_SIZES = frozenset(
    "tried total free allocated needed wanted room used node beyond arguments outputs temporaries".split()  # noqa: SIM905
)
"""Names of figures that are sizes; all others are words or numbers, shown as they are."""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``wordings.toml``."""

    shared: dict[str, str]
    wording: tuple[Wording, ...]


def _wordings() -> tuple[Wording, ...]:
    """Return the rows of the table, with sizes and shared sentences in place of their names."""
    text = Path(__file__).with_name("wordings.toml").read_text(encoding="utf-8").replace("{SIZE}", SIZE)
    file = toml.decode(text, type=_File)

    def sentence(given: str) -> str:
        own, at, name = given.rpartition("@")
        return own + file.shared[name] if at else given

    return tuple(replace(row, says=tuple(map(sentence, row.says))) for row in file.wording)


WORDINGS = _wordings()

CAUGHT = re.compile(  # fairseq, Lightning's batch size finder, detectron2, ComfyUI, ultralytics, OpenNMT
    r"(?i:attempting to recover from OOM|batch size \d+ failed, trying batch size|retrying (?:with )?batch"
    r"|ignoring this choice|attempting to copy inputs of .{0,200} due to CUDA OOM|finished batch size finder"
    r"|(?<!try )(?<!consider )(?<!by )(?<!please )(?:decreas|reduc|halv)(?:ing|ed) (?:the |micro[ -]?)?batch[ -_]size "
    r"(?:from|to)\b|skipp\w{1,9} (?:\w{1,20} ){0,2}batch|(?:\boom\b|out ?of ?memory).{0,120}"
    r"(?:(?<!please )(?<!to )(?<!and )\bretry|(?<!before )\bretrying|\bskipp|\brecover|batch removed|continuing|halving"
    r"|using cpu|falling back|trying again|(?<!try )(?<!consider )(?<!by )reducing (?:the )?batch)"
    r"|(?:\bretry(?! failed)\w{0,9}|\bskipp\w{1,9}|\brecover\w{0,9}) .{0,60}(?:\boom\b|out of memory))"
)
"""A line that says the program caught the failure and goes on."""
ENDED = re.compile(r"'train_runtime':|`Trainer\.fit` stopped: `max_|Training completed\. Do not forget to share")
"""A line that Hugging Face's or Lightning's trainer prints where training has come to its end."""


_LETTERS = bytes(byte + 32 if 65 <= byte <= 90 else byte for byte in range(256))
_LEFT_OUT = b"0123456789 ._-"
"""Characters in which lines of one kind differ, and in which wordings of one failure do."""


def fold(text: bytes) -> bytes:
    """Return a text without digits, blanks, dots and dashes, in lower case: lines of one kind become equal."""
    return text.translate(_LETTERS, _LEFT_OUT)


_ROOTS = {
    root.encode(): tuple(word.encode() for word in words.split())
    for root, words in {
        "memory": "outof enoughmem enoughtmem enoughgpu enoughvid enoughdev memoryerror lowonmem memorypressure "
        "memorylimit memory(shm memoryondevice memoryfor memoryprof memoryalloc systemmemory memorycapac memoryseg "
        "memorybudget morememory hostmemory insufficient lowmemory!",
        "vram": "outofvram enoughvram insufficientvram",
        "alloc": "oallocate beallocated tallocate allocating allocationo allocfailed badalloc cudahostalloc calloc "
        "hostalloc cachingallocator memoryallocation allocationfa",
        "code": "exitcode returncode withcode",
        "signal": "bysignal onsignal tosignal :signal",
        "status": "exitstatus nonzero",
        "cu": "cublas cudnn cusolver cusparse executablebatch",
        "": "enomem exhausted unexpectedly findanengine outofres dsttensoris maxseq objectstorefull pagingfile "
        "winerror ]error buserror spaceleft dispatchedonthecpu allavailableram insufficientspace swapspace "
        "onhost largeenoughto workersdied offloadedtothedisk buffersize: abruptly 1eb nvmapmem nvrmmem "
        "onresource:memory memlimit "
        "hvmem el0004 devicesideassert illegalmemory launchfailure 已杀死 已砍掉 強制終了 getötet processusarrêté "
        "terminado(killed) Убито ucciso [errno] 无法分配内存 存不足 выделитьпамять allouerdelam メモリを確保できません",
    }.items()
}
"""Folded words of which every line that the table knows contains one, by the part that they share."""
_WEAK = (b"kill", b"oom")
"""Folded words of the other lines: parts of others, such as of skill and room, so that the line itself is looked at."""
_KILLED = re.compile(rb"\b(?:OOM|oom)|\bKilled\b|SIGKILL|9/KILL|(?:: |job |\] .{0,22})killed\b|killed (?:by|as)\b")
_AFTERWARDS = tuple(b"oom retry skipp failed,trying copyinputsof ignoringthischoice batchsize loss train".split())
"""Folded words of which every line of a loop, of ``CAUGHT`` and of ``ENDED`` contains one that says nothing else."""


def lines_that_may_say(folded: bytes) -> set[bytes]:
    """Keep the folded lines that may report that memory ran out; no other line does."""
    return lines_with(folded, [word for root, shared in _ROOTS.items() if root in folded for word in shared])


def lines_that_may_say_killed(folded: bytes) -> set[bytes]:
    """Return those of folded lines that may say so where ``may_say_killed`` finds it in the line as it is."""
    return lines_with(folded, _WEAK)


def may_say_killed(line: bytes) -> bool:
    """Return False for a line that certainly says nothing of a process that was killed."""
    return _KILLED.search(line) is not None


def lines_that_may_go_on(folded: bytes) -> set[bytes]:
    """Keep the folded lines that may report that the program went on; no other line does."""
    return lines_with(folded, _AFTERWARDS)


def lines_with(folded: bytes, words: Iterable[bytes]) -> set[bytes]:
    """Return the lines of a text that contain one of the words: it is searched as a whole, as words are few."""
    found = set()
    for word in words:
        at = folded.find(word)
        while at >= 0:
            end = folded.find(b"\n", at)
            end = len(folded) if end < 0 else end
            found.add(folded[folded.rfind(b"\n", 0, at) + 1 : end])
            at = folded.find(word, end)
    return found


PINNED = Wording(  # at::cuda::getPinnedMemoryAllocator: cudaHostAlloc, in a process that may have no CUDA context yet
    kind="gpu library",
    source="pinned memory",
    pattern="",
    sure=False,
    says=(
        "The call pins CPU RAM, for which the error has the same words: the host may have no more RAM to pin (or "
        "ulimit -l forbids it), or the GPU no room for the CUDA context that pinning needs.",
        "Pin less (pin_memory=False in DataLoader, fewer workers, no optimizer or parameter offload), or free the GPU.",
    ),
)
"""A CUDA error that the line of the traceback which pins memory raises; its words are those of any other."""

BROKEN = re.compile(r"device-side assert triggered|an illegal memory access|unspecified launch failure")
AFTER_FAULT = Wording(
    kind="gpu library",
    source="after a fault",
    pattern="",
    sure=False,
    says=(
        "A kernel had failed before this line ({fault}), and every later CUDA call fails with it: this one is no sign "
        "that memory ran out. An index out of range, such as a label or a token beyond the model's vocabulary, is the "
        "usual cause.",
        "Run with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line that did it.",
    ),
)
"""A library's error in a process whose GPU had failed already."""

_COMPILED = tuple((wording, re.compile(wording.pattern)) for wording in WORDINGS)


def find_wording(line: str, *, before: int | None = None) -> tuple[Wording, dict[str, str]] | None:
    """Return the wording of a line of a log with the figures in it; None: it does not say that memory ran out.

    Args:
        line: of a log.
        before: what begins here or later does not count.
    """
    for wording, pattern in _COMPILED:
        if (match := pattern.search(line)) and (before is None or match.start() < before):
            return wording, {name: text for name, text in match.groupdict().items() if text} | further(wording, line)
    return None


def further(wording: Wording, line: str) -> dict[str, str]:
    """Return the figures of a wording that stand in this line, its own or one that follows it."""
    found: dict[str, str] = {}
    for pattern in wording.figures:
        if match := re.search(pattern, line):
            found = {name: text for name, text in match.groupdict().items() if text} | found
    return found
