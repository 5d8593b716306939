"""A trace's allocations replayed on a GPU: its capacity, the allocator's settings, and the sentences about them."""

import pytest

from vramtop.estimator.common.allocator_variables import allocator_settings
from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.trace.allocator_report import ReservedMemory, allocator_warnings, capacity_on, replay_allocations
from vramtop.estimator.worker.memory.replay import pack_allocations, unpack_allocations

ALLOCATIONS = [
    (4, (0, 40 * MIB, 0)),
    (7, (0, None, 0)),
    (8, (1, 60 * MIB, 0)),
    (9, (2, 2 * MIB, 2)),
    (12, (1, None, 0)),
]
"""40 MiB are cached when 60 are asked for: on a GPU without a limit that is 40 + 60 + 20 reserved."""


def on(capacity_mib: int, conf: str | None = None, marks: tuple[int, ...] = ()) -> ReservedMemory:
    room = capacity_on(None, capacity_mib * MIB, 0)
    assert room is not None
    return replay_allocations(pack_allocations(ALLOCATIONS), marks, conf, room)


def test_packed_allocations_round_trip() -> None:
    assert unpack_allocations(pack_allocations(ALLOCATIONS)) == ALLOCATIONS
    for broken in ("", "no base64!", "aGVsbG8="):
        with pytest.raises(ValueError):  # noqa: PT011 - the libraries' own words
            unpack_allocations(broken)


def test_with_enough_memory_nothing_is_freed() -> None:
    held = on(200, marks=(3, 4, 7, 8, 9, 99))
    assert (held.peak, held.retries, held.out_of_memory) == (120 * MIB, 0, None)
    assert held.at == (0, 40 * MIB, 40 * MIB, 100 * MIB, 120 * MIB, 120 * MIB)


def test_on_a_gpu_that_is_nearly_too_small_the_cache_is_freed_with_a_warning() -> None:
    held = on(90)
    assert (held.peak, held.retries, held.out_of_memory) == (80 * MIB, 1, None)
    (sentence,) = allocator_warnings(held, 120 * MIB, capacity_on(None, 90 * MIB, 0))
    assert "free its cache once in two steps" in sentence
    assert "would have 0.1 GiB reserved" in sentence


def test_on_a_gpu_that_is_too_small_it_runs_out_of_memory() -> None:
    held = on(70, marks=(99,))
    assert held.at == (60 * MIB,)
    (sentence,) = allocator_warnings(held, 120 * MIB, capacity_on(find_gpu("l4"), 70 * MIB, 0))
    assert "L4" in sentence
    assert "out of memory: 2 MiB requested" in sentence


def test_settings_are_applied_and_unknown_ones_reported() -> None:
    held = on(200, "expandable_segments:True,backend:native,wonder:7")
    assert held.peak < 120 * MIB
    (warning,) = allocator_warnings(held, 0, None)
    assert warning == "Allocator option 'wonder' is not known and was ignored."


def test_the_older_variable_comes_first_even_when_it_is_empty() -> None:
    assert allocator_settings({"PYTORCH_ALLOC_CONF": "a", "PYTORCH_CUDA_ALLOC_CONF": ""}) == (
        "PYTORCH_CUDA_ALLOC_CONF",
        "",
    )
    assert allocator_settings({"PYTORCH_ALLOC_CONF": "a"}) == ("PYTORCH_ALLOC_CONF", "a")
    assert allocator_settings({"HOME": "/root"}) is None


def test_capacity_excludes_the_driver_and_memory_outside_of_torch() -> None:
    card = find_gpu("h100-80gb")
    assert card.reserved_bytes
    room = capacity_on(card, None, GIB)
    assert room.capacity_bytes == card.total_bytes - card.reserved_bytes - GIB
    assert capacity_on(None, None, GIB) is None
    other = capacity_on(card, 10 * GIB, GIB)
    assert other.capacity_bytes == 9 * GIB
