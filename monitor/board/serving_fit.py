"""Will a model that vLLM serves fit: it takes a share of each card's total, and checks that much before it starts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vramtop.estimator.budget.serving_need import ServingNeed
from vramtop.estimator.common.sizes import format_gib

from .fit_check import (
    BEST_FIRST,
    DeviceCapacity,
    DeviceVerdict,
    FitResult,
    Verdict,
    device_count_text,
    placeable_devices,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFit:
    """What vLLM makes of the smallest card that it is placed on."""

    need: ServingNeed
    asked_bytes: int
    """``gpu_memory_utilization`` x the card's total."""
    cache_bytes: int
    cache_tokens: int
    concurrency: float
    """Sequences of full length at once."""

    def to_json(self) -> dict[str, Any]:
        """The contract's ``serving``."""
        return {
            **asdict(self.need),
            "least_bytes": self.need.least_bytes,
            "wanted_bytes": self.need.wanted_bytes,
            "asked_bytes": self.asked_bytes,
            "cache_bytes": self.cache_bytes,
            "cache_tokens": self.cache_tokens,
            "concurrency": round(self.concurrency, 2),
        }


def check_serving_fit(need: ServingNeed, ranks: int, rooms: Sequence[DeviceCapacity]) -> FitResult:
    """Place so many ranks on the roomiest cards: vLLM starts where its share is free and large enough."""
    by_room = {room: _serving_on(need, room) for room in rooms}
    verdicts = {
        room: DeviceVerdict(device=room, verdict=_judge(by_room[room], room), need_bytes=_asked(by_room[room]))
        for room in rooms
    }
    order = sorted(
        placeable_devices(rooms, ranks), key=lambda room: (room.available_bytes is None, -(room.available_bytes or 0))
    )
    chosen = order[:ranks]
    if len(chosen) < ranks:
        sentence = f"needs {ranks} GPUs, and {device_count_text(len(chosen), rooms)}"
        return _fit("does_not_fit", verdicts, chosen, sentence, None)
    fullest = max(chosen, key=lambda room: BEST_FIRST.index(verdicts[room].verdict))
    verdict, serving = verdicts[fullest].verdict, by_room[fullest]
    sentence = _sentence(verdict, serving, fullest) if serving else f"how large {fullest.label} is is not known"
    return _fit(verdict, verdicts, chosen, sentence, serving)


def _fit(
    verdict: Verdict,
    verdicts: dict[DeviceCapacity, DeviceVerdict],
    chosen: Sequence[DeviceCapacity],
    sentence: str,
    serving: ServingFit | None,
) -> FitResult:
    margins = [verdicts[room].margin_bytes for room in chosen]
    known = [margin for margin in margins if margin is not None]
    return FitResult(
        verdict=verdict,
        gpus=tuple(verdicts.values()),
        rank_devices=tuple(chosen),
        margin_bytes=min(known) if known and len(known) == len(chosen) else None,
        sentence=sentence,
        serving=serving,
    )


def _asked(serving: ServingFit | None) -> int:
    return serving.asked_bytes if serving else 0


def _serving_on(need: ServingNeed, room: DeviceCapacity) -> ServingFit | None:
    """On one card; None where its total is not known. CUDA's total leaves out what the driver keeps."""
    if room.total_bytes is None:
        return None
    total = room.total_bytes - room.reserved_bytes
    return ServingFit(
        need=need,
        asked_bytes=need.asked_bytes(total),
        cache_bytes=need.cache_bytes(total),
        cache_tokens=need.cache_tokens(total),
        concurrency=need.concurrency(total),
    )


def _judge(serving: ServingFit | None, room: DeviceCapacity) -> Verdict:
    """Whether vLLM starts there."""
    if serving is None or room.available_bytes is None:
        return "unknown"
    if serving.asked_bytes > room.available_bytes or serving.need.least_bytes > serving.asked_bytes:
        return "does_not_fit"
    return "fits" if serving.need.high_bytes <= serving.asked_bytes else "tight"


def _sentence(verdict: Verdict, serving: ServingFit, room: DeviceCapacity) -> str:
    """The verdict in words, for the fullest of the cards."""
    need = serving.need
    share = f"vLLM takes {need.utilization:g} of each card, {format_gib(serving.asked_bytes)} GiB"
    parts = f"weights, its largest step and one sequence of {need.length:,} tokens"
    least = f"{format_gib(need.least_bytes)} GiB for {parts}"
    if verdict == "unknown":
        return f"{share}, and needs {least}; how much {room.label} can give is not known"
    if room.available_bytes is not None and serving.asked_bytes > room.available_bytes:
        have = f"{room.label} has {format_gib(room.available_bytes)}"
        return f"{share} at its start, and {have}: it would refuse to start; it needs {least}"
    if verdict == "does_not_fit":
        raised = need.least_bytes <= serving.asked_bytes / need.utilization
        what = "raise --gpu-memory-utilization" if raised else "spread it over more GPUs"
        return f"{share}, and needs {least}: {what}, or lower --max-model-len"
    at_once = f"{serving.concurrency:.1f} sequences of {need.length:,} at once, of {need.sequences} that it may run"
    cache = f"{format_gib(serving.cache_bytes)} GiB of it are cache: {serving.cache_tokens:,} tokens, {at_once}"
    return f"{share}; {cache}" + ("; it may need more at its start" if verdict == "tight" else "")
