"""Torch's out-of-memory messages: every wording of its allocators, with figures made up for the purpose."""

# ruff: noqa: E501 - lines of logs as they are written

import pytest

from vramtop.estimator.crash.records import OtherProcess
from vramtop.estimator.crash.torch_messages import parse_message

GIB, MIB = 2**30, 2**20


def near(size: float) -> object:
    return pytest.approx(size, abs=GIB // 150)


def test_torch_1_10() -> None:
    found = parse_message(
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 1; 23.70 GiB total capacity; 19.25 GiB "
        "already allocated; 812.50 MiB free; 21.10 GiB reserved in total by PyTorch) If reserved memory is >> allocated "
        "memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
        "PYTORCH_CUDA_ALLOC_CONF"
    )
    assert (found.backend, found.gpu, found.tried_bytes) == ("CUDA", 1, 1.5 * GIB)
    assert (found.total_bytes, found.free_bytes) == (near(23.7 * GIB), 812.5 * MIB)
    assert found.unallocated_bytes == near((21.10 - 19.25) * GIB)
    assert found.reserved_bytes == near(21.1 * GIB)
    assert found.process_bytes is None  # that wording does not say it
    assert found.beside_bytes is None


def test_before_1_4_what_is_cached_is_not_allocated() -> None:
    found = parse_message(
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.00 GiB total capacity; 9.00 GiB "
        "already allocated; 0 bytes free; 256.00 MiB cached)"
    )
    assert found.free_bytes == 0
    assert found.unallocated_bytes == 256 * MIB


def test_a_limit_set_by_the_program() -> None:
    found = parse_message(
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total capacity; 11.00 GiB already allocated; "
        "12.00 GiB free; 12.00 GiB allowed; 11.50 GiB reserved in total by PyTorch)"
    )
    assert (found.free_bytes, found.allowed_bytes) == (12 * GIB, 12 * GIB)


def test_torch_2_1_with_its_spelling() -> None:
    found = parse_message(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacty of "
        "23.65 GiB of which 1.75 GiB is free. Including non-PyTorch memory, this process has 20.75 GiB memory in use. "
        "Of the allocated memory 15.00 GiB is allocated by PyTorch, and 5.25 GiB is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation."
    )
    assert (found.gpu, found.process_bytes, found.unallocated_bytes) == (0, 20.75 * GIB, 5.25 * GIB)
    assert found.outside_bytes == 0.5 * GIB
    assert found.beside_bytes == near((23.65 - 1.75 - 20.75) * GIB)


def test_others_and_pools_of_graphs_wrapped_over_lines() -> None:
    found = parse_message(
        """torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 24.00 MiB.
        GPU 3 has a total capacity of 79.25 GiB of which 12.00 MiB is free. Process 611 has 8.00 GiB memory
        in use. Process 7 has 512.00 MiB memory in use. Including non-PyTorch memory, this process has 70.50 GiB
        memory in use. Of the allocated memory 68.00 GiB is allocated by PyTorch, with 1.25 GiB allocated in
        private pools (e.g., CUDA Graphs), and 1.50 GiB is reserved by PyTorch but unallocated."""
    )
    assert found.others == (OtherProcess(pid=611, used_bytes=8 * GIB), OtherProcess(pid=7, used_bytes=512 * MIB))
    assert (found.private_pool_bytes, found.outside_bytes) == (1.25 * GIB, GIB)


def test_in_a_container_the_process_is_listed_as_another_one() -> None:
    found = parse_message(
        "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 47.50 GiB of which 1.00 MiB "
        "is free. Process 3814 has 40.00 GiB memory in use. Process 99 has 7.00 GiB memory in use. Of the allocated "
        "memory 38.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    )
    assert found.process_bytes == 40 * GIB
    assert found.others == (OtherProcess(pid=99, used_bytes=7 * GIB),)


@pytest.mark.parametrize("figure", ["0 bytes", "17179869184.00 GiB"])
def test_what_the_driver_did_not_know_is_unknown(figure: str) -> None:
    found = parse_message(
        f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is "
        f"free. Including non-PyTorch memory, this process has {figure} memory in use. Of the allocated memory 20.00 "
        "GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    )
    assert found.process_bytes is None
    assert found.outside_bytes is None


def test_other_allocators() -> None:
    asynchronous = parse_message(
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 9.50 GiB\nRequested               : 640.00 MiB\nDevice limit            : 12.00 GiB\n"
        "Free (according to CUDA): 8.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB"
    )
    assert (asynchronous.allocated_bytes, asynchronous.tried_bytes) == (9.5 * GIB, 640 * MIB)
    assert asynchronous.unallocated_bytes is None
    npu = parse_message(
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 4; 60.00 GiB total capacity; 50.00 GiB already "
        "allocated; 50.00 GiB current active; 1.00 GiB free; 55.00 GiB reserved in total by PyTorch)"
    )
    assert (npu.backend, npu.gpu, npu.unallocated_bytes) == ("NPU", 4, 5 * GIB)
    hip = parse_message(
        "HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 64.00 GiB of which"
    )
    assert (hip.backend, hip.total_bytes, hip.free_bytes) == ("HIP", 64 * GIB, None)


def test_text_about_memory_is_no_message() -> None:
    assert parse_message("we ran out of memory, so I bought more") is None
    assert parse_message("CUDA error: out of memory") is None
