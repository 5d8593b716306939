"""Runs a program through its first steps, an evaluation and a checkpoint, and reports its GPU allocations."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ..memory.history import phase_spans
from ..memory.summary import held_at, summarize
from ..memory.tracker import tensors_behind
from ..replaced import replaced
from ..request.protocol import loaded_versions
from .afterwards import Afterwards, EpochEnds
from .fake_gpu import TRIED, Card, FakeGpus, is_own, program_frames, program_line
from .handlers import is_caught
from .imports import after_import
from .libraries import build_without_weights, find_stand_ins, hide_offline_mode, name_classes, trust_tokenizers
from .missing_data import MissingData, causes
from .quantized import buffers_of, elements, keep_libraries_python, packed_sizes
from .ranks import parallel_of
from .sharding import whole_sizes
from .stand_ins import cuda_without_gpu
from .terminal import terminal_sizes
from .uploads import keep_here

MANY_STEPS = 20
"""Steps of one optimizer, as a multiple of those asked for, after which one that never stepped is not waited for."""
MANY_TRIES = 30
"""Out-of-memory errors after which a program that catches them is no longer followed."""
_MIN_VOCABULARY = 1000
_TOLD_SECONDS, _TOLD_CHARACTERS, _TOLD_ENDS = 0.3, 80, 500
_LEAST_AFTERWARDS = 10.0
"""Seconds since the start that a program has at least for what follows its steps; else twice what it took for them."""
_FOLDER = str(Path(__file__).parents[1])
_UNREACHED = ("LocalEntryNotFoundError", "ConnectionError", "ConnectError", "ConnectTimeout", "ProxyError")
_NOT_GIVEN = ("OfflineModeIsEnabled", "GatedRepoError", "RepositoryNotFoundError", "HFValidationError", *_UNREACHED)
_NOT_LOADED = re.compile(r"Can't load [\w ]+ for '([^']+)'")
_HOOKED = "_vramtop_labels_gradient"


class Rehearsal:
    """Follows a program through its steps.

    Args:
        plan: ``steps``, ``gpus``, ``card`` (``Card``), ``conf``, ``answer`` (file), ``progress`` (file), ``seconds``,
            ``data``, the sizes of synthetic items (``MissingData``), and perhaps ``threads``, ``number``, which is
            assumed for one that only a real run knows, ``any``, whether one of many values is true that only a real
            run knows, and ``stand_ins``, ids on the hub by the names of models that are not there.
    """

    may_catch_errors = True
    """Whether it is said that something on the way to a step catches errors about memory."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        if "threads" in plan:
            torch.set_num_threads(plan["threads"])
        self.gpus = FakeGpus(plan["gpus"], plan.get("conf"), Card(**plan["card"]), plan.get("number", 1))
        self.gpus.out_of_memory = self._run_out
        self.gpus.assumes_any = plan.get("any", True)
        self._steps: dict[tuple[int, str], int] = {}
        self._partitions: dict[int, int] = {}
        self._stepped: dict[tuple[int, str], WeakIdKeyDictionary] = {}
        """The parameters that each optimizer has stepped, and after which backward pass."""
        self._names: dict[int, str] = {}
        self._optimizers: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()
        """Number and type of each: one that the program drops is gone, with its states."""
        self._numbers = itertools.count()
        self._tries = 0
        """Out-of-memory errors that the program has caught."""
        self._has_optimizer = False
        """The program has made an optimizer, which may be gone when it ends."""
        self._step = 0
        self._after = Afterwards(self.gpus, plan["steps"])
        self._data = MissingData(plan.get("data"), self.gpus.doubts.add)
        self._start = time.monotonic()
        self._first_backward = ""
        """Line of the first backward pass, which stands for the step of a program without an optimizer."""
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._called: weakref.WeakSet[Any] = weakref.WeakSet()
        """Modules that the program calls itself, not through others."""
        self._trained: dict[int, int] = {}
        self._trained_shapes: set[tuple[int, ...]] = set()
        """Shapes of the parameters that the program trains without an optimizer of ``torch.optim``."""
        self._records_before = 0
        """Storages that there were after the last but one backward pass."""
        self._loaded: dict[str, list[str]] = {}
        self._sizes: dict[int, int] = {}
        self._own_sizes: dict[int, int] = {}
        self._told = 0.0
        self._progress = os.open(plan["progress"], os.O_WRONLY | os.O_CREAT) if "progress" in plan else -1
        self._failed_threads: list[BaseException] = []
        self._exit_line = ""
        self._first_call: int | None = None
        """Events before the first module was called: where the work of a program that trains nothing begins."""
        self._awaits_forward = False
        """A backward pass or an optimizer's step is over: the next module that is called begins a forward pass."""
        self._begin("loading")

    def note_loaded(self) -> None:
        """Note the modules that are there before the program begins, and where it will look for others."""
        import site

        files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        folders = [*map(os.path.abspath, filter(None, (*sys.path, *given))), site.getusersitepackages()]
        files += [str(each) for folder in dict.fromkeys(folders) for each in Path(folder).glob("*.pth")]
        self._loaded = {
            "files": [*dict.fromkeys(each for each in (*files, f"{sys.prefix}/pyvenv.cfg") if each.startswith("/"))],
            "folders": [*dict.fromkeys(folders)],
        }

    def run(self, program: Callable[[], object]) -> None:
        """Run the program; it ends with the process once it has stepped, and its answer is in the plan's file."""
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        torch.nn.modules.module.register_module_forward_pre_hook(self._before_forward)
        signal.signal(signal.SIGALRM, lambda *_: self._finish("steps" if self._after.has_begun else "time"))
        signal.alarm(max(1, int(self.plan["seconds"])))
        start = torch.optim.Optimizer.__init__
        backward = torch.autograd.backward

        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            start(optimizer, *args, **kwargs)
            self._key(optimizer)
            self._has_optimizer = True

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            self._before_backward()
            try:
                result = backward(*args, **kwargs)
            except BaseException:
                self._leave_backward()
                raise
            self._leave_backward()
            self._after_backward()
            return result

        torch.optim.Optimizer.__init__ = made
        torch.autograd.backward = run_backward
        build_without_weights(self.gpus.doubts.add)
        if self.plan.get("stand_ins"):
            after_import("huggingface_hub.constants", hide_offline_mode)
            after_import("transformers.utils.hub", partial(find_stand_ins, self.plan["stand_ins"]))
            after_import("transformers.models.auto.tokenization_auto", trust_tokenizers)
            after_import("transformers.models.auto.configuration_auto", name_classes)
        keep_libraries_python(self.gpus)
        self._after.tell_trainers()
        self._data.watch()
        keep_here(self.gpus.doubts.add)
        with (
            cuda_without_gpu(self.gpus),
            self.gpus.tracking_resize(),
            self.gpus.naming_modules(),
            self._threads(),
            self._saving(),
            replaced(*self._after.ending_epochs(), *terminal_sizes()),
        ):
            try:
                program()
            except SystemExit as end:
                if end.code not in (None, 0):
                    self._exit(end)
            except BaseException as error:  # noqa: BLE001 - the program's own failure, which is told
                traceback.print_exception(type(error), error, _own_part(error.__traceback__))
                self._finish("error", error, code=1)
            threading._shutdown()  # type: ignore[attr-defined] # Python waits for the program's threads in the end
            failed = self._failed_threads[0] if self._failed_threads and not self._steps else None
            if failed is None and self._has_optimizer and not self._steps:
                self._finish("exit")  # it has logged its error itself
            self._finish("end" if failed is None else "error", failed, code=int(failed is not None))

    def _threads(self) -> Any:
        """Let threads of the program find the GPUs too: torch's modes are those of one thread."""
        start, told = threading.Thread.start, threading.excepthook

        def start_with_gpus(thread: threading.Thread) -> None:
            run = thread.run

            def run_with_gpus() -> None:
                with self.gpus:
                    run()

            thread.run = run_with_gpus  # type: ignore[method-assign]
            start(thread)

        def failed(args: Any) -> None:
            told(args)
            self._failed_threads.append(args.exc_value)

        return replaced((threading.Thread, "start", start_with_gpus), (threading, "excepthook", failed))

    def _saving(self) -> Any:
        """Let the phase ``saving`` begin where state is gathered or saved."""
        gather = torch.nn.Module.state_dict

        def state_dict(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._before_saving()
            return gather(module, *args, **kwargs)

        return replaced((torch.nn.Module, "state_dict", state_dict), (self.gpus, "before_saving", self._before_saving))

    def _run_out(self, error: BaseException) -> None:
        """Raise an out-of-memory error that the program catches, and count what it tries next from the beginning."""
        self._exit_line = program_line()
        self._tries += 1
        if self._after.has_begun or self._tries > MANY_TRIES:
            self._finish("error", error, code=1)
        if self._tries == 1:
            self.gpus.doubts.add(
                f"at {self._exit_line} the program runs out of the GPU's memory and catches the error ({error}): the "
                "figure is that of the size with which it goes on, which may be another in a real run"
            )
        self._steps.clear()
        self._step = 0
        self._after.start_over()
        self.gpus.start_over()
        self._begin(TRIED)
        kind = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
        raise kind(f"CUDA out of memory. Tried to allocate more than is free: {error}") from None

    def _before_saving(self) -> None:
        if self._after.is_saving(self._step) and self._phase != "saving":
            self._begin("saving")

    def _begin(self, phase: str) -> None:
        self.gpus.begin_phase(self._step, phase)
        self._phase = phase
        self._awaits_forward = False
        self._tell()

    def _await_forward(self) -> None:
        """Begin a forward pass with the next module: clipping and zeroing gradients belong to what was before.

        One that calls no module begins here.
        """
        self._awaits_forward = bool(self._called)
        if not self._awaits_forward:
            self._begin("forward")

    def _tell(self) -> None:
        """Write where the program is, not more often than somebody reads it."""
        if self._progress < 0 or time.monotonic() < self._told:
            return
        self._told = time.monotonic() + _TOLD_SECONDS
        step = f"step {self._step}, " if self._step else ""
        text = f"{step}{self._phase}, {len(self.gpus.history.events):,} allocations"
        with contextlib.suppress(OSError):  # the program may have closed it
            os.pwrite(self._progress, text.ljust(_TOLD_CHARACTERS).encode(), 0)

    def _before_forward(self, module: Any, _args: Any) -> None:
        if not self._step and torch.is_grad_enabled() and self._optimizers:
            self._begin_steps()
            self._begin("forward")
        if not self.gpus.in_module:
            self._tell_evaluation(module)
            if self._first_call is None and self.gpus.history.events:
                self._first_call = len(self.gpus.history.events)
        self._tell()
        if module in self._roots or any(map(is_functorch_wrapped_tensor, module.parameters())):
            return
        self._called.add(module)
        self._roots.add(module)
        for each in module.modules():
            self._roots.add(each)
        tables = [each.num_embeddings for each in module.modules() if isinstance(each, torch.nn.Embedding)]
        for size in tables:
            if size >= _MIN_VOCABULARY and 2 * size > max(tables):  # those of positions are smaller
                self.gpus.vocabulary_sizes.add(size)
        named = [(name, each) for name, each in module.named_parameters() if not is_lazy(each)]
        self._names.update((id(each), name) for name, each in named)
        self._sizes.update((id(each), elements(each)) for _, each in named)
        self._sizes.update((id(each), size) for each, size in (*whole_sizes(module), *packed_sizes(module)))
        self.gpus.label((each for _, each in named), "weights", (name for name, _ in named))
        for name, each in named:
            behind = list(tensors_behind(each))
            self.gpus.label(behind, "weights", [name] * len(behind))
        for name, each in buffers_of(module):  # GPTQ and AWQ keep their packed weights in buffers
            if isinstance(each, FakeTensor):
                self.gpus.label((each,), "weights", (name,))

    def _begin_steps(self) -> None:
        if not self._step:
            self._step = 1
            self._after.note_start()

    def _tell_evaluation(self, module: Any) -> None:
        """Begin the phase that a module's forward pass belongs to, if that is another one."""
        if self._after.is_over:
            self._finish("steps")
        if self._after.is_evaluation(module, self._step):
            if self._phase != "evaluation":
                self._begin("evaluation")
        elif self._awaits_forward or self._phase in ("evaluation", "saving"):
            self._begin("forward")

    def _optimized(self) -> list[Any]:
        """Return the parameters that the optimizers have."""
        return [each for one in self._optimizers for group in one.param_groups for each in group["params"]]

    def _trained_elements(self) -> int:
        return sum((self._partitions or self._trained).values())  # ZeRO's optimizer has flat parameters

    def _before_backward(self) -> None:
        self._begin_steps()
        parameters = [each for module in self._called for each in module.parameters()]
        self._partitions.update(
            {id(each): elements(each) for each in parameters if each.requires_grad and _is_zero(each)}
        )
        for parameter in self._optimized() or parameters:
            if parameter.requires_grad and parameter.is_leaf and not hasattr(parameter, _HOOKED):
                setattr(parameter, _HOOKED, True)
                parameter.register_post_accumulate_grad_hook(self._label_gradient)
        self._begin("backward")

    def _label_gradient(self, parameter: Any) -> None:
        if parameter.grad is not None:
            self.gpus.label((parameter.grad,), "gradients", (self._names.get(id(parameter), ""),))
            if not self._optimizers:  # the program changes its parameters itself, or by another library's optimizer
                self._trained[id(parameter)] = self._sizes.get(id(parameter)) or elements(parameter)
                self._trained_shapes.add(tuple(parameter.shape))

    def _leave_backward(self) -> None:
        self.gpus.enter_backward("")
        self._await_forward()

    def _after_backward(self) -> None:
        self._after.backward_passes += 1
        if not self._optimizers:
            line = program_line()
            self._first_backward = self._first_backward or line
            self._after.note_step(is_first_optimizer=line == self._first_backward)
            self.gpus.count_states(self._trained_shapes, self._records_before)
            self._records_before = len(self.gpus.history.records)
        if not self._optimizers and self._after.backward_passes >= MANY_STEPS * self.plan["steps"]:
            self._finish("steps")  # the program changes its parameters itself

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._begin_steps()
        self._after.note_before_step()
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        trained = [each for each in parameters if each.requires_grad]
        self._trained.update((id(each), self._sizes.get(id(each)) or elements(each)) for each in trained)
        self.gpus.label((each.grad for each in parameters if each.grad is not None), "gradients")
        self.gpus.label(parameters, "weights")  # ZeRO's master weights are in no module
        self._begin("optimizer step")

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for parameter, state in optimizer.state.items():
            made = [leaf for leaf in tree_leaves(state) if isinstance(getattr(leaf, "_local_tensor", leaf), FakeTensor)]
            self.gpus.label(made, "optimizer", [self._names.get(id(parameter), "")] * len(made))
        if self.may_catch_errors and not self._tries and is_caught(program_frames(sys._getframe(1))):
            self.gpus.doubts.add(
                "the program catches errors about memory: a larger size that it tries after these steps is not counted"
            )
        goes_on, key = self._goes_on(optimizer), self._key(optimizer)
        if not self._after.has_begun and not goes_on:
            self._steps[key] = self._steps.get(key, 0) + 1
        self._tell_models_apart()
        if goes_on:
            self._await_forward()
            return
        self._after.note_step(is_first_optimizer=key == next(iter(self._steps)))
        if not self._after.has_begun:
            self._begin_next_step()
        elif self._after.is_over:
            self._finish("steps")
        self._await_forward()

    def _key(self, optimizer: Any) -> tuple[int, str]:
        """Return what stands for an optimizer where it must not be kept alive."""
        return self._optimizers.setdefault(optimizer, (next(self._numbers), type(optimizer).__name__))

    def _goes_on(self, optimizer: Any) -> bool:
        """Return True if a step goes on with its next group, for each of which DeepSpeed's ZeRO calls the optimizer."""
        stepped = self._stepped.setdefault(self._key(optimizer), WeakIdKeyDictionary())
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        now = self._after.backward_passes
        goes_on = now in stepped.values() and all(stepped.get(each) != now for each in parameters)
        stepped.update((each, now) for each in parameters)
        return goes_on

    def _begin_next_step(self) -> None:
        wanted = self.plan["steps"]
        waiting = any(self._steps.get(each, 0) < wanted for each in self._optimizers.values())
        most = max(self._steps.values())
        if waiting and most < MANY_STEPS * wanted:
            self._step = min(most, wanted - 1) + 1
            return
        for one, key in self._optimizers.items():
            if key not in self._steps:
                size = sum(elements(each) for group in one.param_groups for each in group["params"])
                self.gpus.doubts.add(
                    f"an optimizer ({key[1]} of {size:,} parameters) did not step while another did {most} times: "
                    "what its steps take is not in the figure"
                )
        self._step = wanted + 1
        self._after.begin(len(self._steps))
        now = time.monotonic() - self._start
        signal.alarm(max(1, int(min(self.plan["seconds"], max(_LEAST_AFTERWARDS, 2 * now)) - now)))

    def _tell_models_apart(self) -> None:
        """Count the weights of models that no optimizer trains as other models': references, averages, encoders."""
        own = [*self._optimized(), *(each for stepped in self._stepped.values() for each in stepped)]
        trained = {id(each) for each in own}
        for module in self._called:
            parameters = list(module.parameters())
            if any(each.requires_grad and (id(each) in trained or _is_zero(each)) for each in parameters):
                behind = (tensor for each in parameters for tensor in tensors_behind(each))
                own += [*parameters, *(each for _, each in buffers_of(module)), *behind]
        self._own_sizes = {id(each): self._sizes[id(each)] for each in own if id(each) in self._sizes}
        self.gpus.keep_weights(own)
        self.gpus.count_copies_of_weights()

    def _exit(self, end: SystemExit) -> None:
        """Record how a program exited; Hydra prints an error and exits, so that error is the reason."""
        if isinstance(end.__context__, Exception):
            self._finish("error", end.__context__, code=1)
        sys.stderr.write(end.code if isinstance(end.code, str) else f"exit code {end.code}\n")
        self._exit_line = _last_line(end)
        self._finish("exit", code=end.code if isinstance(end.code, int) else 1)

    def _finish(self, ended: str, error: BaseException | None = None, code: int = 0) -> None:
        """Write the answer and end the process, which other threads and cleaning up must not delay."""
        self.gpus.lock.acquire(timeout=5.0)  # no other thread's operation is half recorded, and none ends too
        signal.alarm(0)
        if ended == "end" and not self._trains and self._first_call is not None:
            self.gpus.begin_work(self._first_call)
        self._begin("end")
        self.gpus.history.phases.pop()  # a step has no such phase, and nothing comes after it
        self._write(ended, error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)

    @property
    def _trains(self) -> bool:
        """True if the program has run backward, or has made an optimizer."""
        return bool(self._step or self._has_optimizer)

    def _write(self, ended: str, error: BaseException | None) -> None:
        """Write the answer into the plan's file, as a whole."""
        file = Path(self.plan["answer"])
        draft = file.with_suffix(".part")
        draft.write_text(json.dumps(self._answer(ended, error)), encoding="utf-8")
        draft.replace(file)

    def _answer(self, ended: str, error: BaseException | None) -> dict[str, Any]:
        gpus, history = self.gpus, self.gpus.history
        if self._after.has_begun and ended in ("error", "exit"):  # what was asked for is there
            stopped = "stopped" if self._after.has_ended_epoch else "failed"
            # a program may fail because it does not expect its data loader to end
            is_epochs = isinstance(error, StopIteration) or any(isinstance(each, EpochEnds) for each in causes(error))
            ended = "end" if is_epochs else stopped
        answer: dict[str, Any] = {
            "ended": ended,
            "line": self._exit_line or (program_line() if error is None else _last_line(error)),
            "error": None if error is None else _told(error) + self._data.hint(error),
            "missing_data": self._data.of(error),
            "missing_repository": _missing_repository(error),
            "hub_answers": all(type(each).__name__ not in _UNREACHED for each in causes(error)),
            "steps": [{"optimizer": name, "steps": count} for (_, name), count in self._steps.items()],
            "parameters": sum((self._own_sizes or self._sizes).values()),
            "trains": self._trains,
            "trained": self._trained_elements(),
            "doubts": [*gpus.doubts.sentences],
            "doubt_kinds": sorted(gpus.doubts.kinds),
            "seconds": time.monotonic() - self._start,
            "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "versions": loaded_versions(),
            **self._loaded,
            "world_size": gpus.ranks,
            "parallel": parallel_of(self._called, gpus.ranks),
            "groups": gpus.groups,
            "multiplies": gpus.multiplies,
        }
        answer["gpus"] = list(gpus.look_at_fullest().items())
        spans = phase_spans(history)
        steps = sorted({span.step for span in spans if span.step})
        if not steps or (ended == "time" and not self._steps):
            return answer  # what optimizers keep is not known
        summaries = {step: summarize(history, step) for step in steps}
        by_peak = sorted(steps, key=lambda step: (_peak(summaries[step]), -step))
        highest = by_peak[-1]
        summary = summaries[highest]
        phases: dict[str, Any] = {}
        for step in by_peak:  # evaluation and saving come after the step with the highest peak, or are that
            phases.update(summaries[step]["phases"])
        events = [event for event, _ in summary["timeline"]]
        return {
            **answer,
            **summary,
            **self._after.growth(),
            "phases": phases,
            "convolutions": gpus.convolution_facts(),
            "assumed_bytes": gpus.assumed_bytes(held_at(history, summary["peak_event"])),
            "step": highest,
            "reserved": [gpus.reserved[event] for event in events],
            "peak_reserved": max(gpus.reserved, default=0),
        }


def _peak(summary: dict[str, Any]) -> int:
    return max(int(phase["allocated"]) for name, phase in summary["phases"].items() if name != "loading")


def _missing_repository(error: BaseException | None) -> str | None:
    """Return the folder or name on the hub that is not on this machine, nor given by the hub; None: nothing is missing.

    huggingface_hub raises these errors, from functions that all call the name ``repo_id``; transformers 5 has its own
    for processors, which only names it, and tokenizers of transformers 4 go on without their files until they need one.
    """
    for each in causes(error):
        if isinstance(each, OSError) and (said := _NOT_LOADED.match(str(each))) is not None:
            return said[1]
        frames = [frame for frame, _ in traceback.walk_tb(each.__traceback__)]
        if type(each).__name__ in _NOT_GIVEN:
            named = (frame.f_locals.get("repo_id") for frame in reversed(frames))
            if (found := next((name for name in named if isinstance(name, str)), None)) is not None:
                return found
        cache = os.environ.get("HF_HUB_CACHE", "")  # it is set where there are stand-ins
        for name in (frame.f_locals.get("pretrained_model_name_or_path") for frame in frames if cache):
            places = (Path(name), Path(cache, f"models--{name.replace('/', '--')}")) if isinstance(name, str) else ()
            if places and not any(each.exists() for each in places):
                return name
    return None


def _told(error: BaseException) -> str:
    """Return an error's type and text, or the statement that raised one without a text; of a long one both ends."""
    text = str(error) or "".join(each.line or "" for each in traceback.extract_tb(error.__traceback__)[-1:])
    told = f"{type(error).__name__}: {text}"
    return told if len(told) <= _TOLD_ENDS * 2 else f"{told[:_TOLD_ENDS]}\n{told[-_TOLD_ENDS:]}"


def _own_part(frames: Any) -> Any:
    """Return a traceback from the program's first line on."""
    part = frames
    while part is not None and part.tb_frame.f_code.co_filename.startswith((_FOLDER, "<frozen runpy")):
        part = part.tb_next
    return frames if part is None else part


def _last_line(error: BaseException) -> str:
    """Return the innermost line of the program's own files and, where a library failed, that of the library."""
    frames = traceback.extract_tb(error.__traceback__)
    here = [frame for frame in frames if not frame.filename.startswith((_FOLDER, "<"))]
    if isinstance(error, SyntaxError) and not here:  # the script itself is of another Python
        return f"{error.filename}:{error.lineno}"
    own = [frame for frame in here if is_own(frame.filename, sys.argv[0])]
    lines = dict.fromkeys(f"{each[-1].filename}:{each[-1].lineno}" for each in (own, here) if each)
    return ", in ".join(lines)


def _is_zero(parameter: Any) -> bool:
    """Return True for one whose master weights DeepSpeed's ZeRO trains (``mixed_precision_linkage.py``)."""
    return hasattr(parameter, "ds_tensor") or hasattr(parameter, "_hp_mapping")
