"""Sources of snapshots: NVML, a recording, the demo, or none; and the thread that samples one.

Lives here: one class per source, with ``open``, ``read`` and ``close``.
Callers: the dashboard and the commands.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .demo import demo_source as demo_source
    from .early_sampler import EarlySampler as EarlySampler
    from .host_load_source import HostLoadSource as HostLoadSource
    from .no_gpu import OptionalGpuSource as OptionalGpuSource
    from .recording import RecordingWriter as RecordingWriter
    from .replay import ReplaySource as ReplaySource
    from .sampler import Sampler as Sampler
    from .source import SnapshotSource as SnapshotSource
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "demo": "demo_source",
            "early_sampler": "EarlySampler",
            "host_load_source": "HostLoadSource",
            "no_gpu": "OptionalGpuSource",
            "recording": "RecordingWriter",
            "replay": "ReplaySource",
            "sampler": "Sampler",
            "source": "SnapshotSource",
        },
    )
