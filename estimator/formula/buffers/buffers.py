"""The record of a rank's communication buffers inside torch's allocator, by moment of the step."""

from msgspec import Struct


class Buffers(Struct, frozen=True, kw_only=True):
    """Bytes of communication buffers inside torch's allocator, by moment of the step."""

    forward: int = 0
    """While blocks run forward."""
    head_forward: int = 0
    """While head and loss run forward."""
    loss_backward: int = 0
    """While the loss runs backward."""
    head_backward: int = 0
    """While the head runs backward."""
    after_head: int = 0
    """After the head has run backward."""
    first_block: int = 0
    """While the first block runs backward and the head's gradients are being reduced."""
    block: int = 0
    """While any other block runs backward."""
    block_end: int = 0
    """After a block has run backward."""
    embedding: int = 0
    """After everything has run backward."""
    step: int = 0
    """Kept between steps."""

    pending_blocks: int = 0
    """Blocks that have run backward and wait for the reduction of their gradients."""
    pending_bytes: int = 0
    """Gradients of each of ``pending_blocks``."""
    ahead_blocks: int = 0
    """Blocks that are gathered ahead of the one that runs, as long as there are so many; part of the figures above."""
    ahead_bytes: int = 0
    """Weights of each of ``ahead_blocks``."""
    unreduced: int = 0
    """A block's gradients before they are reduced; 0: they are those of the step."""
    kept: int = 0
    """Blocks that stay gathered until they have run backward, all of them; part of the figures above."""
    pool: int = 0
    """Blocks of the gathering stream, which serve no other stream."""
    largest_reduction: int = 0
    """The largest input of a reduce-scatter, which is one block of the allocator."""
