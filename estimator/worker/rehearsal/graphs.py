"""CUDA graphs: what is captured runs once, in memory of its own, and replaying it does nothing.

torch's own ``graph`` and ``make_graphed_callables`` run on these. A graph's private pool is a stream of its own, whose
blocks nobody else gets and whose segments stay until its last graph ends; graphs that share a pool share the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .fake_gpu import FakeGpus

_SENTENCE = "CUDA graphs run once, when they are captured; what CUDA itself keeps for each graph is not counted"


def cuda_graphs(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins for CUDA graphs and their pools."""
    streams: dict[Any, Any] = {}
    users: dict[Any, int] = {}

    def new_pool() -> tuple[int, int]:
        pool = 0, len(streams) + 1
        streams[pool] = torch.cuda.Stream()
        users[pool] = 0
        return pool

    class CUDAGraph:
        """A graph that has been captured by running its operations."""

        def __init__(self, keep_graph: bool = False) -> None:  # noqa: ARG002 - torch's name
            self._pool: Any = None
            gpus.doubts.add(_SENTENCE, "compiled")

        def capture_begin(self, pool: Any = None, *_: Any, **__: Any) -> None:
            self._pool = pool or new_pool()
            users[self._pool] += 1
            gpus.memory[gpus.current].private.add(gpus.stream_number(streams[self._pool]))
            self._inside = torch.cuda.stream(streams[self._pool])
            self._inside.__enter__()

        def capture_end(self) -> None:
            self._inside.__exit__(None, None, None)

        def pool(self) -> Any:
            return self._pool

        def replay(self) -> None:
            """Do nothing: what it would write into is there."""

        def reset(self) -> None:
            """Let the pool go."""
            if self._pool is not None:
                users[self._pool] -= 1
                if not users[self._pool]:
                    gpus.memory[gpus.current].private.discard(gpus.stream_number(streams[self._pool]))
                self._pool = None

        __del__ = reset

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return lambda *_, **__: None  # instantiate, debug_dump, register_generator_state

    for module in (torch.cuda, torch.cuda.graphs):
        yield module, "CUDAGraph", CUDAGraph
        yield module, "graph_pool_handle", new_pool
