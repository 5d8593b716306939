"""Memory in the Trainer's own logs, and the end of a training that takes too much. Runs in the user's process.

``TrainerCallback`` of ``vramtop.monitor``. It reads what the probe reads: counters of torch's allocator, without a call
that would create a CUDA context. The prediction comes from ``vramtop attach`` on this process, in a process of its own.
The Trainer's integrations (wandb, TensorBoard, trackio, MLflow) stand before a user's callbacks, so the figures are
added where they all get them: in ``Trainer.log``.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGGER = logging.getLogger("vramtop")
PREFIX = "vramtop/"
GIB = 1 << 30
EVERY_STEPS = 10
"""Several ranks agree whether to stop, which is a collective: after the first three steps in every tenth only."""
FIRST_STEPS = 3
_ATTACH_SECONDS = 120.0
_LEAST_BYTES = 1 << 20
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%(?:\s+of\s+(gpu|the gpu|predicted|the prediction))?", re.IGNORECASE)


@dataclass(frozen=True)
class Limit:
    """Memory beyond which training stops."""

    kind: str
    """``bytes``, ``gpu`` (a share of the GPU's memory) or ``predicted`` (a share of the predicted figure)."""
    number: float

    @classmethod
    def parse(cls, value: Any) -> Limit:
        """Return the limit that ``stop_when_over`` names.

        Raises:
            ValueError: it names none.
            TypeError: it is neither a number nor text.
        """
        if isinstance(value, str):
            percent = _PERCENT.fullmatch(value.strip())
            if percent:
                of_prediction = "predict" in (percent[2] or "").lower()
                share = _positive(float(percent[1]) / 100, value)
                if share > 1 and not of_prediction:  # no memory reaches it, so training would never stop
                    raise ValueError(
                        f"stop_when_over={value!r}: a GPU never exceeds 100 %, so training would never stop; for a "
                        f"share of the prediction, give '{percent[1]}% of predicted'"
                    )
                return cls("predicted" if of_prediction else "gpu", share)
            from vramtop.estimator.common.errors import InputError
            from vramtop.estimator.common.sizes import parse_size

            try:
                return cls("bytes", _positive(parse_size(value), value))
            except InputError:
                raise ValueError(_FORMS.format(value)) from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(_FORMS.format(value))
        if 1 < value < _LEAST_BYTES:  # 95 or 1.1, meant as something else, would stop training after its first step
            raise ValueError(_FORMS.format(value))
        return cls("gpu" if value <= 1 else "bytes", _positive(value, value))


_FORMS = (
    "stop_when_over={!r}: give bytes (70 * 2**30 or '70GiB'), a share of the GPU (0.95 or '95%'), or one of the "
    "prediction ('110% of predicted')"
)


def _positive(number: float, given: Any) -> float:
    if not 0 < number < float("inf"):
        raise ValueError(_FORMS.format(given))
    return number


class TrainerMemory:
    """What one training takes, and is predicted to take.

    Args:
        publisher: the probe's module that reads torch's counters.
        limit: beyond which to stop; None: never.
        budget: the prediction; None: that of ``vramtop attach``.
        settings: for attach, where it cannot read them: ``{"training.sequence_length": 2048}``.
    """

    def __init__(self, publisher: Any, limit: Limit | None, budget: Any, settings: Mapping[str, Any]) -> None:
        self._publisher = publisher
        self._limit = limit
        self._settings = dict(settings)
        self._warned = False
        self.predicted: dict[str, int] = {} if budget is None else _figures_of(budget)
        """Predicted bytes: ``allocated``, ``reserved``, ``device``; empty: not known (yet)."""
        self.asking: threading.Thread | None = None
        """Waits for ``vramtop attach``; None: it was not asked."""

    @property
    def needs_prediction(self) -> bool:
        """True if the limit is a share of the prediction."""
        return self._limit is not None and self._limit.kind == "predicted"

    def ask(self) -> None:
        """Have this process predicted, on a thread; does nothing if the prediction is known."""
        if self.predicted or self.asking is not None:
            return
        asking = threading.Thread(target=self._attach, name="vramtop-prediction", daemon=True)
        try:
            asking.start()
        except RuntimeError as error:  # the limit of threads; training goes on
            LOGGER.warning("vramtop has no prediction of this training: %s", error)
        else:
            self.asking = asking

    def logs(self) -> dict[str, float]:
        """Return the figures for the logs, in GiB; what is not known is not among them."""
        device = max(self._devices(), key=lambda each: each.get("reserved_peak_bytes") or 0, default={})
        sizes = {
            "allocated_peak": device.get("allocated_peak_bytes"),
            "reserved_peak": device.get("reserved_peak_bytes"),
            "host": _resident_bytes(),
            **{f"predicted_{name}": size for name, size in self.predicted.items()},
        }
        return {f"{PREFIX}{name}_gib": round(size / GIB, 4) for name, size in sizes.items() if size is not None}

    def excess(self) -> str | None:
        """Return in words by how much the limit is exceeded; None: it is not, or that is not known."""
        limit = self._limit
        if limit is None:
            return None
        for device in self._devices():
            peak, most = device.get("reserved_peak_bytes"), self._bytes_of(limit, device)
            if peak is not None and most is not None and peak > most:
                return (
                    f"torch has reserved {peak / GIB:.2f} GiB on GPU {device['index']}, more than the "
                    f"{most / GIB:.2f} GiB of stop_when_over"
                )
        return None

    def warn_if_blind(self) -> None:
        """Say once that nothing can be observed, so that training will not stop."""
        if self._limit is not None and not self._warned and not self._devices():
            self._warned = True
            LOGGER.warning("stop_when_over has no effect: this process has no memory on a GPU")

    def _bytes_of(self, limit: Limit, device: Mapping[str, Any]) -> float | None:
        """Return a limit in bytes on one device; None: it is a share of a prediction that is not known."""
        if limit.kind == "bytes":
            return limit.number
        if limit.kind == "gpu":
            total = sys.modules["torch"].cuda.get_device_properties(device["index"]).total_memory
            return limit.number * float(total)
        reserved = self.predicted.get("reserved")
        return None if reserved is None else limit.number * reserved

    def _devices(self) -> list[dict[str, Any]]:
        torch = sys.modules.get("torch")
        return list(self._publisher.device_counters(getattr(torch, "cuda", None)))

    def _attach(self) -> None:
        """Run ``vramtop attach`` on this process."""
        import json

        from vramtop.estimator.trace.start_python import safe_environment

        words = [f"--set={key}={value}" for key, value in self._settings.items()]
        command = [sys.executable, "-m", "vramtop.tui.cli", "attach", str(os.getpid()), "--json", "--method", "formula"]
        environ = safe_environment(os.environ, Path(sys.executable))
        try:
            done = subprocess.run(  # in a folder without modules, which -m would import from before Python 3.11
                [*command, *words],
                cwd="/",
                env=environ,
                capture_output=True,
                text=True,
                timeout=_ATTACH_SECONDS,
                check=False,
            )
            peak = (json.loads(done.stdout).get("budget") or {}).get("peak") if done.stdout else None
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            LOGGER.warning("vramtop has no prediction of this training: %s", error)
            return
        if peak is None:
            reason = done.stderr.strip().splitlines()[-1:] or ["vramtop attach gave none"]
            LOGGER.warning("vramtop has no prediction of this training: %s", reason[0].replace("vramtop: ", "", 1))
            return
        self.predicted = {name: int(peak[f"{name}_bytes"]) for name in ("allocated", "reserved", "device")}


def _figures_of(budget: Any) -> dict[str, int]:
    """Return the figures of a ``Budget``."""
    peak = budget.peak
    return {name: int(getattr(peak, f"{name}_bytes")) for name in ("allocated", "reserved", "device")}


def _resident_bytes() -> int | None:
    """Return this process's resident host memory; None: /proc does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def guarding_class(base: Any, publisher: Any) -> Any:
    """Return ``TrainerCallback``.

    Args:
        base: the callback that publishes settings, model and steps, a subclass of transformers' own.
        publisher: the probe's module that reads torch's counters.
    """

    class TrainerCallback(base):  # type: ignore[misc]
        """Publishes what is trained for vramtop, logs memory, and stops training that takes too much.

        Everything that the Trainer logs gets the figures of this rank in GiB: ``vramtop/allocated_peak_gib``,
        ``vramtop/reserved_peak_gib`` (torch's peaks on the GPU with the most), ``vramtop/host_gib`` (resident memory of
        the process), and once known ``vramtop/predicted_allocated_gib``, ``_reserved_gib`` and ``_device_gib``. What is
        not known is not logged.

        Args:
            stop_when_over: stop after the step in which torch's reserved memory exceeds this: bytes (``70 * 2**30`` or
                ``"70GiB"``), a share of the GPU's memory (``0.95`` or ``"95%"``) or of the predicted reserved memory
                (``"110% of predicted"``). What a process holds outside torch (CUDA context, NCCL) is not in it. None:
                never stop. Of several ranks all stop when one exceeds it.
            log: add the figures to the Trainer's logs.
            budget: the prediction, such as ``estimate`` returns; None: vramtop reads and estimates this process.
            settings: values that vramtop cannot read here, by job key: ``{"training.sequence_length": 2048}``.

        Raises:
            ValueError, TypeError: ``stop_when_over`` is none of these.
        """

        def __init__(
            self,
            stop_when_over: float | str | None = None,
            *,
            log: bool = True,
            budget: Any = None,
            settings: Mapping[str, Any] | None = None,
        ) -> None:
            super().__init__()
            limit = None if stop_when_over is None else Limit.parse(stop_when_over)
            self.memory = TrainerMemory(publisher, limit, budget, settings or {})
            self.stopped: str | None = None
            """Why it stopped the training; None: it did not."""
            self._logs = log

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_train_begin(args, state, control, **kwargs)
            self.stopped = None
            if self._logs:
                _log_memory(type(self))
            if self.memory.needs_prediction or (self._logs and state.is_world_process_zero):
                self.memory.ask()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_step_end(args, state, control, **kwargs)
            self.memory.warn_if_blind()
            excess = _agreed(self.memory.excess, state.global_step)
            if excess is not None and not control.should_training_stop:
                self.stopped = f"after step {state.global_step}: {excess}"
                LOGGER.warning("training stops %s", self.stopped)
                control.should_training_stop = True

        def added_logs(self) -> dict[str, float]:
            """Return what is added to the Trainer's logs."""
            return self.memory.logs() if self._logs else {}

    return TrainerCallback


def _agreed(excess: Any, step: int) -> str | None:
    """Return whether any rank exceeds its limit: if one alone stopped, the others would wait for it forever."""
    torch = sys.modules["torch"]
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        found: str | None = excess()
        return found
    if step > FIRST_STEPS and step % EVERY_STEPS:
        return None
    own = excess()
    cuda = "nccl" in str(distributed.get_backend())
    flag = torch.tensor([0 if own is None else 1], device="cuda" if cuda else "cpu")
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    if not int(flag.item()):
        return None
    return own or "another rank has reserved more than stop_when_over"


def _log_memory(kind: Any) -> None:
    """Have every Trainer add the figures of its callback of this kind to what it logs; once per process."""
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    original = getattr(trainer, "log", None)
    if original is None or getattr(original, "vramtop", None) is kind:
        return

    def log(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        callbacks = getattr(getattr(self, "callback_handler", None), "callbacks", ())
        own = next((each for each in callbacks if isinstance(each, kind)), None)
        added = {} if own is None else own.added_logs()
        logs.update(added)
        try:
            return original(self, logs, *args, **kwargs)
        finally:
            for name in added:  # the caller may return its dict as metrics of the training
                logs.pop(name, None)

    log.vramtop = kind  # type: ignore[attr-defined]
    trainer.log = log  # type: ignore[union-attr]
