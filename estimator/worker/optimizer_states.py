"""Bytes of state of an optimizer class, from steps of the class itself on parameters of the asked shapes."""

from __future__ import annotations

import inspect
import math
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .replaced import replaced
from .request.protocol import UnsupportedError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# Counter of the bytes that live storages take, real or fake, with their peak.


def _is_plain(kind: Any) -> bool:
    """Return True if tensors of a class have a storage of their own: bitsandbytes' weights too, not a DTensor."""
    return kind is FakeTensor or kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__


class LiveBytes(TorchDispatchMode):  # type: ignore[misc] # torch is not type-checked
    """Counts the storages that appear while the mode is active, until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(map(_is_plain, types)):
            return NotImplemented  # a subclass's operation comes back as operations of its inner tensors
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def ignore(self, tensor: Any) -> None:
        """Do not count the storage of a tensor."""
        self._seen.add(tensor.untyped_storage()._cdata)

    def _count(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


# Bytes of state of an optimizer class, from steps of the class itself on parameters of the asked shapes.
#
# On fake tensors a parameter has its real shape and takes no memory. Where the class looks at values, or its kernels
# know no fake tensors, real parameters of several small shapes are stepped, and a formula of their sides is fitted.


STEPS = 3
_SMALL = 4096
"""Elements of vectors below which libraries leave states unquantized."""
_NAME = "model.layers.0.mlp.up_proj.weight"
_TOLERANCE = 0.002


@dataclass(frozen=True)
class Measured:
    """Bytes of one parameter's states, and of temporary memory while it is stepped."""

    states: float
    step: float


@dataclass(frozen=True)
class OptimizerFactory:
    """Makes optimizers of one class.

    Options that the class does not take by keyword belong to the group of matrices (``rank`` of low-rank optimizers).
    """

    kind: Any
    options: dict[str, Any]

    def make(self, named: list[tuple[str, Any]]) -> Any:
        """Return the optimizer of parameters.

        Raises:
            UnsupportedError: the class needs an argument that only its user knows.
        """
        signature = inspect.signature(self.kind)
        names = list(signature.parameters)
        open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        own = {name: value for name, value in self.options.items() if name in names or open_ended}
        group = {name: value for name, value in self.options.items() if name not in own}
        for name, each in list(signature.parameters.items())[1:]:
            required = each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
            if required and name not in own:
                if name != "lr":
                    raise UnsupportedError(f"{self.kind.__name__} needs the argument {name}")
                own["lr"] = 1e-4
        if names and names[0] in ("model", "module"):
            raise UnsupportedError(f"{self.kind.__name__} is created from a model, not from parameters")
        if names and names[0] == "named_parameters":
            return self.kind(named, **own)
        parameters = [parameter for _, parameter in named]
        if not group:
            return self.kind(parameters, **own)
        groups = [
            {"params": [parameter for parameter in parameters if parameter.dim() > 1], **group},
            {"params": [parameter for parameter in parameters if parameter.dim() < 2]},
        ]
        return self.kind([each for each in groups if each["params"]], **own)


def without_compiling() -> AbstractContextManager[None]:
    """Let ``torch.compile`` return what it is given: compiling takes minutes, and changes no state."""
    return replaced((torch, "compile", lambda model=None, **_options: (lambda each: each) if model is None else model))


def measure(factory: OptimizerFactory, shapes: list[tuple[int, ...]], dtype: Any) -> tuple[list[Measured | None], str]:
    """Return what each parameter takes, and how it was found: ``fake`` or ``fitted``.

    None stands for vectors that the class does not step: the script has to give them to another optimizer.

    Raises:
        UnsupportedError: the class cannot be stepped, or no formula fits.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return [_step(factory, shape, dtype) for shape in shapes], "fake"
    except UnsupportedError:
        raise
    except Exception:  # noqa: BLE001, S110 - optimizers that read values fail in as many ways as there are optimizers
        pass
    vectors = [shape for shape in shapes if len(shape) < 2]
    matrices = [shape for shape in shapes if len(shape) > 1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            found = dict(zip(matrices, _fitted_matrices(factory, matrices, dtype)))  # noqa: B905 - 3.9
        except UnsupportedError:
            raise
        except Exception as error:  # noqa: BLE001 - a library's code can raise anything
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise UnsupportedError(f"{factory.kind.__name__} cannot be stepped here: {text}") from None
        try:
            found.update(zip(vectors, _fitted_vectors(factory, vectors, dtype)))  # noqa: B905 - 3.9
        except Exception:  # noqa: BLE001 - such as Muon's, which takes matrices alone
            if not matrices:
                raise UnsupportedError(f"{factory.kind.__name__} cannot step a vector here") from None
    return [found.get(shape) for shape in shapes], "fitted"


def _step(factory: OptimizerFactory, shape: tuple[int, ...], dtype: Any) -> Measured:
    """Step one parameter, and return what exists afterwards beside it and its gradient."""
    parameter = torch.nn.Parameter(0.02 * torch.randn(shape).to(dtype))
    parameter.grad = 0.01 * torch.randn(shape).to(dtype)
    counter = LiveBytes()
    counter.ignore(parameter)
    counter.ignore(parameter.grad)
    with warnings.catch_warnings(), counter:
        warnings.simplefilter("ignore")
        optimizer = factory.make([(_NAME, parameter)])
        if callable(getattr(optimizer, "train", None)):  # schedule-free optimizers evaluate at other weights
            optimizer.train()
        for _ in range(STEPS):
            _take_step(optimizer)
        live, peak = counter.live, counter.peak  # the first step is the highest where projections are computed in some
    return Measured(states=live, step=peak - live)


def _take_step(optimizer: Any) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        optimizer.step(lambda: torch.zeros(()))
    else:
        optimizer.step()


def _fitted_matrices(factory: OptimizerFactory, shapes: list[tuple[int, ...]], dtype: Any) -> list[Measured]:
    """Return what matrices take, by a formula fitted to small ones."""
    if not shapes:
        return []
    unit, rank = 64, factory.options.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool):  # the small ones must not be smaller than the rank
        unit = max(unit, -(-min(rank, 1024) // 64) * 32)
    formula = _MatrixFormula.fitted(factory, unit, dtype)
    return [formula.at(shape) for shape in shapes]


def _fitted_vectors(factory: OptimizerFactory, shapes: list[tuple[int, ...]], dtype: Any) -> list[Measured]:
    """Return what vectors take, in proportion to a small and a large one."""
    if not shapes:
        return []
    sizes = (_SMALL // 4, 4 * _SMALL)
    measured = [(_step(factory, (size,), dtype), size) for size in sizes]
    found = []
    for shape in shapes:
        like, size = measured[math.prod(shape) >= _SMALL]
        share = math.prod(shape) / size
        found.append(Measured(states=like.states * share, step=like.step * share))
    return found


@dataclass(frozen=True)
class _MatrixFormula:
    """Bytes as sums over elements, sides and squares of sides: factored, low-rank and preconditioning optimizers."""

    states: list[float]
    step: list[float]

    @classmethod
    def fitted(cls, factory: OptimizerFactory, unit: int, dtype: Any) -> _MatrixFormula:
        """Return the formula of a class.

        Raises:
            UnsupportedError: no such formula describes the states.
        """
        sides = [(4, 2), (2, 4), (3, 4), (5, 3), (2, 6), (5, 5), (8, 4), (3, 7), (6, 5), (2, 2), (4, 8)]
        shapes = [(rows * unit, columns * unit) for rows, columns in sides]
        measured = [_step(factory, shape, dtype) for shape in shapes]
        terms = torch.tensor([cls._terms(shape) for shape in shapes], dtype=torch.float64)
        sizes = torch.tensor([[each.states, each.step] for each in measured], dtype=torch.float64)
        scale = terms.max(dim=0).values
        solved = torch.linalg.lstsq(terms / scale, sizes, driver="gelsd").solution / scale[:, None]
        error = (terms @ solved[:, 0] - sizes[:, 0]).abs().max() / sizes[:, 0].max().clamp(min=1)
        if float(error) > _TOLERANCE:
            raise UnsupportedError(f"the states of {factory.kind.__name__} follow no formula of a matrix's sides")
        return cls(states=solved[:, 0].tolist(), step=solved[:, 1].tolist())

    @staticmethod
    def _terms(shape: tuple[int, ...]) -> list[float]:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        longer, shorter = max(rows, columns), min(rows, columns)
        terms = (rows * columns, longer, shorter, rows, longer**2, shorter**2, rows**2, 1)
        return [float(term) for term in terms]

    def at(self, shape: tuple[int, ...]) -> Measured:
        """Return what a matrix of a shape takes."""
        terms = self._terms(shape)
        states, step = (
            max(0.0, sum(coefficient * term for coefficient, term in zip(each, terms)))  # noqa: B905 - 3.9
            for each in (self.states, self.step)
        )
        return Measured(states=states, step=step)
