"""Optimizers: states per parameter, memory of the step, and names in libraries, one record per optimizer.

A new optimizer is one row of ``OPTIMIZERS``. Sources: torch.optim's documentation, bitsandbytes (``functional.py``,
``optim/optimizer.py``), transformers (``optimization.py``: Adafactor; ``training_args.py``: ``OptimizerNames``).
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

EIGHT_BIT_WIDTH = 1 + 4 / 256
"""Bytes per element of 8-bit optimizer state: one, and a 4-byte constant per block of 256 (bitsandbytes)."""


class Optimizer(Struct, frozen=True, kw_only=True, eq=False):
    """Memory and names of one optimizer."""

    name: str
    """Value of the job file's ``training.optimizer``."""
    description: str
    """Noun phrase for people: ``AdamW without foreach's copies (fused)``."""

    # --- states
    steps: bool = True
    """It updates parameters; False: gradients are computed and nothing else."""
    states: int = 0
    """States per trained element, each in the dtype of the parameter unless stated otherwise."""
    states_off_matrices: int | None = None
    """States per element outside of the blocks' matrices, where another optimizer steps those; None: ``states``."""
    eight_bit: bool = False
    """States take one byte per element and a 4-byte constant per block."""
    paged: bool = False
    """States are managed memory: NVML counts it to no process, and the driver moves it to the host."""
    factored: bool = False
    """The state is one row and one column per matrix in fp32 (Adafactor), not one value per element."""

    # --- the step
    foreach_copies: bool = False
    """The step copies all that it updates (torch's ``foreach``)."""
    step_tensors: int = 0
    """fp32 tensors as large as the largest parameter that exist while it is updated."""
    step_casts: int = 0
    """fp32 copies of the largest parameter that are added to ``step_tensors`` where weights have 16 bits."""
    steps_whole_matrices: bool = False
    """A sharded matrix is gathered to update it."""

    # --- libraries
    bitsandbytes: bool = False
    """It is one of bitsandbytes' optimizers."""
    trainer_bitsandbytes: bool = False
    """transformers' Trainer takes it from bitsandbytes, other frameworks do not."""
    class_names: tuple[str, ...] = ()
    """Names of its classes in torch, bitsandbytes or transformers, by which a script is read."""
    trainer_names: tuple[str, ...] = ()
    """Values of ``TrainingArguments.optim`` that select it."""
    torch_class: str | None = None
    """``module:class`` with which the worker steps when it traces; None: it cannot be traced."""
    torch_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of ``torch_class``."""

    # --- alternatives, by name
    same_result: str | None = None
    """Optimizer with the same result that takes less memory."""
    smaller_states: str | None = None
    """Optimizer with smaller states and nearly the same result."""
    unpaged: str | None = None
    """Optimizer with the same states on the GPU."""

    def states_of(self, *, block_matrix: bool) -> int:
        """States per element of a parameter.

        Args:
            block_matrix: the parameter is a matrix of a block, not a vector, an embedding or a head.
        """
        return self.states if block_matrix or self.states_off_matrices is None else self.states_off_matrices


_ROWS = (
    Optimizer(
        name="adamw",
        description="AdamW with foreach, which copies what it steps",
        states=2,
        foreach_copies=True,
        class_names=("AdamW", "Adam"),
        trainer_names=("adamw_torch", "adamw_hf", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw", "adam"),
        torch_class="torch.optim:AdamW",
        torch_options={"lr": 1e-5, "foreach": True},
        same_result="adamw-fused",
        smaller_states="adamw-8bit",
    ),
    Optimizer(
        name="adamw-fused",
        description="AdamW without foreach's copies (fused)",
        states=2,
        trainer_names=("adamw_torch_fused", "adamw_apex_fused"),
        torch_class="torch.optim:AdamW",
        torch_options={"lr": 1e-5, "fused": True},
        smaller_states="adamw-8bit",
    ),
    Optimizer(
        name="adamw-8bit",
        description="AdamW with states in 8 bits",
        states=2,
        eight_bit=True,
        bitsandbytes=True,
        class_names=("AdamW8bit", "Adam8bit"),
        trainer_names=("adamw_8bit", "adamw_bnb_8bit", "adamw_bnb", "adamw_torch_8bit"),
    ),
    Optimizer(
        name="paged-adamw-8bit",
        description="a paged AdamW",
        states=2,
        eight_bit=True,
        paged=True,
        bitsandbytes=True,
        class_names=("PagedAdamW8bit",),
        trainer_names=("paged_adamw_8bit",),
        unpaged="adamw-8bit",
    ),
    Optimizer(
        name="paged-adamw",
        description="a paged AdamW",
        states=2,
        paged=True,
        bitsandbytes=True,
        class_names=("PagedAdamW", "PagedAdamW32bit"),
        trainer_names=("paged_adamw_32bit", "paged_adamw"),
        unpaged="adamw-fused",
    ),
    Optimizer(
        name="adafactor",
        description="Adafactor",
        states=1,
        factored=True,
        step_tensors=2,  # the update, and its root mean squares
        step_casts=2,  # of weights and gradients
        class_names=("Adafactor",),
        trainer_names=("adafactor",),
        torch_class="transformers.optimization:Adafactor",
        torch_options={"lr": 1e-3, "scale_parameter": False, "relative_step": False},
    ),
    Optimizer(
        name="sgd",
        description="SGD without momentum",
        class_names=("SGD",),
        trainer_names=("sgd",),
        torch_class="torch.optim:SGD",
        torch_options={"lr": 1e-5, "momentum": 0, "foreach": True},
    ),
    Optimizer(
        name="sgd-momentum",
        description="SGD with momentum",
        states=1,
        torch_class="torch.optim:SGD",
        torch_options={"lr": 1e-5, "momentum": 0.9, "foreach": True},
    ),
    Optimizer(
        name="lion",
        description="Lion, or SGD with momentum",
        states=1,
        trainer_bitsandbytes=True,
        class_names=("Lion",),
        trainer_names=("lion_32bit", "lion"),
    ),
    Optimizer(
        name="muon",
        description="Muon",
        states=1,
        states_off_matrices=2,  # AdamW steps what is no matrix of a block
        step_tensors=2,
        steps_whole_matrices=True,
        class_names=("Muon",),
        trainer_names=("muon",),
    ),
    Optimizer(name="none", description="no optimizer", steps=False),
)
OPTIMIZERS = {row.name: row for row in _ROWS}
"""By the job file's ``training.optimizer``."""
