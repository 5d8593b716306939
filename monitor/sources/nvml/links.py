"""PCIe and NVLink of one GPU: widths, speeds and traffic."""

from typing import Any

from vramtop.estimator.common.records import replace

from ...snapshot.gpu_details import NvLinks, PcieLink
from .questions import NVLINK_COUNT, NVLINK_COUNTERS, NVLINK_SPEED, Questions

STATE_INTERVAL_SECONDS = 10.0
"""Interval of reading what rarely changes: whether each link is up."""
_SENT, _RECEIVED = 0, 1
"""NVML's PCIe counters."""
_PEERS = {0: "GPU", 1: "POWER9", 2: "switch"}
_MAX_LINKS = 36


class NvmlLinks:
    """The links of one GPU. Not thread-safe.

    Args:
        questions: to the GPU.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._pcie_max: tuple[int | None, int | None] | None = None
        self._nvlink: NvLinks | None = None
        self._nvlink_at: float | None = None
        self._counters: tuple[float, list[int | None]] | None = None
        """Time and values of the NVLink counters at the last reading."""

    def pcie(self) -> PcieLink | None:
        """Return the PCIe link; each of the two traffic counters takes the driver 20 ms. None: nothing is known."""
        ask = self._questions.ask
        if self._pcie_max is None:
            what = "the maximum speed of its PCIe link"
            self._pcie_max = (
                ask("pcie.max_generation", what, "nvmlDeviceGetMaxPcieLinkGeneration"),
                ask("pcie.max_width", what, "nvmlDeviceGetMaxPcieLinkWidth"),
            )
        traffic = [
            ask("pcie.traffic", "its PCIe traffic", "nvmlDeviceGetPcieThroughput", counter)
            for counter in (_SENT, _RECEIVED)
        ]
        sent, received = (None if figure is None else figure * 1000 for figure in traffic)  # KB/s
        link = PcieLink(
            generation=ask("pcie", "its PCIe link", "nvmlDeviceGetCurrPcieLinkGeneration"),
            max_generation=self._pcie_max[0],
            width=ask("pcie", "its PCIe link", "nvmlDeviceGetCurrPcieLinkWidth"),
            max_width=self._pcie_max[1],
            sent_per_second=sent,
            received_per_second=received,
            replays=ask("pcie.replays", "its PCIe replays", "nvmlDeviceGetPcieReplayCounter"),
        )
        return None if link == PcieLink() else link

    def nvlink(self) -> NvLinks | None:
        """Return the NVLinks with their traffic since the last reading; None: none, or not known."""
        now = self._questions.clock()
        if self._nvlink_at is None or now >= self._nvlink_at:
            self._nvlink, self._nvlink_at = self._state(), now + STATE_INTERVAL_SECONDS
        if self._nvlink is None or not self._nvlink.active:
            return self._nvlink
        counters = self._questions.field_values("nvlink.traffic", "its NVLink traffic", NVLINK_COUNTERS)
        before, self._counters = self._counters, (now, counters)
        sent, received = (_rate(before, (now, counters), at) for at in (_SENT, _RECEIVED))
        return replace(self._nvlink, sent_per_second=sent, received_per_second=received)

    def _state(self) -> NvLinks | None:
        questions = self._questions
        count, speed = questions.field_values("nvlink", "NVLinks", (NVLINK_COUNT, NVLINK_SPEED))
        if not count:
            return None
        links = range(min(count, _MAX_LINKS))
        states = [questions.ask("nvlink.active", "its NVLinks", "nvmlDeviceGetNvLinkState", link) for link in links]
        up = [link for link in links if states[link]]
        known = any(state is not None for state in states)
        peers = {_PEERS.get(self._link("nvmlDeviceGetNvLinkRemoteDeviceType", link), "") for link in up}
        return NvLinks(
            count=count,
            active=len(up) if known else None,
            version=self._link("nvmlDeviceGetNvLinkVersion", up[0]) if up else None,
            link_bytes_per_second=None if not speed else speed * 1_000_000,
            peers=tuple(sorted(peers - {""})),
        )

    def _link(self, call: str, link: int) -> Any:
        return self._questions.ask("nvlink.link", "its NVLinks", call, link)


def _rate(before: tuple[float, list[int | None]] | None, after: tuple[float, list[int | None]], at: int) -> int | None:
    """Return bytes a second between two readings of the counters; None at the first, and after a reset."""
    if before is None or after[0] <= before[0]:
        return None
    first, last = before[1][at], after[1][at]
    if first is None or last is None or last < first:
        return None
    return round((last - first) * 1024 / (after[0] - before[0]))
