"""A memory snapshot as plain records: what the allocator of one GPU held, by component and place."""

import msgspec

from ...budget import PhaseName
from .stacks import ModelPart, StackComponent


class BlockGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that were allocated at one place for one purpose."""

    component: StackComponent
    """Component that they are counted as."""
    place: str | None
    """Line that allocated them: `file:line function`; null: its stack was not recorded, or is torch's own."""
    module: str | None
    """Path of the module in the model; null: allocated in none, or its source is not on this machine."""
    module_class: str | None
    """Class of that module; null: likewise."""
    part: ModelPart | None
    """Part of the model that the module belongs to; null: unknown."""
    bytes: int
    """Sum of their sizes in bytes."""
    blocks: int
    """Number of blocks of the allocator."""
    largest_bytes: int
    """Size of the largest of them."""


class FailedAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The last allocation that failed."""

    tried_bytes: int
    """Size of the allocation."""
    free_bytes: int | None
    """Free on the GPU then, as CUDA counted it; null: unknown."""
    component: StackComponent
    """Component that it would have been counted as."""
    phase: PhaseName | None
    """Part of the step; null: unknown."""
    place: str | None
    """Line that asked for it: `file:line function`; null: unknown."""


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of torch's allocator on one GPU."""

    device: int
    """GPU, by its number in the process."""
    devices: tuple[int, ...]
    """All GPUs in the file, on which the process has allocated."""
    reserved_bytes: int
    """Held by the allocator."""
    allocated_bytes: int
    """Held by tensors."""
    unallocated_bytes: int
    """Reserved, but held by no tensor."""
    waiting_bytes: int
    """Bytes of blocks that are freed once another stream has finished with them."""
    free_blocks: int
    """Number of blocks that no tensor holds."""
    largest_free_bytes: int
    """Size of the largest of them: an allocation must fit into one."""
    private_free_bytes: int
    """Unused in pools of CUDA graphs or of the program's own, which other allocations may not use."""
    segments: int
    """Number of segments that the allocator has from CUDA."""
    expandable_segments: bool
    """The allocator maps memory into expandable segments."""
    total_bytes: int | None = None
    """Memory of the GPU; null: unknown, unless vramtop wrote the snapshot."""
    allowed_bytes: int | None = None
    """Limit that the program has set with `set_per_process_memory_fraction`; null: none, or unknown."""
    components: dict[StackComponent, int]
    """Bytes of the tensors by component."""
    parts: dict[StackComponent, dict[ModelPart, int]]
    """Bytes of the tensors by component and part of the model, as far as the source of its modules is on this
    machine."""
    groups: tuple[BlockGroup, ...]
    """Tensors by the place that allocated them, the largest first."""
    failed: FailedAllocation | None
    """The last allocation that failed; null: none did, or no history was recorded."""
    has_stacks: bool
    """The snapshot has the stacks of its allocations."""
    has_history: bool
    """It has a history of allocations."""
