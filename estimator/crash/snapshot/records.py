"""A memory snapshot as plain records: what the allocator of one GPU held, by component and place."""

from dataclasses import dataclass
from typing import TypedDict, cast

from ...budget import PhaseName, Timeline
from ..records import StackFrame
from .stacks import ModelPart, ModulePlace, StackComponent


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """Tensors that were allocated at one place for one purpose."""

    component: StackComponent
    place: StackFrame | None
    """None: its stack was not recorded, or has no line outside torch."""
    module: ModulePlace | None
    """None: it was not allocated in a module, or its source is not on this machine."""
    bytes: int
    blocks: int
    largest_bytes: int

    def to_json(self) -> "BlockGroupJson":
        """Return the group for ``--json``."""
        return {
            "component": self.component,
            "place": str(self.place) if self.place else None,
            "module": self.module.path if self.module else None,
            "module_class": self.module.class_name if self.module else None,
            "part": self.module.part if self.module else None,
            "bytes": self.bytes,
            "blocks": self.blocks,
            "largest_bytes": self.largest_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """The allocation that failed, as the history has it."""

    tried_bytes: int
    free_bytes: int | None
    """Free on the GPU as CUDA counted it then."""
    component: StackComponent
    phase: PhaseName | None
    place: StackFrame | None

    def to_json(self) -> "FailedAllocationJson":
        """Return it for ``--json``."""
        return {
            "tried_bytes": self.tried_bytes,
            "free_bytes": self.free_bytes,
            "component": self.component,
            "phase": self.phase,
            "place": str(self.place) if self.place else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """Memory of torch's allocator on one GPU."""

    device: int
    devices: tuple[int, ...]
    """All GPUs in the file, on which the process has allocated."""
    reserved_bytes: int
    allocated_bytes: int
    """Bytes of blocks that tensors hold."""
    waiting_bytes: int
    """Bytes of blocks that are freed once another stream has finished with them."""
    free_blocks: int
    largest_free_bytes: int
    """The largest of them: an allocation must fit into one."""
    private_free_bytes: int
    """Unused in pools of CUDA graphs or of the program's own, which other allocations may not use."""
    segments: int
    expandable_segments: bool
    """The allocator maps memory into expandable segments."""
    groups: tuple[BlockGroup, ...]
    """The largest first."""
    components: dict[StackComponent, int]
    """Bytes of the tensors by component."""
    parts: dict[StackComponent, dict[ModelPart, int]]
    """Bytes by component and part of the model, as far as the source of its modules is on this machine."""
    failed: FailedAllocation | None
    """The last allocation that failed; None: none did, or no history was recorded."""
    timeline: Timeline | None
    """Memory over the last recorded step, without what lies outside torch; None: no history was recorded."""
    has_stacks: bool
    total_bytes: int | None = None
    """Capacity of the GPU, if vramtop wrote the snapshot."""
    allowed_bytes: int | None = None
    """Limit that the program has set with ``set_per_process_memory_fraction``, as far as it is known."""

    @property
    def unallocated_bytes(self) -> int:
        """Reserved, but held by no tensor."""
        return self.reserved_bytes - self.allocated_bytes - self.waiting_bytes

    def to_json(self) -> "MemorySnapshotJson":
        """Return the snapshot for ``--json``."""
        given = {name: getattr(self, name) for name in MemorySnapshotJson.__annotations__}
        groups, failed = [each.to_json() for each in self.groups], self.failed.to_json() if self.failed else None
        return cast("MemorySnapshotJson", {**given, "devices": [*self.devices], "groups": groups, "failed": failed})


class BlockGroupJson(TypedDict):
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


class FailedAllocationJson(TypedDict):
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


class MemorySnapshotJson(TypedDict):
    """Memory of torch's allocator on one GPU."""

    device: int
    """GPU, by its number in the process."""
    devices: list[int]
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
    total_bytes: int | None
    """Memory of the GPU; null: unknown, unless vramtop wrote the snapshot."""
    allowed_bytes: int | None
    """Limit that the program has set with `set_per_process_memory_fraction`; null: none, or unknown."""
    components: dict[StackComponent, int]
    """Bytes of the tensors by component."""
    parts: dict[StackComponent, dict[ModelPart, int]]
    """Bytes of the tensors by component and part of the model, as far as the source of its modules is on this
    machine."""
    groups: list[BlockGroupJson]
    """Tensors by the place that allocated them, the largest first."""
    failed: FailedAllocationJson | None
    """The last allocation that failed; null: none did, or no history was recorded."""
    has_stacks: bool
    """The snapshot has the stacks of its allocations."""
