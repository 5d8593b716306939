"""Stand-ins for CUDA, without a GPU: devices, streams, memory, autocast, values of tensors."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.modules._functions as torch_functions
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from ..replaced import replaced
from .attention import change_attention
from .cuda_autocast import cuda_autocast
from .cuda_kernels import cuda_kernels, jagged_attention
from .data_parallel import data_parallel, moved
from .factories import become, factories, materialize, numbered, types_on_gpu
from .fake_gpu import MAX_KNOWN_VALUES, program_line
from .graphs import cuda_graphs
from .library_classes import subclasses
from .parameters import parameters_of_modules
from .python_operators import registered_kernels
from .ranks import many_ranks
from .recurrent_kernels import recurrent_layers
from .tensor_files import files_of_tensors
from .triton_kernels import change_triton

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..memory.allocator import CachingAllocator
    from .fake_gpu import FakeGpus

_WITHOUT_EFFECT = frozenset(
    ("_lazy_init", "init", "ipc_collect", "reset_accumulated_memory_stats",
     "manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all")
)  # fmt: skip
"""Functions of ``torch.cuda`` that change nothing here."""
_MOST_QUERIES = 2
"""Times that an event is said not to have passed; DeepSpeed keeps as many before it waits (``stage3.py``)."""
_RAGGED = itertools.count(2**40)
"""Numbers of ragged dimensions; torch numbers those of real tensors from 0."""


@contextlib.contextmanager
def cuda_without_gpu(gpus: FakeGpus) -> Iterator[None]:
    """Let everything inside find CUDA with fake GPUs."""
    with cuda_autocast(), cuda_kernels(), replaced(*stand_ins(gpus)):
        change_triton(gpus)
        change_attention(gpus)
        with gpus:
            yield


def stand_ins(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Return all stand-ins: module or class, name, and what is there in a rehearsal."""
    return itertools.chain(
        factories(gpus),
        _cuda(gpus),
        _streams(gpus),
        _tensors(gpus),
        _autocast(),
        _others(gpus),
        many_ranks(gpus),
        cuda_graphs(gpus),
        _kernels_for_lists(),
        _host_attention(),
        _nested_tensors(),
    )


def _host_attention() -> Iterator[tuple[Any, str, Any]]:
    """Keep attention over host tensors as it is."""
    functional = torch.nn.functional
    on_gpu = functional.scaled_dot_product_attention
    on_host = torch._C._nn.scaled_dot_product_attention

    @functools.wraps(on_host)
    def attention(query: Any, *args: Any, **kwargs: Any) -> Any:
        if query.is_nested and isinstance(query.values(), FakeTensor):
            return jagged_attention(query, *args, **kwargs)
        is_on_gpu = isinstance(getattr(query, "_local_tensor", query), FakeTensor)
        return (on_gpu if is_on_gpu else on_host)(query, *args, **kwargs)

    yield functional, "scaled_dot_product_attention", attention


def _nested_int(self: Any, *, coeff: int = 1) -> Any:
    """Return the length of a ragged dimension with these offsets, which equals itself alone, as for a real tensor."""
    if self.nested_int_memo is None:
        from torch.nested._internal.nested_int import NestedIntNode

        self.nested_int_memo = torch.SymInt(NestedIntNode(next(_RAGGED), 1))
    return self.nested_int_memo * coeff


def _nested_tensors() -> Iterator[tuple[Any, str, Any]]:
    """Yield what jagged nested tensors need whose values are on a GPU: for C++ they are on the host."""
    from torch.nested._internal.nested_tensor import NestedTensor, get_tensor_symint

    make = torch.Tensor._make_wrapper_subclass

    def make_subclass(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if issubclass(cls, NestedTensor):
            args = tuple(torch.device("cpu") if isinstance(each, torch.device) else each for each in args)
        return make(cls, *args, **kwargs)

    yield torch.Tensor, "_make_wrapper_subclass", staticmethod(make_subclass)
    yield NestedTensor, "device", property(lambda self: self._values.device)
    yield NestedTensor, "is_cuda", property(lambda self: self._values.is_cuda)
    torch.Tensor.nested_int_memo = property(get_tensor_symint)  # of offsets on the host, which are moved to a GPU


def _streams(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield CUDA's streams and events, which are the CPU's in an order that decides what may be used again."""
    order, number = gpus.order, gpus.stream_number

    def current() -> int:
        return number(torch.cpu.current_stream())

    class Stream(torch.cpu.Stream):  # type: ignore[misc] # torch is not type-checked
        """A CUDA stream."""

        def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
            super().__init__()
            self.device = torch.device("cuda", gpus.current)
            self.stream_id = self.cuda_stream = number(self)

        def __enter__(self) -> Stream:
            self._context = torch.cpu.stream(self)
            self._context.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self._context.__exit__(*error)

        def query(self) -> bool:
            self.synchronize()
            return True

        def is_capturing(self) -> bool:
            return False

        def synchronize(self) -> None:
            gpus.synchronize(order.record(number(self)))

        def wait_stream(self, stream: Any) -> None:
            order.wait(number(self), order.record(number(stream)))

        def record_event(self, event: Any = None) -> Any:
            made = Event() if event is None else event
            made.reach = order.record(number(self))
            return made

        def wait_event(self, event: Any) -> None:
            event.wait(self)

    class Event(torch.cpu.Event):  # type: ignore[misc] # torch is not type-checked
        """A CUDA event; an elapsed time is one millisecond."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            self.reach: dict[int, int] = {}
            self.asked = 0

        def record(self, stream: Any = None) -> None:
            self.reach, self.asked = order.record(current() if stream is None else number(stream)), 0

        def synchronize(self) -> None:
            gpus.synchronize(self.reach)

        def query(self) -> bool:
            """Return False twice, as the GPU is behind: a program that asks again and again would never end."""
            self.asked += 1
            if self.asked > _MOST_QUERIES:
                gpus.synchronize(self.reach)
            return self.asked > _MOST_QUERIES

        def wait(self, stream: Any = None) -> None:
            order.wait(current() if stream is None else number(stream), self.reach)

        def elapsed_time(self, _: Any) -> float:
            return 1.0

    first = Stream()
    gpus.streams = {first: 0}
    answers = {
        "Stream": Stream,
        "Event": Event,
        "stream": torch.cpu.stream,
        "StreamContext": torch.cpu.stream,
        "current_stream": torch.cpu.current_stream,
        "default_stream": lambda device=None: first,
        "set_stream": lambda stream: setattr(torch.cpu, "_current_stream", stream),
        "synchronize": lambda device=None: gpus.wait_for_all(),
    }
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6
    yield torch.cpu, "_current_stream", first
    yield torch.cpu, "_default_cpu_stream", first
    for name, answer in answers.items():
        yield torch.cuda, name, answer
        if hasattr(accelerator, name):
            yield accelerator, name, answer
    yield torch.Tensor, "record_stream", lambda self, stream: gpus.record_stream(self, stream)  # noqa: PLW0108


class _Generator(torch._C.Generator):  # type: ignore[misc] # torch is not type-checked
    """A generator of random numbers, on the host wherever it is asked for."""

    def __new__(cls, device: Any = None) -> _Generator:
        made: _Generator = super().__new__(cls, device="cpu")
        return made

    def set_state(self, new_state: Any) -> _Generator:
        """Take a state that came back from the GPU, if its bytes are known."""
        state = getattr(new_state, "constant", None) if isinstance(new_state, FakeTensor) else new_state
        return self if state is None else super().set_state(state)


def _cuda(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    card = gpus.card
    properties = SimpleNamespace(
        name=card.name,
        total_memory=card.total_memory,
        major=card.capability[0],
        minor=card.capability[1],
        multi_processor_count=132,
        warp_size=32,
        gcnArchName="",
        L2_cache_size=50 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        uuid="",
    )
    state = torch.zeros(16, dtype=torch.uint8)

    def device_index(device: Any) -> int:
        number = device if isinstance(device, int) else torch.device(device).index
        return max(0, gpus.number_of(number))

    def set_device(device: Any) -> None:
        gpus.current = device_index(device)

    class InDevice:
        def __init__(self, device: Any = None) -> None:
            self.device = device
            found = numbered(getattr(device, "device", device), gpus)
            self.idx = -1 if found is None or found.type != "cuda" else found.index

        def __enter__(self) -> None:
            self.before = gpus.current
            if self.device is not None:
                set_device(getattr(self.device, "device", self.device))

        def __exit__(self, *_: object) -> None:
            gpus.current = self.before

    def memory(device: Any) -> CachingAllocator:
        return gpus.memory[gpus.current if device is None else device_index(device)]

    def stats(device: Any = None) -> dict[str, int]:
        held = memory(device)
        found = {
            "allocated_bytes.all.current": held.allocated,
            "allocated_bytes.all.peak": held.peak_allocated,
            "active_bytes.all.current": held.allocated,
            "active_bytes.all.peak": held.peak_allocated,
            "reserved_bytes.all.current": held.reserved,
            "reserved_bytes.all.peak": held.peak_reserved,
        }
        return Counter(found)  # torch has further ones: a program that prints them finds 0

    def nothing() -> Callable[..., None]:
        """Return a function that does nothing, another each time: ``torch._dynamo`` tells functions apart."""
        return lambda *_, **__: None

    def info(device: Any = None) -> tuple[int, int]:
        return max(0, card.total_memory - card.context - memory(device).reserved), card.total_memory

    def limit(fraction: float, *_: Any, **__: Any) -> None:
        if fraction < 1:
            share = f"{program_line()} limits the program to {fraction:.0%} of the GPU"
            gpus.doubts.add(f"{share}, beyond which it runs out of memory: not counted", "limit")

    answers: dict[str, Any] = {
        **{name: nothing() for name in _WITHOUT_EFFECT},
        "set_per_process_memory_fraction": limit,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "device_count": lambda: gpus.count,
        "current_device": lambda: gpus.current,
        "set_device": set_device,
        "device": InDevice,
        "device_of": InDevice,
        "_DeviceGuard": InDevice,
        # and so the name, the capability and what depends on it
        "get_device_properties": lambda device=None: properties,
        "get_arch_list": lambda: [f"sm_{card.capability[0]}{card.capability[1]}"],
        "can_device_access_peer": lambda device, peer_device: True,
        "mem_get_info": info,
        "utilization": lambda device=None: 100,
        "empty_cache": gpus.empty_cache,
        "memory_stats": stats,  # of which torch's other functions about memory tell
        "memory_summary": lambda *_, **__: "",
        "reset_peak_memory_stats": lambda device=None: memory(device).reset_peaks(),
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device=None: state,
        "get_rng_state_all": lambda: [state] * gpus.count,
        # SyncBatchNorm then takes it that no rank's batch is empty, which would need values
        "is_current_stream_capturing": lambda: (
            sys._getframe(1).f_code is torch_functions.SyncBatchNorm.forward.__code__
        ),
    }
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        for name, answer in answers.items():
            if hasattr(module, name):
                yield module, name, answer
    missing = {
        "_cuda_getCurrentRawStream": lambda device=None: 0,
        "_host_emptyCache": nothing(),
        "_cuda_record_memory_history": nothing(),
        "_cuda_record_memory_history_legacy": nothing(),
        "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": []},
    }
    for name, answer in missing.items():  # torch is built without CUDA; kernels and graphs ask for them
        if not hasattr(torch._C, name):
            setattr(torch._C, name, answer)
    yield from _accelerator(answers)
    for name in ("range_push", "range_pop", "mark"):
        yield torch.cuda.nvtx, name, nothing()
    yield torch.backends.cuda, "is_built", lambda: True
    yield torch.backends.cudnn, "is_available", lambda: True
    yield torch.version, "cuda", torch.version.cuda or "12.8"


def _accelerator(answers: dict[str, Any]) -> Iterator[tuple[Any, str, Any]]:
    """Yield what torch answers about CUDA under its general name (torch 2.6)."""
    device = torch.device("cuda")
    if hasattr(torch._C, "_get_accelerator"):
        yield torch._C, "_get_accelerator", lambda *_: device
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    names = {
        "current_device_index": "current_device",
        "device_index": "device",
        "set_device_index": "set_device",
        "get_memory_info": "mem_get_info",
    }
    for name in accelerator.__all__:
        answer = answers.get(names.get(name, name)) or getattr(torch.cuda.memory, name, None)
        if name == "current_accelerator":
            yield accelerator, name, lambda check_available=False: device
        elif answer is not None:
            yield accelerator, name, answer


def _tensors(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield the methods of tensors that name devices or read values."""
    tensor = torch.Tensor
    to, make, make_like = tensor.to, torch.tensor, torch.as_tensor

    def numbered_to(self: Any, *args: Any, memory_format: Any = None, **kwargs: Any) -> Any:
        device, dtype, copy = kwargs.get("device"), kwargs.get("dtype"), kwargs.get("copy", False)
        first, *rest = args or (kwargs.get("tensor"),)
        if isinstance(first, torch.Tensor):  # like another tensor, whose device C++ does not see
            device, dtype = first.device, first.dtype
        elif isinstance(first, torch.dtype):
            dtype = first
        elif args:
            device = first if first is not None else device
            if rest:  # device, dtype, non_blocking, copy
                dtype = rest.pop(0) if isinstance(rest[0], torch.dtype) or rest[0] is None else dtype
        copy = rest[1] if len(rest) > 1 else copy
        device = numbered(device, gpus)
        options = {"memory_format": memory_format or torch.preserve_format, "dtype": dtype}
        if copy:  # libraries' own tensors may not know it
            options["copy"] = True
        if isinstance(self, FakeTensor) and device is not None and device.type == "meta":
            return torch.empty_strided(self.shape, self.stride(), dtype=dtype or self.dtype, device="meta")
        if not (isinstance(self, FakeTensor) or hasattr(self, "_local_tensor")) or (
            device is not None and device.type not in ("cuda", "cpu")
        ):
            return to(self, device=device, **options)
        here = gpus.device_of(self)
        if device is None or device == here:
            return to(self, **options)
        options["copy"] = True  # C++ sees one device
        if self.requires_grad and torch.is_grad_enabled():
            return moved(self, here, device, lambda each, target: numbered_to(each, target, **options))
        with gpus.placing(device):
            return to(self, **options)

    def cuda(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        return numbered_to(self, numbered("cuda" if device is None else device, gpus), **kwargs)

    def placed(make: Any) -> Any:
        @functools.wraps(make)
        def run(data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
            device = numbered(device, gpus)
            kwargs.pop("pin_memory", None)  # which torch refuses without a GPU
            current = torch.utils._device.CURRENT_DEVICE  # of ``with torch.device(...)`` and ``set_default_device``
            if device is None and current is not None:
                device = numbered(current, gpus)
            with torch.device("cpu") if device is not None else contextlib.nullcontext():
                if not isinstance(data, FakeTensor):
                    made = make(_with_numbers(data), *args, **kwargs)
                else:
                    made = data if kwargs.get("dtype") is None else data.to(kwargs["dtype"])
            made = made if device is None else numbered_to(made, device)
            return made.requires_grad_() if requires_grad else made

        return run

    def format_value(self: Any, format_spec: str) -> str:
        return format(self.item() if not self.dim() else "tensor(...)", format_spec)

    plain_copy = tensor.__deepcopy__

    def copied(self: Any, memo: Any) -> Any:
        memo[id(self.fake_mode)] = self.fake_mode  # a copy would release references to storages a second time
        made = plain_copy(self, memo)
        if made.constant is not None:
            gpus.know(made, made.constant)
        if isinstance(self, torch.nn.Parameter):
            gpus.label((made,), "weights")
        return made

    plain_subclass = tensor.as_subclass

    def as_subclass(self: Any, cls: Any) -> Any:
        """Return a tensor on the GPU as it is: a fake tensor cannot be of the program's own class too."""
        return self if isinstance(self, FakeTensor) else plain_subclass(self, cls)

    data = torch.Tensor.data

    def set_data(self: Any, value: Any) -> None:
        if not isinstance(value, FakeTensor):
            value = gpus.on_host(value)
        data.__set__(self, value)
        self.constant = None
        if value.constant is not None:
            gpus.know(self, value.constant)

    def become_fake(self: Any, value: Any) -> None:
        """Set the data of a tensor on the host to what is on a GPU, for which C++ would keep the tensor's type."""
        if type(self) is torch.Tensor and isinstance(value, FakeTensor):
            become(self, value.detach())
        else:
            data.__set__(self, value)

    parse = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        """Read the arguments of ``Module.to``."""
        if "device" in kwargs:
            kwargs["device"] = numbered(kwargs["device"], gpus)
        like = kwargs.pop("tensor", args[0] if args else None)
        if isinstance(like, torch.Tensor):
            args = like.device, like.dtype, *args[1:]
        return parse(*(numbered(each, gpus) for each in args), **kwargs)

    yield torch._C._nn, "_parse_to", parse_to
    yield tensor, "as_subclass", as_subclass
    yield tensor, "to", numbered_to
    yield tensor, "cuda", cuda
    yield tensor, "cpu", lambda self, **kwargs: numbered_to(self, torch.device("cpu"), **kwargs)
    yield from types_on_gpu(numbered_to)
    yield from subclasses()
    yield from registered_kernels()
    yield UninitializedTensorMixin, "materialize", materialize
    yield tensor, "pin_memory", lambda self, *_: self
    yield tensor, "is_pinned", lambda self, *_: False
    yield torch, "tensor", placed(make)
    yield torch, "as_tensor", placed(make_like)
    yield torch, "asarray", placed(torch.asarray)
    yield torch, "Generator", _Generator
    set_state = torch.set_rng_state

    def set_rng_state(new_state: Any) -> None:
        if not isinstance(new_state, FakeTensor):
            set_state(new_state)
        elif new_state.constant is not None:
            set_state(new_state.constant)

    for module in (torch, torch.random):
        yield module, "set_rng_state", set_rng_state
    yield from parameters_of_modules(gpus)
    yield FakeTensor, "__deepcopy__", copied
    yield FakeTensor, "data", property(data.__get__, set_data)
    yield torch.Tensor, "data", property(data.__get__, become_fake)
    yield FakeTensor, "device", property(gpus.device_of)
    yield FakeTensor, "is_cuda", property(lambda self: self.device.type == "cuda")
    yield FakeTensor, "is_cpu", property(lambda self: self.device.type == "cpu")
    yield FakeTensor, "get_device", lambda self: -1 if self.device.index is None else self.device.index
    yield FakeTensor, "tolist", lambda self: gpus.values_of(self).tolist()
    yield FakeTensor, "numpy", lambda self, **_: gpus.values_of(self).numpy()
    yield FakeTensor, "__array__", lambda self, *args, **_: gpus.values_of(self).numpy()
    yield FakeTensor, "__format__", format_value
    if hasattr(FakeTensor, "get_nested_int"):  # since torch 2.5
        yield FakeTensor, "get_nested_int", _nested_int


def _with_numbers(data: Any) -> Any:
    """Return nested lists with numbers for the fake tensors among their elements, which C++ would read."""
    if isinstance(data, FakeTensor):
        return data.tolist()
    return [_with_numbers(each) for each in data] if isinstance(data, (list, tuple)) else data


def _autocast() -> Iterator[tuple[Any, str, Any]]:
    """Yield what lets autocast for CUDA be that of the CPU, which casts as CUDA's does (``cuda_autocast``)."""
    autocast = torch.amp.autocast_mode.autocast
    start = autocast.__init__

    def begin(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda" and dtype is None:
            dtype = torch.float16
        start(self, "cpu" if device_type == "cuda" else device_type, dtype, *args, **kwargs)

    yield autocast, "__init__", begin
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        of_device = getattr(torch, name)

        def on_cpu(*args: Any, of_device: Any = of_device) -> Any:
            if args and isinstance(args[0], str):
                return of_device("cpu" if args[0] == "cuda" else args[0], *args[1:])
            return of_device("cpu", *args)

        yield torch, name, on_cpu
    yield torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu")


def _kernels_for_lists() -> Iterator[tuple[Any, str, Any]]:
    """Yield what lets torch choose its kernels for lists of tensors (foreach, fused) as it does for those on a GPU.

    Optimizers, clipping and averages of weights look at the types of tensors and, partly in C++, at their devices.
    """
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        groups: dict[Any, Any] = {}
        for at, first in enumerate(lists[0]):
            members, indices = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
            for found, each in zip(members, lists):  # noqa: B905 - not in Python 3.9
                found.extend(each[at : at + 1])
            indices += [at] * with_indices
        return groups

    for module in (optimizer, _foreach_utils):
        yield module, "_foreach_supported_types", [*module._foreach_supported_types, FakeTensor]
    yield torch._C, "_group_tensors_by_device_and_dtype", grouped


def _others(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield what else depends on a device or on values."""
    scaler, is_all_true = torch.amp.GradScaler, torch._is_all_true

    def is_valid(values: Any) -> Any:
        """Take values that only a real run knows for valid: distributions ask that of their parameters."""
        is_known = not isinstance(values, FakeTensor) or values.constant is not None
        return is_all_true(values) if is_known else torch.tensor(True)

    def step(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)  # no gradient overflows

    def uncompiled(model: Any, compiler: str) -> Any:
        """Return what a compiler would be given; a function tells once it runs that it was not compiled."""

        def doubt() -> None:
            sentence = f"{compiler} has no effect in a rehearsal: the figures are those of the program without it"
            gpus.doubts.add(sentence, "compiled")

        if isinstance(model, type):
            return model
        if isinstance(model, torch.nn.Module):
            doubt()
            return model

        @functools.wraps(model)
        def run(*args: Any, **kwargs: Any) -> Any:
            doubt()
            return model(*args, **kwargs)

        return run

    def compiled(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compiled, **options)
        if options.get("backend") == "eager":
            return model
        if getattr(model, "__module__", None) == "torch.nn.attention.flex_attention":
            gpus.compiles |= model.__name__ == "flex_attention"  # torch wraps what it calls itself, too
            return model
        gpus.compiles = True
        return uncompiled(model, "torch.compile")

    is_ampere = gpus.card.capability[0] >= 8
    yield from recurrent_layers(lambda each: isinstance(each, FakeTensor), gpus.doubts, is_ampere=is_ampere)
    yield from files_of_tensors(gpus)
    yield torch, "_is_all_true", is_valid

    converter = fake_tensor.FakeTensorConverter
    invalidate = converter.invalidate_constant_aliases

    def invalidate_constant_aliases(self: Any, tensor: Any) -> None:
        if tensor.layout is torch.strided:  # a sparse tensor has no storage that others could share
            invalidate(self, tensor)

    yield converter, "invalidate_constant_aliases", invalidate_constant_aliases
    yield from data_parallel(gpus)
    yield fake_tensor, "CONSTANT_NUMEL_LIMIT", MAX_KNOWN_VALUES
    yield scaler, "_maybe_opt_step", step
    yield torch, "compile", compiled
    yield torch.jit._state._enabled, "enabled", False  # as PYTORCH_JIT=0: its compiler cannot read stand-ins
    yield torch.jit, "script", lambda obj, *_, **__: uncompiled(obj, "torch.jit.script")
    yield torch.jit, "trace", lambda func, *_, **__: uncompiled(func, "torch.jit.trace")
    yield forward_ad, "_maybe_load_decompositions", lambda: None  # as without its compiler
    yield torch.nn.Module, "compile", lambda self, *_, **__: compiled(self)
