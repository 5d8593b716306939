"""Bytes that the logits and the loss of one micro-batch take, at the moments that matter."""

from msgspec import Struct


class LossBytes(Struct, frozen=True, kw_only=True):
    """Bytes for one micro-batch on the last stage; zeros on the others."""

    forward_bytes: int
    """Peak while the loss is computed, including tensors saved for the backward pass."""
    backward_bytes: int
    """Peak while the loss runs backward, including those tensors."""
    gradient_bytes: int = 0
    """The logits' gradient in the compute type, with which the head runs backward."""
    upcast_bytes: int = 0
    """After the forward pass, while accelerate casts its outputs to fp32, if that is more."""
    cloned_bytes: int = 0
    """After the forward pass, while DistributedDataParallel copies the outputs (``_DDPSink`` of
    ``torch/nn/parallel/distributed.py`` where ``find_unused_parameters`` is set, the Trainer's default)."""
    gathering_bytes: int = 0
    """While tensor parallelism gathers the logits: a rank's own, those of all ranks in turn, and these side by side."""
    eager_extra_bytes: int = 0
    """Additional reserved bytes if the loss is left out of what is compiled (torchtitan's ``compile.components``)."""
    retained_bytes: int = 0
    """Held by the script's variables while the blocks run backward."""
    retained_in_step_bytes: int = 0
    """Part of these bytes that is held while the optimizer steps."""
    retained_before_bytes: int = 0
    """Held by them from the previous micro-batch while the blocks run forward."""

    @property
    def most_forward_bytes(self) -> int:
        """Peak of head and loss in the forward pass."""
        return max(self.forward_bytes, self.gathering_bytes)
