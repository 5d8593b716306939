"""A stand-in for torch with two GPUs, for programs under the probe."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

_TORCH = """
    class OutOfMemoryError(RuntimeError):
        pass
    class cuda:
        allocated, peak, ooms = {}, None, 0
        backend, names_gpus = "native", True
        uuids = ["11111111-aaaa-bbbb-cccc-000000000001", "22222222-aaaa-bbbb-cccc-000000000002"]
        is_initialized = staticmethod(lambda: bool(cuda.allocated))
        device_count = staticmethod(lambda: 2)
        get_allocator_backend = staticmethod(lambda: cuda.backend)
        @staticmethod
        def get_device_properties(index):
            return type("properties", (), {"uuid": cuda.uuids[index]} if cuda.names_gpus else {})
        @staticmethod
        def memory_stats_as_nested_dict(index):
            if index not in cuda.allocated:
                return {}
            size = cuda.allocated[index]
            peak = cuda.peak or size
            return {"allocated_bytes": {"all": {"current": size, "peak": peak}},
                    "reserved_bytes": {"all": {"current": size + (2 << 20), "peak": peak + (1 << 20)}},
                    "active_bytes": {"all": {"current": size + (1 << 20)}},
                    "num_alloc_retries": 1, "num_ooms": cuda.ooms}
    __version__ = "2.99"
"""


@pytest.fixture
def write_stub_torch(tmp_path: Path) -> Callable[..., None]:
    """Write the module ``torch``, which holds nothing unless ``more`` code says so, into the test's folder."""

    def write(more: str = "") -> None:
        (tmp_path / "torch.py").write_text(textwrap.dedent(_TORCH) + more)

    return write
