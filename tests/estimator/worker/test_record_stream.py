"""Blocks that another stream uses when they are released (``record_stream``), by torch's documented rules.

``c10/cuda/CUDACachingAllocator.cpp``: ``free`` takes a block off the allocated bytes; ``insert_events`` keeps it out
of its pool while ``event_count`` is not 0; ``process_events``, at the next ``malloc``, frees those whose events have
passed; ``release_cached_blocks`` waits for all events first.
"""

from mapped_blocks import mapped_blocks

from vramtop.estimator.worker.memory.allocator import CachingAllocator
from vramtop.estimator.worker.memory.allocator_blocks import RELEASED, RETURNED, USED_ELSEWHERE
from vramtop.estimator.worker.memory.allocator_settings import AllocatorSettings
from vramtop.estimator.worker.memory.history import AllocationHistory, Phase, StorageRecord
from vramtop.estimator.worker.memory.record_stream import MOST_LAUNCHES, StreamOrder
from vramtop.estimator.worker.memory.replay import pack_allocations, unpack_allocations
from vramtop.estimator.worker.memory.summary import allocator_events

MIB = 1 << 20
COMPUTE, GATHER, NCCL = range(3)


def test_a_block_in_use_on_another_stream_is_no_longer_allocated_but_not_free() -> None:
    allocator = CachingAllocator(AllocatorSettings())
    allocator.malloc("gathered", 30 * MIB, GATHER)
    allocator.free("gathered", USED_ELSEWHERE)
    assert (allocator.allocated, allocator.reserved) == (0, 30 * MIB)
    assert [block.used for block in mapped_blocks(allocator)] == [True]
    allocator.malloc("next", 30 * MIB, GATHER)
    assert allocator.reserved == 60 * MIB
    allocator.free("gathered", RETURNED)
    allocator.malloc("third", 30 * MIB, GATHER)
    assert (allocator.allocated, allocator.reserved) == (60 * MIB, 60 * MIB)


def test_a_block_returns_to_the_pool_of_its_own_stream() -> None:
    allocator = CachingAllocator(AllocatorSettings())
    allocator.malloc("gathered", 30 * MIB, GATHER)
    allocator.free("gathered", USED_ELSEWHERE)
    allocator.free("gathered", RETURNED)
    allocator.malloc("activation", 30 * MIB, COMPUTE)
    assert allocator.reserved == 60 * MIB


def test_a_full_device_waits_for_all_streams() -> None:
    allocator = CachingAllocator(AllocatorSettings(), 70 * MIB)
    allocator.malloc("gathered", 40 * MIB, GATHER)
    allocator.free("gathered", USED_ELSEWHERE)
    allocator.malloc("activation", 50 * MIB, COMPUTE)
    assert (allocator.allocated, allocator.reserved, allocator.retries) == (50 * MIB, 50 * MIB, 1)
    allocator.free("gathered", RETURNED)  # it is back already
    allocator.free("activation", RELEASED)
    assert allocator.allocated == sum(block.used for block in mapped_blocks(allocator)) == 0


def test_waiting_for_one_stream_tells_about_those_that_it_waited_for() -> None:
    order = StreamOrder()
    order.issue(NCCL)
    early = order.record(NCCL)
    order.wait(COMPUTE, early)
    order.issue(NCCL)
    late = order.record(NCCL)
    reached = order.record(COMPUTE)
    assert not order.has_passed(NCCL, early)
    order.synchronize(reached)
    assert order.has_passed(COMPUTE, reached)
    assert order.has_passed(NCCL, early)
    assert not order.has_passed(NCCL, late)


def test_an_event_on_a_stream_without_new_work_passes_at_once() -> None:
    """As ``cudaEventQuery`` says of a stream that has done all of its work."""
    order = StreamOrder()
    order.issue(NCCL)
    order.synchronize(order.record(NCCL))
    assert order.has_passed(NCCL, order.record(NCCL))
    order.wait(NCCL, order.record(COMPUTE))
    assert not order.has_passed(NCCL, order.record(NCCL))


def test_the_cpu_waits_for_a_stream_whose_queue_is_full() -> None:
    order = StreamOrder()
    order.issue(COMPUTE)
    used = order.record(COMPUTE)
    for _ in range(MOST_LAUNCHES - 1):
        order.issue(COMPUTE)
    assert not order.has_passed(COMPUTE, used)
    for _ in range(MOST_LAUNCHES):
        order.issue(GATHER)
    assert not order.has_passed(COMPUTE, used)
    order.issue(COMPUTE)
    assert order.has_passed(COMPUTE, used)


def stored(number: int, stream: int, used_on: tuple[int, ...] = ()) -> StorageRecord:
    return StorageRecord(
        number=number, size=MIB, nbytes=MIB, shape=(), dtype="uint8", module="", stream=stream, used_on=used_on
    )


def test_the_trace_says_when_a_block_returns() -> None:
    record = stored(0, GATHER, used_on=(COMPUTE,))
    other = stored(1, COMPUTE)
    history = AllocationHistory([record, other], [1, -1, 2, -2], [Phase(1, "forward", 0)], [(3, 0)])
    events = list(allocator_events(history))
    assert events == [
        (0, (0, MIB, GATHER)),
        (1, (0, None, USED_ELSEWHERE)),
        (2, (1, MIB, COMPUTE)),
        (3, (0, None, RETURNED)),
        (3, (1, None, RELEASED)),
    ]
    assert unpack_allocations(pack_allocations(events)) == events
