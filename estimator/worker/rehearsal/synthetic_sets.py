"""Lets a program rename, add, drop and choose in synthetic items what it knows of its own data.

Synthetic items have every column that the program names, also those that it makes itself; and there are fewer of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from torch.utils.data import BatchSampler

from .imports import after_import

_MARK = "synthetic items"
"""Description of such a set, which the sets made from it keep."""
_BATCHES = BatchSampler.__iter__


def watch_sets(items: int, emptied: Callable[[], None]) -> None:
    """Change Hugging Face's data sets from now on, in what they do with synthetic items.

    Args:
        items: how many a set has that is streamed, which does not know its length.
        emptied: called when a program filters all of them out.
    """

    def change_sets(module: ModuleType) -> None:
        _change(module.Dataset, items)
        module.Dataset.filter = _of_synthetic(module.Dataset.filter, functools.partial(_filter, emptied=emptied))

    after_import("datasets.arrow_dataset", change_sets)
    after_import("datasets.iterable_dataset", lambda module: _change(module.IterableDataset, items))


def mark(dataset: Any) -> Any:
    """Return a set, known from now on as one of synthetic items; batches are full from now on, of however few."""
    dataset.info.description = _MARK
    BatchSampler.__iter__ = _full_batches
    return dataset


def _full_batches(sampler: Any) -> Iterator[list[Any]]:
    for batch in _BATCHES(sampler):
        yield (batch * -(-sampler.batch_size // len(batch)))[: sampler.batch_size]


def _change(kind: Any, items: int) -> None:
    same = (_rename_column, _rename_columns, _add_column, _remove_columns, _map, _select)
    changes: dict[str, Any] = {make.__name__[1:]: make for make in same}
    changes |= {"train_test_split": _split, "skip": functools.partial(_skip, items=items)}
    for name, make in changes.items():
        if hasattr(kind, name):  # by its version
            setattr(kind, name, _of_synthetic(getattr(kind, name), make))


def _of_synthetic(plain: Any, change: Any) -> Any:
    @functools.wraps(plain)
    def run(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        if _MARK not in (dataset.info.description or ""):
            return plain(dataset, *args, **kwargs)
        kwargs.pop("num_proc", None)  # programs ask for dozens; here it is a few items that are alike
        return change(plain, dataset, *args, **kwargs)

    return run


def _renamed(dataset: Any, names: dict[str, str]) -> tuple[Any, dict[str, str]]:
    """Return a set without the columns that others are renamed to, and the renamings that are left."""
    there = dataset.column_names or []
    names = {old: new for old, new in names.items() if old in there or new not in there}
    own = [new for new in names.values() if new in there and new not in names]
    return (dataset.remove_columns(own) if own else dataset), names


def _rename_column(plain: Any, dataset: Any, original_column_name: str, new_column_name: str, *rest: Any) -> Any:
    dataset, left = _renamed(dataset, {original_column_name: new_column_name})
    return plain(dataset, original_column_name, new_column_name, *rest) if left else dataset


def _rename_columns(plain: Any, dataset: Any, column_mapping: dict[str, str], *rest: Any) -> Any:
    dataset, left = _renamed(dataset, column_mapping)
    return plain(dataset, left, *rest) if left else dataset


def _add_column(plain: Any, dataset: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return plain(dataset.remove_columns(_there(dataset, [name])), name, *args, **kwargs)


def _remove_columns(plain: Any, dataset: Any, column_names: Any, *rest: Any) -> Any:
    return plain(dataset, _there(dataset, column_names), *rest)


def _map(plain: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("remove_columns"):
        kwargs["remove_columns"] = _there(dataset, kwargs["remove_columns"])
    return plain(dataset, *args, **kwargs)


def _there(dataset: Any, names: Any) -> Any:
    names = [names] if isinstance(names, str) else [*names]
    columns = dataset.column_names
    return names if columns is None else [name for name in names if name in columns]


def _select(plain: Any, dataset: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    """Choose as many as the program does; all items are alike."""
    return plain(dataset, [int(index) % len(dataset) for index in indices], *args, **kwargs)


def _skip(plain: Any, dataset: Any, n: int, *, items: int) -> Any:
    return plain(dataset, n) if n < (len(dataset) if hasattr(dataset, "__len__") else items) else dataset


def _filter(plain: Any, dataset: Any, *args: Any, emptied: Callable[[], None], **kwargs: Any) -> Any:
    left = plain(dataset, *args, **kwargs)
    if len(dataset) and not len(left):
        emptied()
    return left


def _split(plain: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
    """Split no more off than half, where the program says how many."""
    most = max(1, len(dataset) // 2)
    args = tuple(min(each, most) if isinstance(each, int) else each for each in args)
    for name in ("test_size", "train_size"):
        if isinstance(kwargs.get(name), int):
            kwargs[name] = min(kwargs[name], most)
    return plain(dataset, *args, **kwargs)
