"""Words that completions ask for (``vramtop __complete KIND``): models that are here, and processes on GPUs."""

from collections.abc import Callable, Iterator, Mapping


def dynamic_words(kind: str = "") -> list[str]:
    """Return the words of a kind, each perhaps with a tab and its meaning; none for a kind that there is not.

    Args:
        kind: ``models`` or ``pids``.
    """
    return list(_KINDS[kind]()) if kind in _KINDS else []


def _models() -> Iterator[str]:
    from ...job.form import cached_models, model_names

    yield from dict.fromkeys([*cached_models(), *(name.lower() for name in model_names() if "/" not in name)])


def _pids() -> Iterator[str]:
    from vramtop.estimator.common import CannotTellError, format_gib
    from vramtop.monitor.sources.nvml import NvmlSource

    source = NvmlSource()
    try:
        source.open()
        snapshot = source.read()
    except CannotTellError:
        return
    finally:
        source.close()
    for gpu, process in snapshot.processes():
        used = "memory n/a" if process.used_bytes is None else f"{format_gib(process.used_bytes)} GiB"
        command = (process.command or "")[:60]
        yield f"{process.pid}\tGPU {gpu.index}, {used}: {command}".replace("\n", " ")


_KINDS: Mapping[str, Callable[[], Iterator[str]]] = {"models": _models, "pids": _pids}
