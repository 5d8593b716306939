"""The end of a rehearsed program: after its steps the epoch ends, it evaluates, saves, and trains again.

Data loaders end, and transformers' Trainer is told to evaluate and save where its own settings do so at all. A program
that never gets there takes a few more steps, which also show whether memory stays allocated after each.
"""

from __future__ import annotations

import functools
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, dataloader

from ..memory.growth import left_behind, rise_of_peak
from .imports import after_import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from .fake_gpu import FakeGpus

_BATCHES = 5
"""Batches that a data loader gives after the steps if no backward pass follows: those of an evaluation."""
_AHEAD = 2
"""Batches that a data loader may give before the first backward pass."""
_LEAST_EVENTS = 20_000
"""Allocations and releases after the steps that are always allowed; more if the program had more until then."""
_CHEAP_EVENTS = 20_000
"""Allocations and releases up to which a program takes more steps as long as they leave nothing behind: its epoch may
end in them."""
_EPOCHS = 4
"""Ends of epochs, with an evaluation or a checkpoint, after which what each leaves behind is known."""
_GROWS = 1 << 20
_PERIODIC = 2
"""Steps in which something has to happen to be part of training, and no evaluation or checkpoint."""


class EpochEnds(StopIteration):
    """Raised by a data loader that has more batches."""


class Afterwards:
    """Tells what happens after the steps apart from what happens in each of them.

    Args:
        gpus: with the history.
        steps: steps of each optimizer that were asked for.
    """

    def __init__(self, gpus: FakeGpus, steps: int) -> None:
        self.has_begun = False
        self.has_interrupted = False
        """The program has left its steps: it evaluates or saves."""
        self.has_ended_epoch = False
        """A data loader was ended early: what counts on a whole epoch may fail for that alone."""
        self.backward_passes = 0
        self._trainer_ends = False
        """transformers' Trainer has taken its last step, perhaps before as many as were asked for."""
        self._gpus = gpus
        self._wanted = steps
        self._habits: dict[Any, set[int]] = {}
        """The steps in which a module was called in some mode, or state was saved."""
        self._steps = 0
        self._optimizers = 1
        self._left = 0
        """Optimizer steps left before the rehearsal ends."""
        self._most_events = 0
        self._level: int | None = None
        """Bytes allocated after the latest step."""
        self._fills = False
        """The optimizer made more state in its step, such as the history of LBFGS."""
        self._grows = 0
        """Steps before which more is allocated than after the one before: they leave something behind."""
        self._own_epochs = 0
        """Epochs of data loaders with a generator of their own."""
        self._step_marks: list[int] = []
        self._evaluation_marks: list[int] = []
        """Numbers of events at the same point of consecutive steps, and of batches of the first evaluation."""
        self._epoch_marks: list[int] = []
        """Numbers of events at the starts of evaluations and checkpoints that follow a step."""
        self._interrupted_at = -1
        """Number of steps at the latest of them."""
        self._without_backward: int | None = None
        """Backward passes before a data loader gave three batches without one between them: it may read one ahead."""
        self._told_by_module: int | None = None
        """Backward passes before the latest evaluation that a module's mode told."""
        self._taken_at: list[int] = []
        """Numbers of events at which a data loader gave batches without a backward pass between them."""
        self._batches_left: int | None = 0
        """Batches of evaluation that a data loader has not given; None: an unknown number."""

    def begin(self, optimizers: int) -> None:
        """Begin: all optimizers have stepped as often as they were asked to."""
        self.has_begun = True
        events = len(self._gpus.history.events)
        self._optimizers = optimizers
        self._left = optimizers * (self._wanted if events <= _LEAST_EVENTS else 1)
        self._most_events = events + max(_LEAST_EVENTS, events)

    def start_over(self) -> None:
        """Forget the steps so far: the program tries another size."""
        self._steps, self._level, self._grows = 0, None, 0
        self._habits.clear()
        self._step_marks.clear()

    @property
    def is_over(self) -> bool:
        """True if nothing more is to be seen, or it takes too long."""
        events = len(self._gpus.history.events)
        may_go_on = (
            self._grows < _EPOCHS and (events < _CHEAP_EVENTS or self._fills) and len(self._epoch_marks) < _EPOCHS
        )
        return self.has_begun and (events > self._most_events or (self._left <= 0 and not may_go_on))

    def note_before_step(self) -> None:
        """Note that an optimizer is about to step."""
        before = self._gpus.allocated
        same_epoch = self._interrupted_at != self._steps
        self._grows += same_epoch and self._level is not None and before > self._level + _GROWS
        self._level = before

    def note_step(self, *, is_first_optimizer: bool) -> None:
        """Note the end of an optimizer's step."""
        self._steps += 1
        self._left -= 1
        before, self._level = self._level, self._gpus.allocated
        self._fills = before is not None and self._level > before + _GROWS
        if is_first_optimizer and not self.has_interrupted:
            self._mark(self._step_marks)

    def note_start(self) -> None:
        """Note the start of the first step."""
        self._mark(self._step_marks)

    def is_evaluation(self, module: Any, step: int) -> bool:
        """Return True for a forward pass that steps do not have: without gradients, in evaluation mode, or one of many.

        Many are those of a data loader without a backward pass between them.
        """
        trains = module.training and torch.is_grad_enabled()
        is_new = self._is_new((id(module), module.training, torch.is_grad_enabled()), step)
        if self._without_backward == self.backward_passes:
            self._interrupt()
            return True
        if not is_new or trains:
            return False
        self._told_by_module = self.backward_passes
        self._interrupt()
        if len(self._epoch_marks) == 1:
            self._mark(self._evaluation_marks)
        return True

    def is_saving(self, step: int) -> bool:
        """Return True if a checkpoint is being saved now and the program does not save one in every step."""
        is_new = self._is_new("saving", step)
        if is_new:
            self._interrupt()
        return is_new

    def growth(self) -> dict[str, Any]:
        """Return by line what stays allocated after each step and each batch of evaluation, and how many were seen."""
        history, batches = self._gpus.history, self._evaluation_marks
        in_evaluation = left_behind(history, batches)
        return {
            "growth": left_behind(history, self._step_marks),
            "evaluation_growth": in_evaluation,
            "epoch_growth": left_behind(history, self._epoch_marks),
            "evaluation_rise": rise_of_peak(history, batches, dict(in_evaluation)) if in_evaluation else 0,
            "batches_left": self._batches_left,
            "steps_seen": max(0, len(self._step_marks) - 1),
        }

    def _is_new(self, habit: Any, step: int) -> bool:
        if not self.has_begun:
            self._habits.setdefault(habit, set()).add(step)
        return self.has_begun and len(self._habits.get(habit, ())) < min(_PERIODIC, self._wanted)

    def _interrupt(self) -> None:
        if self._interrupted_at != self._steps:
            self._interrupted_at = self._steps
            self._mark(self._epoch_marks)
        if not self.has_interrupted:
            self.has_interrupted = True
            self._left = self._optimizers

    def _mark(self, marks: list[int]) -> None:
        marks.append(len(self._gpus.history.events))

    def ending_epochs(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield stand-ins that end data loaders once the steps are done, and start one process each: few are read."""
        batches = dataloader._BaseDataLoaderIter
        take, restart, begin = batches.__next__, batches._reset, DataLoader.__init__

        @functools.wraps(begin)
        def begin_with_one(self_: Any, *args: Any, num_workers: int = 0, **kwargs: Any) -> None:
            given = {} if len(args) > 5 else {"num_workers": min(1, num_workers)}
            begin(self_, *args, **given, **kwargs)

        def take_or_end(self_: Any) -> Any:
            fresh = self._own_epochs, self._steps, self.backward_passes, 0
            epoch, steps, passes, given = getattr(self_, "_vramtop_seen", fresh)
            if epoch != self._own_epochs:
                epoch, steps, passes, given = fresh
            is_evaluation = given >= _BATCHES and passes == self.backward_passes
            if (self.has_begun and (steps < self._steps or is_evaluation)) or (self._trainer_ends and is_evaluation):
                if steps == self._steps:
                    self._batches_left = _most(self._batches_left, self_, given)
                self.has_ended_epoch = True
                raise EpochEnds
            batch = take(self_)
            self._note_batch(passes, given)
            self_._vramtop_seen = epoch, steps, passes, given + 1
            return batch

        def start_again(self_: Any, *args: Any, **kwargs: Any) -> None:
            self_.__dict__.pop("_vramtop_seen", None)
            restart(self_, *args, **kwargs)

        def wrap(cls: Any, /, **kwargs: Any) -> None:
            super(DataLoader, cls).__init_subclass__(**kwargs)
            if isgeneratorfunction(own := cls.__dict__.get("__iter__")):
                cls.__iter__ = self._ending(own)

        yield DataLoader, "__init__", begin_with_one
        yield batches, "__next__", take_or_end
        yield batches, "_reset", start_again
        yield DataLoader, "__init_subclass__", classmethod(wrap)

    def _note_batch(self, passes: int, given: int) -> None:
        """Note a batch of a data loader, which belongs to an evaluation if no backward pass follows it."""
        if not given or passes != self.backward_passes:
            self._taken_at, self._without_backward = [], None
        self._mark(self._taken_at)
        if self.has_begun and given >= _AHEAD and self._told_by_module != passes == self.backward_passes:
            self._without_backward = passes
            if len(self._epoch_marks) <= 1:
                self._evaluation_marks = self._taken_at

    def _ending(self, iterate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a data loader's own generator: it may keep what it reads over epochs, whose end is an error in it."""

        @functools.wraps(iterate)
        def wrapper(loader: Any) -> Iterator[Any]:
            self._own_epochs += 1
            try:
                yield from iterate(loader)
            except RuntimeError as error:
                if not isinstance(error.__cause__, EpochEnds):
                    raise

        return wrapper

    def tell_trainers(self) -> None:
        """Let transformers' Trainer evaluate and save after the steps, where its settings ever do."""

        def change(module: ModuleType) -> None:
            flow = module.DefaultFlowCallback
            decide = flow.on_step_end

            def on_step_end(self_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
                control = decide(self_, args, state, control, **kwargs) or control
                self._trainer_ends = control.should_training_stop
                if self.has_begun:
                    evaluates = getattr(args, "eval_strategy", getattr(args, "evaluation_strategy", "no"))
                    control.should_evaluate |= evaluates != "no"
                    control.should_save |= args.save_strategy not in ("no", "best")
                    control.should_epoch_stop = True
                return control

            flow.on_step_end = on_step_end

        after_import("transformers.trainer_callback", change)


def _most(left: int | None, batches: Any, given: int) -> int | None:
    """Return how many batches remain in the longest data loader; None: some loader has no length."""
    try:
        return None if left is None else max(left, len(batches) - given)
    except TypeError:  # an iterable data set
        return None
