"""Sequences derived by hand from the rules of c10/cuda/CUDACachingAllocator.cpp; sizes in MiB unless stated in B."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from mapped_blocks import mapped_blocks

from vramtop.estimator.worker.memory import allocator as allocator_module
from vramtop.estimator.worker.memory.allocator import CachingAllocator, OutOfMemoryError
from vramtop.estimator.worker.memory.allocator_settings import AllocatorSettings

MIB = 1 << 20


def fresh(conf=None, capacity=None):
    return CachingAllocator(AllocatorSettings.from_conf(conf), None if capacity is None else capacity * MIB)


def layout(allocator):
    """Return (offset from the lowest address, size, in use) of every block, in MiB."""
    blocks = list(mapped_blocks(allocator))
    return [((b.address - blocks[0].address) / MIB, b.size / MIB, b.used) for b in blocks]


EXPANDABLE = "expandable_segments:True"


def run(allocator, script):
    """Run a script: ``a3`` allocates 3 MiB as a, ``a3:1`` on stream 1, ``a10-512`` 512 B less, ``a3?`` does not fit.

    ``-a`` frees a, and ``!`` empties the cache.
    """
    for word in script.split():
        if word == "!":
            allocator.empty_cache()
        elif word.startswith("-"):
            allocator.free(word[1:])
        elif word.endswith("?"):
            with pytest.raises(OutOfMemoryError):
                run(allocator, word[:-1])
        else:
            key, size, stream = re.fullmatch(r"([a-z]+)([^:]+):?(\d*)", word).groups()
            whole, sign, rest = re.fullmatch(r"([\d.]+)([+-]?)(\d*)", size).groups()
            extra = int(f"{sign}{rest or 0}")
            allocator.malloc(key, round(float(whole) * MIB) + extra, int(stream or 0))


@pytest.mark.parametrize(
    ("conf", "limits", "script", "reserved", "retries"),
    [
        # small requests share segments of 2, those below 10 segments of 20, others have their own in steps of 2
        (None, (), "a0+1 b0+512 c0+513", 2, 0),
        (None, (), "a1 b0.5 c0.5", 2, 0),
        (None, (), "a1 b0.5 c0.5 d0+1", 4, 0),
        (None, (), "a1 b1+1", 22, 0),
        (None, (), "a3 b3 c3 d3 e3 f3", 20, 0),
        (None, (), "a3 b3 c3 d3 e3 f3 g3 h2", 40, 0),
        (None, (), "a10-512", 20, 0),
        (None, (), "a10", 10, 0),
        (None, (), "a10+1", 12, 0),
        (None, (), "a1001", 1002, 0),
        # free blocks: neighbours merge within a segment, pools are a stream's and a size's own
        (None, (), "a5 b5 c5 -a -c -b d20", 20, 0),
        (None, (), "a20 b20 -a -b c40", 80, 0),
        (None, (), "a3 -a b3:1 c3", 40, 0),
        (None, (), "a20 -a b1", 22, 0),
        (None, (), "a30 b3 c3 d0+1 -a -c -d", 52, 0),
        (None, (), "a30 b3 c3 d0+1 -a -c -d !", 20, 0),
        # as in a training step: freed activations have segments of their own, into which larger states do not fit
        (None, (), "a35 b35 c35 d35 -a -b -c -d e52.5 f52.5 g52.5", 4 * 36 + 3 * 54, 0),
        (EXPANDABLE, (), "a35 b35 c35 d35 -a -b -c -d e52.5 f52.5 g52.5", 160, 0),
        # at the limit whole free segments are released, and the request is tried again
        (None, (64,), "a20 b20 c3 -a -b d40", 60, 1),
        (None, (40,), "a20 b20", 40, 0),
        # expandable segments grow by 20 and 2, and give whole granules back
        (EXPANDABLE, (), "a3 b30", 40, 0),
        (EXPANDABLE, (), "a3 b30 c0+1 d3:1", 62, 0),
        (EXPANDABLE, (), "a20-512 b20+512", 40, 0),
        (EXPANDABLE, (), "a3 b30 c25 -b !", 60, 0),
        (EXPANDABLE, (), "a3 b30 c25 -b ! -c !", 20, 0),
        (EXPANDABLE, (), "a3 b30 c25 -b ! -c ! d18 -a -d !", 0, 0),
        (EXPANDABLE, (64,), "a21 b21:1?", 40, 1),
        (EXPANDABLE, (64,), "a21 b21:1? c20:1", 60, 1),
        (EXPANDABLE, (50,), "a3 b20 c20? o0+1:1 -b c20:1", 42, 2),
        # blocks from max_split_size on are not split, nor given to smaller requests, and are released first
        ("max_split_size_mb:40", (), "a100 -a b30 c80", 210, 0),
        ("max_split_size_mb:40", (), "a100 -a b30 c80 d81", 210, 0),
        ("max_split_size_mb:40", (), "a40 -a b30", 70, 0),
        (f"{EXPANDABLE},max_split_size_mb:40", (80,), "a60 b20 -a c30", 60, 1),
        ("max_split_size_mb:40", (162,), "a100 k12 -a -k b60", 72, 0),
        ("max_split_size_mb:40", (140,), "a40 b44 c50 -a -b -c d80", 120, 0),
        # torch's test_cuda.py, test_max_split_expandable: of 120 three of 40 fit, then one of 120
        ("max_split_size_mb:40", (120,), "a40 b40 c40 d40? -a -b -c e120", 120, 1),
        (f"{EXPANDABLE},max_split_size_mb:40", (120,), "a40 b40 c40 d40? -a -b -c e120", 120, 1),
        (None, (), f"a{1 << 30}", 1 << 30, 0),
    ],
)
def test_reserved_memory_after_a_sequence(conf, limits, script, reserved, retries):
    allocator = fresh(conf, *limits)
    run(allocator, script)
    assert (allocator.reserved, allocator.retries) == (reserved * MIB, retries)


@pytest.mark.parametrize(
    ("conf", "script", "allocated"),
    [
        (None, "a0+1 b0+512 c0+513", 2048),
        # a remainder of 1 MiB or less stays with a large block; a small one is split down to 512 B
        (None, "a19+1", 20 * MIB),
        (None, "a19", 20 * MIB),
        (None, "a19-512", 19 * MIB - 512),
        (None, "a10+1", 10 * MIB + 512),
        (None, "a23", 24 * MIB),
        (None, "a1 b1-512", 2 * MIB - 512),
        (EXPANDABLE, "a20-512", 20 * MIB - 512),
        ("max_split_size_mb:40", "a100 -a b81", 100 * MIB),
    ],
)
def test_allocated_memory_after_a_sequence(conf, script, allocated):
    allocator = fresh(conf)
    run(allocator, script)
    assert allocator.allocated == allocated


@pytest.mark.parametrize(
    ("conf", "script", "blocks"),
    [
        # the smallest block that is large enough, then the lowest address; a remainder above 1 is split off
        (None, "a4 b2 c6 d2 e6 -a -c -e x3", [(0, 4), (4, 2), (12, 2)]),
        (None, "a4 b2 c6 d2 e6 -a -c -e x3 y4 z6 w2", [(0, 4), (4, 2), (6, 4), (10, 2), (12, 2), (14, 6)]),
        (EXPANDABLE, "a3 b30", [(0, 3), (3, 30)]),
        (EXPANDABLE, "a3 b30 c25 -b ! -c ! d18", [(0, 3), (3, 18)]),
        # a hole is filled first, and a block that can grow is taken last
        (EXPANDABLE, "a20 b20 c20 -b ! d21 e20", [(0, 20), (20, 20), (40, 20), (60, 21)]),
        (EXPANDABLE, "a5 b6 c5 -a d3", [(0, 3), (5, 6), (11, 5)]),
        (f"{EXPANDABLE},max_split_size_mb:40", "a60 b20 -a c30", [(0, 30), (60, 20)]),
    ],
)
def test_places_of_blocks(conf, script, blocks):
    allocator = fresh(conf, 80 if conf and "split" in conf else None)
    run(allocator, script)
    assert [(at, size) for at, size, used in layout(allocator) if used] == blocks


def test_keys_sizes_of_zero_and_peaks():
    allocator = fresh()
    run(allocator, "a0")
    assert (allocator.allocated, allocator.reserved, list(mapped_blocks(allocator))) == (0, 0, [])
    with pytest.raises(ValueError, match="twice"):
        run(allocator, "a1")
    run(allocator, "-a b30 c12 -b !")
    assert (allocator.peak_allocated, allocator.peak_reserved) == (42 * MIB, 42 * MIB)
    assert [(block.size, block.used) for block in mapped_blocks(allocator)] == [(12 * MIB, True)]
    with pytest.raises(KeyError):
        run(allocator, "-a")


def test_out_of_memory_reports_the_request_and_changes_nothing():
    allocator = fresh(capacity=64)
    allocator.malloc("a", 40 * MIB)
    allocator.malloc("b", 3 * MIB)  # 40 + 20 = 60; 17 of them free, but split
    told = "18 MiB requested, 4 free, 60 reserved of which 43 allocated"
    with pytest.raises(OutOfMemoryError, match=told):
        allocator.malloc("c", 18 * MIB + 1)
    assert (allocator.allocated, allocator.reserved, allocator.retries) == (43 * MIB, 60 * MIB, 1)
    allocator.malloc("c", 17 * MIB)
    assert (allocator.allocated, allocator.reserved) == (60 * MIB, 60 * MIB)


def test_modules_run_in_a_worker_program_without_vramtop():
    folder = Path(allocator_module.__file__).parent
    program = (
        f"import sys; sys.path.insert(0, {str(folder.parent)!r})\n"
        f"from {folder.name}.replay import replay_reserved\n"
        "found = replay_reserved([(0, ('a', 3 << 20, 0)), (1, ('a', None, 0))], [])\n"
        "print(found['peak'], any(name.startswith(('torch', 'vramtop')) for name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(20 * MIB), "False"]


class SimpleAllocator:
    """The default rules in their simplest form: segments as lists, searched from end to end."""

    def __init__(self):
        self.segments = []  # [stream, small, [[size, key or None], ...]], in the order they were taken

    def malloc(self, key, size, stream):
        size = -(-size // 512) * 512
        small = size <= MIB
        fits = [
            (block[0], number, at)
            for number, (its_stream, its_small, blocks) in enumerate(self.segments)
            for at, block in enumerate(blocks)
            if its_stream == stream and its_small == small and block[1] is None and block[0] >= size
        ]
        if fits:
            _, number, at = min(fits)
        else:
            segment = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.segments.append([stream, small, [[segment, None]]])
            number, at = len(self.segments) - 1, 0
        blocks = self.segments[number][2]
        rest = blocks[at][0] - size
        if rest >= 512 if small else rest > MIB:
            blocks[at : at + 1] = [[size, key], [rest, None]]
        else:
            blocks[at][1] = key

    def free(self, key):
        for _, _, blocks in self.segments:
            for at, block in enumerate(blocks):
                if block[1] == key:
                    block[1] = None
                    while at + 1 < len(blocks) and blocks[at + 1][1] is None:
                        blocks[at][0] += blocks.pop(at + 1)[0]
                    if at and blocks[at - 1][1] is None:
                        blocks[at - 1][0] += blocks.pop(at)[0]
                    return

    def empty_cache(self):
        self.segments = [s for s in self.segments if any(key is not None for _, key in s[2])]

    def blocks(self):
        return [(size, key is not None) for _, _, blocks in self.segments for size, key in blocks]


SIZES = st.one_of(
    st.integers(0, 4096),
    st.integers(0, 3 * MIB),
    st.integers(0, 60).map(lambda size: size * MIB),
    st.integers(0, 60 * MIB),
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=60,
)
CONFS = [None, EXPANDABLE, "max_split_size_mb:20", "expandable_segments:True,max_split_size_mb:24"]


def act(allocator, actions, after_each=lambda: None):
    live = []
    for number, (action, size, stream) in enumerate(actions):
        if action == "malloc":
            try:
                allocator.malloc(number, size, stream)
            except OutOfMemoryError:
                pass
            else:
                live.append(number)
        elif action == "empty":
            allocator.empty_cache()
        elif live:
            allocator.free(live.pop(size % len(live)))
        after_each()
    return live


@settings(max_examples=150)
@given(ACTIONS, st.sampled_from(CONFS), st.sampled_from([None, 64, 200]))
def test_totals_equal_the_sums_over_blocks_after_any_actions(actions, conf, capacity):
    allocator = fresh(conf, capacity)

    def check():
        blocks = list(mapped_blocks(allocator))
        assert sum(block.size for block in blocks) == allocator.reserved
        assert sum(block.size for block in blocks if block.used) == allocator.allocated <= allocator.reserved
        assert all(a.address + a.size <= b.address for a, b in itertools.pairwise(blocks))
        assert all(block.size > 0 and block.size % 512 == 0 for block in blocks)
        assert allocator.peak_allocated >= allocator.allocated
        assert allocator.peak_reserved >= allocator.reserved
        if capacity is not None:
            assert allocator.reserved <= capacity * MIB

    live = act(allocator, actions, check)
    for key in live:
        allocator.free(key)
    check()
    assert allocator.allocated == sum(block.used for block in mapped_blocks(allocator)) == 0
    allocator.empty_cache()
    assert allocator.reserved == 0


@settings(max_examples=200)
@given(ACTIONS)
def test_agrees_with_the_simple_allocator(actions):
    allocator, plain = fresh(), SimpleAllocator()
    live = []
    for number, (action, size, stream) in enumerate(actions):
        if action == "malloc" and size:
            allocator.malloc(number, size, stream)
            plain.malloc(number, size, stream)
            live.append(number)
        elif action == "empty":
            allocator.empty_cache()
            plain.empty_cache()
        elif live:
            key = live.pop(size % len(live))
            allocator.free(key)
            plain.free(key)
        assert [(block.size, block.used) for block in mapped_blocks(allocator)] == plain.blocks()
