"""The JSON of an anomaly, key by key (``oddities``); its schema is made from these types."""

from typing import TypedDict

from .anomaly import AnomalyKind


class AnomalyJson(TypedDict):
    """An unusual use of GPU memory."""

    kind: AnomalyKind
    """`helpers`: data loader workers hold a CUDA context; `shared`: ranks share a GPU; `strays`: a rank uses another
    rank's GPU; `forgotten`: idle processes of your own; `ended`, `unseen`: memory of no visible process."""
    gpu: int
    """NVML index of the GPU."""
    pids: list[int]
    """The processes; empty: memory of no visible process."""
    about: list[int]
    """Other processes that it concerns: the owner of helpers, the rank whose GPU it is."""
    held_bytes: int
    """Bytes that these processes hold on this GPU."""
    sentence: str
    """The anomaly in words."""
    advice: str
    """What to do about it."""
