"""Files of tensors: those of GPUs are saved with their shapes, without values, and found again when they are loaded.

The files are real, so a program may move, copy and list them. A fake tensor in one is its description; ``torch.save``
writes those of safetensors too. They are opened by Python, not by C++ or Rust.
"""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import threading
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from ..replaced import replaced
from .fake_gpu import program_frames
from .imports import after_import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from .fake_gpu import FakeGpus

_CPU = torch.device("cpu")
_MAX_READ = 1 << 20
"""Bytes of a tensor in a file of safetensors above which its values are not read."""


class _Load(threading.local):
    """What a thread loads."""

    place: Callable[[Any], Any] = staticmethod(lambda device: device)
    """Returns where a tensor that was saved on a device is wanted."""
    storages: dict[int, Any] | None = None
    """Storages that were made, by their number in the file: tied weights share one."""


_LOAD = _Load()
_MADE_ON = SimpleNamespace()
"""``gpus`` of this process; what is unpickled finds them here."""


def files_of_tensors(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins for what saves and loads tensors, and for the addresses that tell shared ones."""
    save, load, address = torch.save, torch.load, torch.UntypedStorage.data_ptr
    _MADE_ON.gpus = gpus

    def save_by_python(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        gpus.before_saving()
        if not isinstance(f, (str, os.PathLike)):
            save(obj, f, *args, **kwargs)
            return
        with open(f, "wb") as opened:  # noqa: PTH123 - the redirected one
            save(obj, opened, *args, **kwargs)

    def load_to(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        with replaced((_LOAD, "place", _place(map_location)), (_LOAD, "storages", {})):
            loaded = load(f, "cpu", *args, **kwargs)
        if isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == "cuda":
            return tree_map(lambda each: each.to(map_location) if isinstance(each, torch.Tensor) else each, loaded)
        return loaded

    def described(self: Any, proto: Any) -> Any:  # noqa: ARG001 - torch's names
        storage = self.untyped_storage()
        return restored, (
            (storage._cdata, storage.nbytes(), gpus.device_of(self)),
            (self.dtype, self.storage_offset(), tuple(self.shape), tuple(self.stride())),
            None if self.constant is None else self.constant.clone(),
            self.requires_grad,
            isinstance(self, torch.nn.Parameter),
        )

    def shared(self: Any) -> Any:
        """Copy a tensor as ``copy.copy`` does, which would save and load it otherwise."""
        is_parameter = isinstance(self, torch.nn.Parameter)
        alias = self.detach()
        return (
            torch.nn.Parameter(alias, self.requires_grad) if is_parameter else alias.requires_grad_(self.requires_grad)
        )

    def address_of(self: Any) -> int:
        caller = sys._getframe(1)
        if next(program_frames(caller), None) is caller:  # not torch, which compares addresses
            gpus.forget_values(self)  # native code may write there
        return int(self.untyped_storage()._cdata + self.storage_offset() * self.itemsize)

    FakeTensor.__copy__ = shared
    yield torch, "save", save_by_python
    yield torch, "load", load_to
    yield FakeTensor, "__reduce_ex__", described
    yield torch.UntypedStorage, "data_ptr", lambda self: self._cdata if self.device.type == "meta" else address(self)
    yield FakeTensor, "data_ptr", address_of
    torch.serialization.add_safe_globals([restored])
    after_import("safetensors.torch", lambda module: _change_safetensors(module, gpus))


def _place(map_location: Any) -> Callable[[Any], Any]:
    """Return where ``torch.load`` puts what was on a device."""
    if map_location is None:
        return lambda device: device
    if isinstance(map_location, dict):
        return lambda device: torch.device(map_location.get(str(device), device))
    wanted = _CPU if callable(map_location) else torch.device(map_location)
    return lambda _: wanted


def restored(saved: Any, view: Any, values: Any, requires_grad: bool, is_parameter: bool) -> Any:
    """Return a fake tensor like the one that was saved; what was saved with one storage has one again.

    Args:
        saved: number, bytes and device of its storage.
        view: dtype, offset, shape and strides.
        values: a real tensor; None: they are not known.
        requires_grad: as it was.
        is_parameter: whether it was one.
    """
    number, nbytes, device = saved
    dtype, offset, shape, stride = view
    gpus, storages, device = _MADE_ON.gpus, _LOAD.storages, _LOAD.place(device)
    storage = None if storages is None else storages.get(number)
    if storage is None:
        if device.type == "cuda":
            storage = torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()
        else:
            storage = gpus.on_host(torch.empty(nbytes, dtype=torch.uint8, device="meta")).untyped_storage()
        if storages is not None:
            storages[number] = storage
    with torch._C._DisableTorchDispatch():
        shaped = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, shape, stride)
    fake = FakeTensor(gpus.mode, shaped, _CPU)
    if values is not None:
        gpus.know(fake, values)
    return torch.nn.Parameter(fake, requires_grad) if is_parameter else fake.requires_grad_(requires_grad)


def _change_safetensors(module: ModuleType, gpus: FakeGpus) -> None:
    """Let ``safetensors.torch`` save fake tensors, and load small tensors with their values and others without."""
    types = module._TYPES

    def save_file(tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:  # noqa: ARG001
        torch.save(dict(tensors), filename)

    def save(tensors: Mapping[str, Any], metadata: Any = None) -> bytes:  # noqa: ARG001 - safetensors' names
        file = io.BytesIO()
        torch.save(dict(tensors), file)
        return file.getvalue()

    def load(data: bytes) -> Any:
        return torch.load(io.BytesIO(data), "cpu") if zipfile.is_zipfile(io.BytesIO(data)) else plain_load(data)

    def load_file(filename: Any, device: Any = "cpu", **_: Any) -> dict[str, Any]:
        read = {}
        with open(filename, "rb") as file:  # noqa: PTH123 - the redirected one
            if zipfile.is_zipfile(file):
                file.seek(0)
                return {name: each.to(device) for name, each in torch.load(file, "cpu").items()}
            file.seek(0)
            first = 8 + struct.unpack("<Q", file.read(8))[0]
            if first > file.seek(0, io.SEEK_END):
                raise OSError(f"{filename} holds no tensors; if it is a pointer of Git LFS, run git lfs pull")
            file.seek(8)
            header = json.loads(file.read(first - 8))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                (start, end), dtype = entry["data_offsets"], types[entry["dtype"]]
                if 0 < end - start <= _MAX_READ:
                    file.seek(first + start)
                    read[name] = torch.frombuffer(bytearray(file.read(end - start)), dtype=dtype).reshape(
                        entry["shape"]
                    )
                else:
                    read[name] = gpus.on_host(torch.empty(entry["shape"], dtype=dtype, device="meta"))
        return read if str(device) == "cpu" else {name: each.to(device) for name, each in read.items()}

    plain_load = module.load
    for function in (save_file, save, load, load_file):
        setattr(module, function.__name__, function)
