"""GPUs whose tensors have shapes and no storage: what a program puts there is fake, what it keeps on the host is real.

A dispatch mode sees each operation below autograd. One that names a GPU, or has an argument there, gives fake tensors
there (``FakeTensorMode``); every other one runs as it would. torch built without CUDA refuses tensors whose device is
``cuda`` in C++ (autograd asks for a device guard), so these are fake CPU tensors that say ``cuda`` in Python.
Parameters are fake on the host too: their values do not matter, and they may be larger than its memory.
"""

from __future__ import annotations

import functools
import linecache
import math
import mmap
import operator
import re
import sys
import threading
from array import array
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from ..memory.allocator import CachingAllocator, OutOfMemoryError
from ..memory.allocator_blocks import RELEASED, RETURNED, USED_ELSEWHERE
from ..memory.allocator_settings import AllocatorSettings
from ..memory.convolutions import BACKWARD, FORWARD, HIGH_SHARE, LOW_SHARE, Convolutions
from ..memory.fake_results import new_bytes, shares_storage
from ..memory.summary import allocator_events
from ..memory.tracker import DEVICE, StorageTracker, is_by_engine, parts_of, storage_of
from ..replaced import replaced
from .bounds import (
    bounds_of_result,
    is_bounded,
    knows_of_fractions,
    most_set,
    most_set_in_result,
    number_of_values,
)
from .handlers import answer_to_go_on, is_caught, leaves_if_true
from .kernels import kernel_of
from .library_classes import as_fake_tensors, is_of_library
from .python_operators import python_of
from .routing import CAUSAL, SHARES, Routed, chooses, counts, expected_set, follow, is_causal
from .sparse import COMPRESSED, is_decided_by_values, is_sparse, kernel_of_compressed, sparse_like, with_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..memory.convolutions import Workspace
    from ..memory.history import StorageRecord

HOST = -1
"""Number of the host among the GPUs of a process."""
MAX_KNOWN_VALUES = 1 << 20
"""Largest number of integers of which a fake tensor keeps the values: token ids, masks and lengths decide shapes."""
_FALL = 0.999
MAX_KNOWN_FRACTIONS = 1 << 12
"""Largest number of fractions of which it keeps the values: the times of a noise schedule, weights of classes."""
MOST_ALIKE = 1000
"""Times that a line reads an unknown value, with the same memory allocated, before another answer ends its loop."""
_HUGE = 2.0**100
_TRIED = "tried"
_MANY = 64
"""Elements that a tensor's length is no multiple of by chance."""
_CPU = torch.device("cpu")
_ATEN = torch.ops.aten
_STATES = {"weights", "other_models", "gradients", "optimizer"}
_COPIES = {_ATEN._to_copy.default, _ATEN.clone.default}
_UNTOUCHED = {_ATEN.empty.memory_format, _ATEN.zeros.default}
"""Operations whose result on the host can do without memory for as long as nothing is written there."""
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number; not every Python names it
_UNINITIALIZED = {_ATEN.empty_like.default, _ATEN.new_empty.default, _ATEN.new_empty_strided.default,
                  _ATEN.resize_.default}  # fmt: skip
"""Operations whose results have no values, whatever those of their arguments are."""
_WRITES = {_ATEN.fill_.Scalar, _ATEN.zero_.default, _ATEN.copy_.default, _ATEN.scatter_.src, _ATEN.scatter_.value,
           _ATEN.index_put_.default, _ATEN.index_copy_.default}  # fmt: skip
"""In-place operations that may overwrite every element of a tensor without known values."""
_EMPTY = {_ATEN.empty.memory_format, _ATEN.empty_strided.default}
_SAY_VALUES = {_ATEN.zeros.default, _ATEN.ones.default, _ATEN.full.default, _ATEN.arange.start, _ATEN.arange.start_step,
               _ATEN.arange.default, _ATEN.scalar_tensor.default, _ATEN.eye.default}  # fmt: skip
"""Operations whose results need no tensor to be known."""
_COMPARE = {
    _ATEN.gt.Scalar: operator.gt,
    _ATEN.ge.Scalar: operator.ge,
    _ATEN.lt.Scalar: operator.lt,
    _ATEN.le.Scalar: operator.le,
}
_ANY = (_ATEN.any.default, _ATEN.any.dim, _ATEN.any.dims)
_ALIKE = (_ATEN.equal.default, _ATEN.allclose.default)
_UPDATE_SCALE = _ATEN._amp_update_scale_.default
"""``GradScaler.update``: the scale stays as it is, because no gradient is assumed to overflow."""
_READ = {_ATEN._local_scalar_dense.default, _ATEN.item.default, _ATEN.is_nonzero.default, *_ALIKE, _UPDATE_SCALE}
_ASKS_FOR_OVERFLOW = re.compile(r"isnan|isinf|isfinite|inf_or_nan|overflow|found_inf")
"""A line that looks for overflows, which are assumed not to happen."""
_DECIDED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_TORCHS = frozenset(("aten", "prim", "prims", "profiler", "c10d"))
"""Namespaces of operators that no library defines in Python."""
_PRODUCTS = re.compile(r"mm|mv|^v?dot|^_?linear|matmul|linalg|cholesky|solve|cdist")
_NO_DISPATCH = torch.Tensor.__torch_dispatch__
_MOST_WITH_NO = (
    "/transformers/generation/utils.py",
    "/transformers/generation/stopping_criteria.py",
    "/transformers/masking_utils.py",
)
"""Files that take most memory where no unknown value is true, and numbers are the highest: text is generated to its
full length, masks are made."""
_GOES_ON = "has_unfinished"
"""In their lines that generate on where it is true: those of a beam search."""
_FOLDER = __file__.rpartition("/rehearsal/")[0]
_TORCH = torch.__path__[0]
TRIED = "tried before"
"""Phase of everything before the latest out-of-memory error that the program caught."""
Card = SimpleNamespace
"""The program's GPU: ``name``, ``total_memory``, ``context`` and ``workspace`` (of cuBLAS; all bytes), ``capability``
(major, minor)."""


class _Operator:
    """What an operator does that its fake results do not show."""

    def __init__(self, func: Any) -> None:
        self.is_of_torch = func.namespace in _TORCHS
        self.is_mutable = bool(func._schema.is_mutable)
        self.writes_lists = tuple(
            (at, each.name)
            for at, each in enumerate(func._schema.arguments)
            if each.alias_info is not None and each.alias_info.is_write and each.type.kind() == "ListType"
        )
        """Positions and names of the lists of tensors that it writes into, of which FakeTensorMode takes no note."""
        self.copies = func in _COPIES
        self.reads = func in _READ
        """It returns a number, or true or false, to the program."""
        self.multiplies = _PRODUCTS.search(func._schema.name.partition("::")[2]) is not None
        """cuBLAS, or a library that needs its handle, runs it."""
        self.convolves = func in (FORWARD, BACKWARD)
        self.says_values = func in _SAY_VALUES
        self.leaves_uninitialized = func in _UNINITIALIZED
        self.overwrites = func in _WRITES
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.is_decided = shares_storage(func) and not is_random and not self.leaves_uninitialized
        """Its results are views of its arguments, or those, and have known values where they have."""
        self.compare = _COMPARE.get(func)
        self.kernel = kernel_of(func)
        self.may_be_compressed = func in COMPRESSED
        """Its matrices may be compressed ones, for which it has another kernel."""
        tells = _DECIDED & set(func.tags) or knows_of_fractions(func) or chooses(func)
        is_special = self.copies or self.reads or self.convolves or self.says_values or self.leaves_uninitialized
        is_special = is_special or self.overwrites or self.may_be_compressed or func is _ATEN.cat.default
        self.is_plain = not (tells or is_special or self.writes_lists or self.compare or self.kernel)
        """Nothing is known of its results' values where its arguments are fractions of which nothing is known."""


_operator = functools.lru_cache(maxsize=4096)(_Operator)


class Doubts:
    """What the memory depends on and is not known, each once with the line of the program.

    The number of the values read is not limited, that of the sentences is.
    """

    _MOST = 50

    def __init__(self) -> None:
        self.sentences: dict[str, None] = {}
        self.kinds: set[str] = set()
        """Kinds that the range depends on: ``sizes``, ``counts``, ``shares``, ``recurrent``, ``compiled``."""
        self.counts: set[int] = set()
        """How many elements were taken, at most, where only a real run knows."""

    def add(self, sentence: str, kind: str | None = None) -> None:
        """Record a doubt, and its kind if the range depends on it."""
        if kind is not None:
            self.kinds.add(kind)
        if len(self.sentences) < self._MOST:
            self.sentences[sentence] = None


class FakeGpus(StorageTracker):
    """A dispatch mode under which ``cuda`` devices are fake, and which records all storages on them.

    Args:
        count: GPUs that the program sees.
        conf: the allocator's settings, as in ``PYTORCH_CUDA_ALLOC_CONF``.
        card: what each of them is.
        number: what one is assumed to be that only a real run knows.
    """

    notes_lines = True
    """Records have the lines that made them."""
    compiles = False
    """The program calls ``torch.compile``, so that ``flex_attention`` is taken to run as one kernel."""
    _are_shared = False
    """Some values are known only under the assumption that routers share tokens equally."""

    def __init__(self, count: int, conf: str | None, card: Card, number: int = 1) -> None:
        super().__init__()
        self.card = card
        self.capacity = card.total_memory - card.context - card.workspace
        """Bytes that torch's allocator can have; beyond them, a program that is ready for that gets its error."""
        self._settings = AllocatorSettings.from_conf(conf)
        self.memory: dict[int, CachingAllocator] = defaultdict(lambda: CachingAllocator(self._settings))
        """Torch's allocator on each GPU that the program has used."""
        self.reserved = array("q")
        """Bytes that torch's allocator holds after each event of the history, on the GPU of that event."""
        self.convolutions = Convolutions(has_tf32=card.capability[0] >= 8)
        self._workspaces: dict[int, Workspace] = {}
        """By record, the workspaces of convolutions."""
        self._copies_of_weights: list[StorageRecord] = []
        """Made outside of modules."""
        self._writes: dict[int, int] = {}
        """By storage, how often its booleans or integers were written into: bounds hold until then."""
        self._emptied: list[int] = []
        """Numbers of events before which the cache was emptied."""
        self.count = count
        self.current = 0
        """GPU that ``cuda`` without a number means."""
        self.ranks = 1
        """Ranks of the program, of which this process is one."""
        self.groups: list[int] = []
        """Sizes of the process groups on GPUs that it belongs to: each is a communicator of NCCL's."""
        self.multiplies = False
        """True once the program has multiplied matrices on the GPU: from then on cuBLAS holds workspaces."""
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.doubts = Doubts()
        for note in self._settings.notes:
            self.doubts.add(note)
        self.lock = threading.RLock()
        """Held by the thread whose operation is being recorded."""
        self._depth = threading.local()
        self._placed = HOST
        self._copies_to: int | None = None
        self._number = number
        self._plausible = 1.5
        """A loss or a norm: between 1 and 2 as those of trained models are, and each that is read a little lower."""
        self._read_alike: dict[str, tuple[Any, int, int]] = {}
        """By line, the phase and the allocated bytes when it last read an unknown value, and how often alike."""
        self.assumes_any = True
        """Of many unknown values one is true, unless the program then leaves."""
        self.out_of_memory: Callable[[BaseException], None] = lambda _: None
        """Called with the error of an allocation for which the GPU is too small, if the program handles that error."""
        self._makes_buckets: int | None = None
        """The thread in which C++ makes buckets now; others may make tensors for data meanwhile."""
        self.before_saving: Callable[[], None] = lambda: None
        """Called before tensors are written to a file."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and isinstance(args[0], FakeTensor):  # two of three calls
            return args[0].fake_device
        if any(kind is not FakeTensor and kind.__torch_dispatch__ is not _NO_DISPATCH for kind in types):
            if not is_of_library(types):
                return NotImplemented  # a DTensor's operation comes back as operations of its local tensors
            with as_fake_tensors((args, kwargs)):
                return self.__torch_dispatch__(func, (FakeTensor,), args, kwargs)
        kwargs = kwargs or {}
        if (
            (torch.is_inference_mode_enabled() or func is _ATEN.to.dtype_layout)
            and _is_composite(func)
            and (FakeTensor in types or any(isinstance(each, torch.device) for each in args))
        ):
            with self:  # neither inference mode nor other tensors take apart what consists of other operations
                return func.decompose(*args, **kwargs)
        made_on = self._made_on(func, kwargs)
        if made_on is None and FakeTensor not in types:
            self._depth.latest = HOST
            if func is _ATEN._efficientzerotensor.default:  # in double backward passes: C++ sees values in fake ones
                return torch.zeros((), dtype=kwargs.get("dtype"), device="cpu").expand(args[0])
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            try:
                return func(*args, **kwargs)
            except RuntimeError:
                if func not in _UNTOUCHED or "allocate memory" not in str(sys.exc_info()[1]):
                    raise
                return _unreserved(args[0], kwargs.get("dtype") or torch.get_default_dtype())
        with self.lock:
            return self._dispatched(func, types, args, kwargs, made_on)

    def _made_on(self, func: Any, kwargs: Any) -> int | None:
        """Return the GPU that an operation names; None: none, so that its arguments say where its results are."""
        device = kwargs.get("device")
        if device is None or device.type not in ("cpu", "cuda"):
            return None
        if device.type == "cuda":
            return self.number_of(device.index)
        if self._makes_buckets == threading.get_ident() and func in _EMPTY and kwargs["dtype"].is_floating_point:
            return self.current
        latest = getattr(self._depth, "latest", HOST)
        return latest if latest != HOST and is_by_engine(sys._getframe(1)) else None

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any, made_on: int | None) -> Any:
        """Run an operation that names a GPU, or has an argument there."""
        device = kwargs.get("device")
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        placed = self._placed
        operator = _operator(func)
        try:
            if made_on is not None:
                self._placed = made_on
                kwargs = {**kwargs, "device": _CPU}
                kwargs.pop("pin_memory", None)
            elif device is not None and device.type == "meta":
                self._placed = HOST
            elif self._copies_to is not None and not depth and operator.copies:
                self._placed = self._copies_to
            else:
                given = list(_tensors(args))
                stored = [each for each in given if each.numel()] or given  # where an empty one is says less
                self._placed = max(map(self._gpu_of, stored), default=HOST)
            if func is _ATEN._to_copy.default:
                if type(args[0]) is not FakeTensor:
                    return self._upload(args[0], kwargs.get("dtype"))
                kwargs = {name: each for name, each in kwargs.items() if name not in ("device", "pin_memory")}
            function = None if operator.is_of_torch else python_of(func)
            if function is not None:
                return self._by_python(func, function, args, kwargs)
            if FakeTensor not in types:  # made there
                with self.mode:
                    made = self._seen(func, operator, types, args, kwargs)
                if operator.says_values and made.numel() <= _most_known(made.dtype):
                    self.know(made, func(*args, **kwargs))
                return made
            return self._seen(func, operator, types, args, kwargs)
        finally:
            self._depth.latest = self._placed
            self._placed = placed
            self._depth.value = depth

    def _seen(self, func: Any, operator: _Operator, types: Any, args: Any, kwargs: Any) -> Any:
        if operator.reads:
            return args[0] if func is _UPDATE_SCALE else self._value(func, args)
        self.multiplies |= operator.multiplies and self._placed != HOST
        self.gpu = self._placed
        if operator.is_plain and _are_unknown(args) and _are_unknown(kwargs.values()):
            result = super().__torch_dispatch__(func, types, args, kwargs)
            return self._sparse(func, args, result) if is_sparse(result) else result
        if not operator.is_mutable or func is _ATEN.copy_.default:
            args = [self._with_values(each) for each in args]
        kernel = kernel_of_compressed(func, args) if operator.may_be_compressed else operator.kernel
        if kernel is not None:
            result = self._by_python(func, kernel, args, kwargs)
            self._follow(func, operator, args, result)
            return result
        bounds = bounds_of_result(func, args, kwargs, self.bounds_of)
        is_known = all(each.constant is not None for each in _tensors(args))
        most = None if is_known else most_set_in_result(func, args, self._most_set)
        try:
            result = self._shaped(func, operator, types, args, kwargs)
        except (fake_tensor.DynamicOutputShapeException, fake_tensor.DataDependentOutputException):
            return self._largest(func, args)
        if is_sparse(result):
            return self._sparse(func, args, result)
        if func is _ATEN.cat.default and any(self.doubts.counts.intersection(each.shape) for each in args[0]):
            self.doubts.counts.add(result.shape[args[1] if len(args) > 1 else 0])
        if operator.leaves_uninitialized:
            result.constant = None
        if operator.overwrites and result.constant is None:
            self._know_overwritten(func, result, args, kwargs)
        self._follow(func, operator, args, result)
        self._know_bounds(result, bounds, most)
        if operator.copies and not self.in_module and self._is_weight(args[0]):
            self._note_copy(result)
        if operator.convolves and self.gpu != HOST:
            self._take_workspaces(self.convolutions.workspaces(func, args, result))
        compare = operator.compare
        if compare is not None and result.constant is None and args[0].is_floating_point() and args[1] > 0:
            result.assumed = compare(self._plausible, args[1])
        return result

    def _shaped(self, func: Any, operator: _Operator, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation; of known values, views and what is written are no new tensors, as FakeTensorMode has it."""
        if func is _ATEN._pack_padded_sequence.default:  # it counts on the host, also where all values are known
            raise fake_tensor.DynamicOutputShapeException(func)
        for at, name in operator.writes_lists:
            for each in args[at] if at < len(args) else kwargs[name]:
                self.forget_values(each)
        given = dict.fromkeys(_tensors((*args, *kwargs.values())))
        is_known = all(each.constant is not None for each in given)
        if not given or not is_known or not operator.is_decided:
            made = super().__torch_dispatch__(func, types, args, kwargs)
            for each in () if is_known else _tensors(made if isinstance(made, (list, tuple)) else (made,)):
                each.constant = None  # which has what was in memory where torch's own rule makes an empty tensor
            return made
        known = {each: each.constant for each in given}
        for each in known:
            each.constant = None
        try:
            made = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            for each, values in known.items():
                each.constant = values
        args, kwargs = tree_map_only(FakeTensor, lambda each: each.constant, (args, kwargs))
        with torch._C._DisableTorchDispatch():
            values = func(*args, **kwargs)
        for each, value in zip(tree_leaves(made), tree_leaves(values)):  # noqa: B905 - not in Python 3.9
            if each is not None and each not in known and each.numel() <= _most_known(each.dtype):
                self.know(each, value)
        return made

    def _by_python(self, func: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator's own code, whose operations are seen like the program's."""
        if func._schema.is_mutable:
            for each in _tensors((*args, *kwargs.values())):
                self.forget_values(each)
        depth = self._depth.value
        self._depth.value = 0
        try:
            with self:
                return function(*args, **kwargs)
        finally:
            self._depth.value = depth

    def forget_values(self, fake: Any) -> None:
        """Note that a kernel may write into a tensor."""
        if fake.constant is not None:
            self.mode.fake_tensor_converter.invalidate_constant_aliases(fake.constant)
        if is_bounded(fake) or hasattr(fake, "routed"):
            self._note_write(fake)

    def _sparse(self, func: Any, args: Any, result: Any) -> Any:
        """Return a sparse result with the elements that it has at most."""
        if is_decided_by_values(func, args):
            sentence = f"{program_line()} makes a sparse tensor whose elements depend on values: the most are assumed"
            self.doubts.add(sentence, "sizes")
        made = with_elements(func, args, result, self._new)
        return result if made is None else made

    def bounds_of(self, tensor: Any) -> Any:
        """Return the lowest and the highest values of a tensor; None: they are not known."""
        if type(tensor) is not FakeTensor:
            return None if tensor.device.type == "meta" else (tensor, tensor)
        if tensor.constant is not None:
            return tensor.constant, tensor.constant
        bounds, writes = getattr(tensor, "bounds", (None, 0))
        return bounds if writes == self._writes_into(tensor) else None

    def _most_set(self, tensor: Any) -> int:
        """Return how many elements differ from zero at most."""
        most, writes = getattr(tensor, "most_set", (tensor.numel(), None))
        if writes is not None and writes != self._writes_into(tensor):
            most = tensor.numel()
        return int(min(most, most_set(tensor, self.bounds_of(tensor) if is_bounded(tensor) else None)))

    def _know_bounds(self, tensor: Any, bounds: Any, most_set: int | None) -> None:
        """Keep what is known of a result: bounds of its values, and the most elements that are not zero."""
        if not is_bounded(tensor) or tensor.constant is not None:
            return
        if most_set is not None:
            tensor.most_set = most_set, self._writes_into(tensor)
        if bounds is None:
            return
        low, high = bounds
        with torch._C._DisableTorchDispatch():
            is_known = torch.equal(low, high)
        if is_known:
            self.know(tensor, low.clone())
        else:
            tensor.bounds = bounds, self._writes_into(tensor)

    def _routed(self, tensor: Any) -> Routed | None:
        """Return what is known of a tensor's values as a router's choice; None: nothing."""
        found, writes = getattr(tensor, "routed", (None, 0))
        return found if found is not None and writes == self._writes_into(tensor) else None

    def _follow(self, func: Any, operator: _Operator, args: Any, result: Any) -> None:
        """Keep what is known of a router's choices and of counts that equal shares give; mark results of ``any``."""
        found, values = follow(func, args, result, self._routed)
        for each in (args[0], result) if operator.is_mutable else ():  # an argument ``out`` is the result
            if isinstance(each, FakeTensor) and (is_bounded(each) or hasattr(each, "routed")):
                self._note_write(each)
        if found is not None:
            tensor, choice = found
            tensor.routed = choice, self._writes_into(tensor)
        if values is not None and result.constant is None:
            self.know(result, values)
            counted = self._routed(args[0])
            result.says_shares = bool(values.any()) and not (counted is not None and counted.are_answers)
            self._are_shared |= result.says_shares
        elif self._are_shared and getattr(result, "constant", None) is not None:
            result.says_shares = any(getattr(each, "says_shares", False) for each in _tensors(args))
        if func in _ANY:
            result.is_any = True

    def _doubt_shares(self) -> None:
        sentence = f"{program_line()} distributes tokens by scores: each expert is assumed to get an equal share"
        self.doubts.add(sentence, "shares")

    def _taken(self, mask: Any) -> int:
        """Return how many elements a mask takes: an equal share if it is a router's choice, else the most."""
        share = expected_set(self._routed(mask), mask.numel())
        most = self._most_set(mask)
        if share is None:
            if mask.constant is None and most > 1:
                self.doubts.counts.add(most)
            return most
        if share:
            self._doubt_shares()
        return min(share, most)

    def assumed_bytes(self, records: Iterable[StorageRecord]) -> int:
        """Return the bytes of what has a size that was assumed to be the largest; a real run may have less."""
        return sum(
            each.size
            for each in records
            if any(
                length == count or (count >= _MANY and length and not length % count)  # flat, or repeated
                for length in each.shape
                for count in self.doubts.counts
            )
        )

    def _writes_into(self, tensor: Any) -> int:
        return self._writes.get(tensor.untyped_storage()._cdata, 0)

    def _note_write(self, tensor: Any) -> None:
        self._writes[tensor.untyped_storage()._cdata] = self._writes_into(tensor) + 1

    def _know_overwritten(self, func: Any, target: Any, args: Any, kwargs: Any) -> None:
        """Let a tensor without values have those that an operation gives to all of its elements."""
        others = [self._with_values(each) for each in args[1:]]
        if target.numel() > _most_known(target.dtype) or any(each.constant is None for each in _tensors(others)):
            return
        others = tree_map_only(FakeTensor, lambda each: each.constant, others)
        with torch._C._DisableTorchDispatch():
            over_zeros, over_ones = (
                func(torch.full(target.shape, held, dtype=target.dtype, device="cpu"), *others, **kwargs)
                for held in (0, 1)
            )
            if torch.equal(over_zeros, over_ones):
                self.know(target, over_zeros)

    def _note_copy(self, made: Any) -> None:
        record = self._live.get(storage_of(made)._cdata)
        if record is not None:
            self._copies_of_weights.append(record)

    def count_copies_of_weights(self) -> None:
        """Count copies of weights that outlive a step as another model: an average that the program keeps itself."""
        self._copies_of_weights = [each for each in self._copies_of_weights if each.number in self._live_numbers]
        for record in self._copies_of_weights:
            if record.component not in _STATES:
                record.component = "other_models"

    def count_states(self, shapes: set[tuple[int, ...]], before: int) -> None:
        """Count as optimizer state what has the shape of a trained parameter and was allocated before a record."""
        copies = {each.number for each in self._copies_of_weights}
        for record in self._live.values():
            of_state = record.component in (None, "activations") and record.shape in shapes - {()}
            if of_state and record.number < before:
                record.component = "other_models" if record.number in copies else "optimizer"

    def _take_workspaces(self, workspaces: Iterator[Workspace]) -> None:
        for each in workspaces:
            if each.is_new:
                self.empty_cache()
            if each.high:
                self._workspaces[len(self.history.records)] = each
                self._tracked(new_bytes(self.mode, max(1, each.expected)))

    def convolution_facts(self) -> dict[str, Any] | None:
        """Return what the ranges of a budget need to know about convolutions; None: there was none."""
        if not self.convolutions.ran:
            return None
        peaks = {which: self._peaks_with(which) for which in ("expected", "low", "high")}
        below, above = (1 - LOW_SHARE) * peaks["low"]["reserved"], (HIGH_SHARE - 1) * peaks["high"]["reserved"]
        unmeasured = list(self.convolutions.unmeasured)
        return {
            **peaks,
            "unmeasured": unmeasured,
            "benchmark": self.convolutions.benchmark,
            "errors": None if unmeasured else (round(below), round(above)),
        }

    def _peaks_with(self, which: str) -> dict[str, int]:
        """Return the highest allocated and reserved bytes with the expected, ``low`` or ``high`` workspaces."""
        allocator = CachingAllocator(self._settings)
        allocator.private = set().union(*(each.private for each in self.memory.values()))
        emptied = iter([*self._emptied, math.inf])  # what is freed meanwhile is one more event
        at = next(emptied)
        for index, (record, size, stream) in allocator_events(self.history):
            while at <= index:
                allocator.empty_cache()
                at = next(emptied)
            if size is None:
                allocator.free(record, stream)
            else:
                workspace = self._workspaces.get(record)
                allocator.malloc(record, size if workspace is None else getattr(workspace, which), stream)
        return {"allocated": allocator.peak_allocated, "reserved": allocator.peak_reserved}

    def _with_values(self, value: Any) -> Any:
        """Return an argument with fake tensors for real ones, whose values FakeTensorMode does not keep."""
        if type(value) is torch.Tensor:
            return self.fake_of(value)
        return [self._with_values(each) for each in value] if isinstance(value, (list, tuple)) else value

    def unseen(self, function: Any) -> Any:
        """Return a function whose operations are those of other fake tensors, which are not on these GPUs."""

        def run(*args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._depth, "value", 0)
            self._depth.value = depth + 1
            try:
                with _disable_current_modes():
                    return function(*args, **kwargs)
            finally:
                self._depth.value = depth

        return run

    def making_buckets(self, function: Any) -> Any:
        """Return a function in which C++ makes buckets of gradients, on the device that it thinks GPUs are."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with replaced((self, "_makes_buckets", threading.get_ident()), (self, "_component", "communication")):
                return function(*args, **kwargs)

        return run

    def _upload(self, real: Any, dtype: Any) -> Any:
        self.gpu = self._placed
        fake = self.fake_of(real, dtype)
        self._track(fake, "inputs")
        with torch._C._DisableTorchDispatch():
            if is_causal(real):
                fake.routed = CAUSAL, self._writes_into(fake)
        return fake

    def fake_of(self, real: Any, dtype: Any = None, *, is_parameter: bool = False) -> Any:
        """Return a fake tensor like a real one; few values are kept, those of parameters are not."""
        dtype = dtype or real.dtype
        if is_sparse(real):
            parts = [self.fake_of(each, is_parameter=True) for each in parts_of(real)]
            is_coalesced = real.layout is torch.sparse_coo and real.is_coalesced()
            return sparse_like(real.shape, parts, real.layout, is_coalesced=is_coalesced)
        with self.mode, torch._C._DisableTorchDispatch():
            strides = torch.empty_like(real, device="meta").stride()  # a copy keeps the order of dense dimensions
            shape = torch.empty_strided(real.shape, strides, dtype=dtype, device="meta")
        fake = FakeTensor(self.mode, shape, _CPU)
        is_stored = type(real) is torch.Tensor and real.device.type == "cpu"
        if is_stored and not is_parameter and real.numel() <= _most_known(real.dtype):
            with torch._C._DisableTorchDispatch():  # a mode of FakeTensors may be on
                self.know(fake, real.detach().to(dtype, copy=True))
        return fake

    def know(self, fake: Any, values: Any) -> None:
        """Let a fake tensor have values."""
        fake.constant = values
        self.mode.fake_tensor_converter.add_constant_storage_mapping(fake)

    def on_host(self, real: Any) -> Any:
        """Return a fake tensor like a real one, on the host."""
        fake = self.fake_of(real, is_parameter=True)
        self.gpu = HOST
        self._track(fake, None)
        return fake

    def device_of(self, fake: Any) -> Any:
        """Return the device that a fake tensor, or one around it, has for the program."""
        fake = getattr(fake, "_local_tensor", fake)
        fake = getattr(fake, "elem", fake)  # of a collective that has not ended
        if getattr(self._depth, "value", 0):
            return torch.device("meta") if fake.fake_mode.in_kernel_invocation else fake.fake_device
        gpu = self._gpu_of(fake)
        return _CPU if gpu == HOST else torch.device("cuda", gpu)

    def _gpu_of(self, tensor: Any) -> int:
        key = storage_of(tensor)._cdata
        record = self._live.get(key)
        if record is None:  # nothing is stored: on the GPU, where most are
            is_on_host = tensor.numel() and not is_sparse(tensor)
            return self._emptied_on.get(key, HOST if is_on_host else self.current)
        return record.gpu

    def _track(self, tensor: Any, component: str | None) -> None:
        if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":  # what a fake sparse tensor consists of
            super()._track(tensor, component)

    def _allocate(self, storage: Any, shape: tuple[int, ...], dtype: str, component: str | None) -> None:
        if self.gpu != HOST and self.memory[self.gpu].reserved + storage.nbytes() > self.capacity:
            self._refuse(storage.nbytes())
        super()._allocate(storage, shape, dtype, component)
        record = self.history.records[-1]
        record.host = self.gpu == HOST
        if not record.host:
            if self.notes_lines:
                record.line, record.own_line = program_lines()
            self.memory[record.gpu].malloc(record.number, record.size, record.stream)
        self._note(record)

    def _refuse(self, size: int) -> None:
        """End the program where an allocation exceeds the GPU's memory and the program handles that error.

        It would go on with another size, or without a batch; what any other program asks for is counted in full.
        """
        if not is_caught(program_frames(sys._getframe(1))):
            return
        allocator = self.memory[self.gpu]
        try:
            with replaced((allocator, "capacity", self.capacity)):
                allocator.malloc(_TRIED, size)
            allocator.free(_TRIED)
        except OutOfMemoryError as error:
            self.out_of_memory(error)

    @property
    def allocated(self) -> int:
        """Bytes that are allocated on all GPUs."""
        return sum(each.allocated for each in self.memory.values())

    def _free(self, key: int) -> None:
        record = self._live[key]
        if not record.host:
            released = USED_ELSEWHERE if record.used_on else RELEASED
            self.memory[record.gpu].free(record.number, released)
        super()._free(key)
        self._note(record)

    def _return(self, record: StorageRecord) -> None:
        super()._return(record)
        self.memory[record.gpu].free(record.number, RETURNED)

    def _note(self, record: StorageRecord) -> None:
        self.reserved.append(self.memory[0 if record.host else record.gpu].reserved)

    def empty_cache(self) -> None:
        """Give unused segments back, as ``torch.cuda.empty_cache``, on every GPU."""
        for each in self.memory.values():
            each.empty_cache()
        self._emptied.append(len(self.history.events))

    def start_over(self) -> None:
        """Leave what was allocated so far out of the figures, but for what is held still."""
        for each in self.history.phases:
            each.step, each.name = 0, TRIED
        self.reserved = array("q", bytes(8 * len(self.reserved)))

    def look_at_fullest(self) -> dict[int, int]:
        """Let history and reserved bytes be those of the GPU that holds most; what others hold counts as elsewhere.

        Returns:
            The most bytes that each GPU's allocator held in what counts, by its number, that of the fullest first.
        """
        peaks: dict[int, int] = {}
        gpus = [HOST if record.host else record.gpu for record in self.history.records]
        for event, reserved in zip(self.history.events, self.reserved):  # noqa: B905 - not in Python 3.9
            gpu = gpus[abs(event) - 1]
            peaks[gpu] = max(peaks.get(gpu, 0), reserved)
        peaks.pop(HOST, None)
        if len(peaks) > 1:
            fullest = max(peaks, key=lambda gpu: (peaks[gpu], -gpu))
            held = 0
            for at, event in enumerate(self.history.events):
                held = self.reserved[at] if gpus[abs(event) - 1] == fullest else held
                self.reserved[at] = held
            for record in self.history.records:
                record.host |= record.gpu != fullest
        return dict(sorted(peaks.items(), key=lambda each: (-each[1], each[0])))

    def placing(self, device: Any) -> Any:
        """Put what copies make inside on a device."""
        return replaced((self, "_copies_to", HOST if device.type == "cpu" else self.number_of(device.index)))

    def number_of(self, index: int | None) -> int:
        """Return the number of the GPU that an index means; None: the current one."""
        number = self.current if index is None else int(index)
        if number >= self.count:
            message = "CUDA error: invalid device ordinal"
            raise RuntimeError(message)
        return number

    def values_of(self, fake: Any) -> Any:
        """Return a real tensor with a tensor's values if they are known; else the highest, else ones.

        A mask of unknown values takes every element; the number of elements that it takes is the highest, then.
        """
        if fake.constant is not None:
            if self._are_shared and getattr(fake, "says_shares", False):
                self._doubt_shares()
            return fake.constant
        if not fake.dtype.is_floating_point:
            self.doubts.add(f"{program_line()} reads values that are only known in a real run")
        if (bounds := self.bounds_of(fake)) is not None:
            return bounds[1].clone()
        assumed = 1 / fake.shape[-1] if fake.dim() and self._routed(fake) is SHARES else 1
        return torch.full(tuple(fake.shape), assumed, dtype=fake.dtype, device=_CPU)

    def _value(self, func: Any, args: Any) -> Any:
        """Return a value that the program reads: the real one where the host made it, else a plausible one."""
        self.wait_for_stream()
        constant = args[0].constant
        if func in _ALIKE:
            return args[0].dim() > 0 or getattr(args[0], "assumed", True)  # torch compares what it computed with one
        if constant is not None:
            return func(self.values_of(args[0]))
        line, dtype = program_line(), args[0].dtype
        detects_anomalies = is_by_engine(sys._getframe(1))  # the engine reads no values otherwise
        asks_for_overflow = not dtype.is_floating_point and (detects_anomalies or _asks_for_overflow(line))
        many = 0 if asks_for_overflow else self._count_alike(line)
        takes_most = line.rpartition(":")[0].endswith(_MOST_WITH_NO)
        if many and self._is_told(args[0]):
            self.doubts.add(f"{line} reads values in a loop that only they end; after {MOST_ALIKE:,} turns it is ended")
        if dtype.is_floating_point:
            self._plausible = 1 + (self._plausible - 1) * _FALL
            return self._plausible if not many else _HUGE ** (-1) ** many
        if dtype == torch.bool:
            goes_on = next(map(answer_to_go_on, program_frames(sys._getframe(1))), None)
            if goes_on is not None:  # a program that its author publishes does not fail
                return goes_on
            if _is_checked(sys._getframe(1)):
                return True
            assumed = getattr(args[0], "assumed", False)
            takes_most = takes_most and not assumed
            assumed = assumed or (takes_most and _GOES_ON in _text_of(line))
            if getattr(args[0], "is_any", False) and not (takes_most or asks_for_overflow):
                # of many values one is usually true
                leaves = next(map(leaves_if_true, program_frames(sys._getframe(1))), False)
                assumed = self.assumes_any and not leaves
            if not (many or asks_for_overflow or takes_most) and self._is_told(args[0]):
                word = "yes" if assumed else "no"
                self.doubts.add(f"{line} branches on a value that is only known in a real run; {word} is assumed")
            return assumed != bool(many)
        if asks_for_overflow:
            return 0
        bounds = self.bounds_of(args[0])
        low, high = (0, self._number) if bounds is None else map(int, bounds)
        assumed = high if takes_most else max(low, min(self._number, high))
        if not (many or (takes_most and bounds is not None)) and self._is_told(args[0]):
            self.doubts.add(f"{line} reads a number that is only known in a real run; {assumed} is assumed")
        if many % 2:
            return low if low < assumed else high
        return assumed

    def _count_alike(self, line: str) -> int:
        """Return by how many a line has read more unknown values than a loop may, with nothing else changing.

        A loop that was ended once may turn a tenth as often the next time.
        """
        state = len(self.history.phases), self.allocated
        before, count, most = self._read_alike.get(line, (state, 0, MOST_ALIKE))
        if before != state:
            count, most = 0, MOST_ALIKE // 10 if count > most else most
        self._read_alike[line] = state, count + 1, most
        return max(0, count + 1 - most)

    def _is_told(self, tensor: Any) -> bool:
        """Return True unless a parameter is being initialized."""
        return self._phase != "loading" or self._gpu_of(tensor) != HOST

    def _counted(self, _: Any, weights: Any, classes: int) -> Any:
        return self._new((classes,), torch.int64 if weights is None else weights.dtype)

    def _distributed(self, tokens: int, classes: int) -> Any:
        """Return how many tokens each expert gets."""
        made = self._new((classes,), torch.int64)
        self.know(made, counts(tokens, (classes,), torch.int64))
        self._are_shared = made.says_shares = True
        return made

    def _largest(self, func: Any, args: Any) -> Any:
        """Return what an operation gives at most where its values decide the shape."""
        source, count = args[0], args[0].numel()
        name = func._schema.name.partition("::")[2]
        if name in ("index", "_unsafe_index") and all(
            index is None or not _is_mask(index) or index.constant is not None for index in args[1]
        ):
            return self._indexed(func, args)
        if name == "_pack_padded_sequence":
            return self._packed(*args)
        if name == "_ctc_loss":
            return self._aligned(*args)
        if name == "bincount" and (classes := getattr(self._routed(source), "classes", 0)):
            return self._distributed(count, max(classes, *args[2:3], 0))
        if name == "bincount" and len(args) > 2 and args[2]:  # as many classes as are said
            return self._counted(*args)
        sentence = f"{program_line()} makes a tensor whose size depends on values ({name}): the largest is assumed"
        if not all(each.constant is not None or self._routed(each) is not None for each in _masks(name, args)):
            self.doubts.add(sentence, "counts")
        if name in ("nonzero", "argwhere"):
            return self._new((self._taken(source), source.dim()), torch.int64)
        if name == "masked_select":
            mask = args[1]
            return self._new((max(count, mask.numel()) // max(1, mask.numel()) * self._taken(mask),), source.dtype)
        if name.startswith(("_unique", "unique")):
            count = min(count, number_of_values(self.bounds_of(source)))
            self.doubts.counts.add(max(2, count))
            made = ((count,), source.dtype), (source.shape, torch.int64), ((count,), torch.int64)
            return tuple(self._new(*each) for each in made[: len(func._schema.returns)])
        if name in ("index", "_unsafe_index"):
            return self._indexed(func, args)
        if name == "bincount":
            return self._counted(source, args[1] if len(args) > 1 else None, count)
        raise NotImplementedError(f"the shape of the result of {name} depends on values, at {program_line()}")

    def _indexed(self, func: Any, args: Any) -> Any:
        """Index with boolean masks, of which every element is taken if their values are not known."""
        indices: list[Any] = []
        for index in args[1]:
            if index is not None and _is_mask(index):
                count = self._taken(index)
                indices += [self._new((count,), torch.int64) for _ in range(index.dim())]  # CUDA keeps them meanwhile
            else:
                indices.append(index)
        with self.mode:
            made = self._tracked(func(args[0], indices))
        choice, mask = self._routed(args[0]), self._routed(args[1][0]) if args[1][0] is not None else None
        if choice is not None and choice.classes and mask is not None and mask.share:  # choices of an expert's tokens
            made.routed = Routed(classes=max(1, round(choice.classes * mask.share))), self._writes_into(made)
        return made

    def _packed(self, padded: Any, lengths: Any, _is_batch_first: bool) -> Any:
        """Pack sequences; how many of them go on at each step is told on the host."""
        known = self.values_of(lengths) if isinstance(lengths, FakeTensor) else lengths
        going_on = (known > torch.arange(int(known.max()), device="cpu").unsqueeze(1)).sum(1)
        return self._new((int(known.sum()), *padded.shape[2:]), padded.dtype), going_on

    def _aligned(self, scores: Any, targets: Any, _steps: Any, lengths: Any, *_: Any) -> Any:
        """Return CTC's losses and what CUDA keeps of all alignments: two states a label of the longest target, and one.

        Source: torch, ``ATen/native/cuda/LossCTC.cu`` (``ctc_loss_gpu_template``, ``log_alpha``).
        """
        bounds = self.bounds_of(lengths)
        if bounds is None:
            self.doubts.add(f"{program_line()} aligns targets of unknown lengths: the longest is assumed", "sizes")
        longest = targets.shape[-1] if bounds is None else int(bounds[1].max())
        count = lengths.numel()
        kept = (count, scores.shape[0], 2 * longest + 1)
        return self._new((count,), scores.dtype), self._new(kept, scores.dtype)

    def _new(self, shape: Any, dtype: Any) -> Any:
        """Return a new tensor on the GPU of the operation."""
        with self.mode:
            return self._tracked(torch.empty(shape, dtype=dtype, device=_CPU))

    def _tracked(self, tensor: Any) -> Any:
        self._track(tensor, None)
        return tensor


def _unreserved(shape: Any, dtype: Any) -> Any:
    """Return zeros on the host that take no memory until they are written, however many they are.

    A weight is one for the moment in which it becomes a parameter, and may be larger than the host's memory.
    """
    count = math.prod(shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize, flags), dtype=dtype).view(tuple(shape))


def _most_known(dtype: Any) -> int:
    return MAX_KNOWN_FRACTIONS if dtype.is_floating_point or dtype.is_complex else MAX_KNOWN_VALUES


@functools.lru_cache(maxsize=4096)
def _is_composite(func: Any) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return func.namespace != "prim" and bool(has_kernel(func.name(), "CompositeImplicitAutograd"))


def _masks(name: str, args: Any) -> list[Any]:
    """Return the masks that decide how large the result of an operator is."""
    if name in ("index", "_unsafe_index"):
        return [each for each in args[1] if each is not None and _is_mask(each)]
    return [args[1] if name == "masked_select" else args[0]]


def _is_mask(index: Any) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _are_unknown(values: Any) -> bool:
    """Return True if all tensors among values are fractions of which nothing is known."""
    for each in values:
        kind = type(each)
        if kind is FakeTensor:
            if each.constant is not None or not each.dtype.is_floating_point or "routed" in each.__dict__:
                return False
        elif kind is list or kind is tuple:
            if not _are_unknown(each):
                return False
        elif isinstance(each, torch.Tensor):
            return False
    return True


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if type(value) is FakeTensor:
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _asks_for_overflow(line: str) -> bool:
    """Return True if a statement, which may have several lines, looks for overflows."""
    return _ASKS_FOR_OVERFLOW.search(_text_of(line)) is not None


def _text_of(line: str) -> str:
    """Return the text of a line, and of the four after it."""
    name, _, number = line.rpartition(":")
    first = int(number or 0)
    return "".join(linecache.getline(name, first + at) for at in range(5))


def _is_checked(frame: Any) -> bool:
    """Return True if torch itself reads a value for a program, and fails where it is false (``torch._check...``)."""
    while frame is not None and not _is_of_program(frame.f_code.co_filename):
        if frame.f_code.co_name == "_check_tensor_all_with":
            return True
        frame = frame.f_back
    return False


def program_line() -> str:
    """Return the innermost line outside of torch and of the rehearsal: ``train.py:12``."""
    frame = next(program_frames(sys._getframe(1)), None)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def program_lines() -> tuple[str, str]:
    """Return that line and, where it is a library's, the innermost one in the folder of the program; else ``""``."""
    line, script = "", sys.argv[0]
    for frame in program_frames(sys._getframe(1)):
        name = frame.f_code.co_filename
        line = line or f"{name}:{frame.f_lineno}"
        if is_own(name, script):
            here = f"{name}:{frame.f_lineno}"
            return line, "" if here == line else here
    return line, ""


def program_frames(frame: Any) -> Iterator[Any]:
    """Yield those of a frame and its callers that are outside of torch and of the rehearsal, the innermost first."""
    while frame is not None:
        if _is_of_program(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def _is_of_program(name: str) -> bool:
    return not name.startswith((_TORCH, _FOLDER, "<"))


@functools.lru_cache(maxsize=4096)
def is_own(name: str, script: str) -> bool:
    """Return True for a file below the current folder or the script's that is no installed library's."""
    file = Path(name).absolute()
    folders = Path.cwd(), Path(script).absolute().parent
    return "site-packages" not in file.parts and any(folder in file.parents for folder in folders)
