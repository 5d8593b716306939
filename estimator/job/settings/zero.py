"""DeepSpeed's ZeRO settings on which memory depends."""

from typing import Annotated

from msgspec import Meta, Struct

_Elements = Annotated[int, Meta(ge=0, le=2**53)]
"""DeepSpeed takes 0 as well, for a bucket that holds one parameter at a time."""


class Zero(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """DeepSpeed's ZeRO settings on which memory depends, by elements; what is absent has DeepSpeed's default."""

    reduce_bucket: _Elements | None = None
    """Gradients reduced at a time (``reduce_bucket_size``); absent: 5e8."""
    allgather_bucket: _Elements | None = None
    """Updated weights gathered at a time (``allgather_bucket_size``), stages 1 and 2; absent: 5e8."""
    overlap_comm: bool | None = None
    """A second bucket fills while the first is reduced (``overlap_comm``); absent: in stage 3 only."""
    contiguous_gradients: bool = True
    """Gradients are copied to a bucket as they are produced (``contiguous_gradients``)."""
    prefetch_bucket: _Elements | None = None
    """Weights gathered ahead of use, stage 3 (``stage3_prefetch_bucket_size``); absent: 5e7."""
    max_live_parameters: _Elements | None = None
    """Most weights gathered at once, stage 3 (``stage3_max_live_parameters``); absent: 1e9."""
    max_reuse_distance: _Elements | None = None
    """Weights needed again within that many stay gathered, stage 3 (``stage3_max_reuse_distance``); absent: 1e9."""
    persistence_threshold: _Elements | None = None
    """Smaller parameters are never sharded, stage 3 (``stage3_param_persistence_threshold``); absent: 1e5."""
    sub_group: _Elements | None = None
    """Elements stepped at a time, stage 3 (``sub_group_size``); absent: 1e9."""
