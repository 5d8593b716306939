"""The record of one optimizer: what its states and its step take, and its names in libraries."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from .states import Full, Options, ParameterTensor, Quantized, Shape

Part = Literal["all", "block-matrices", "targets"]
"""Parameters that an optimizer steps by itself; another one steps the rest."""


class Variant(Struct, frozen=True, kw_only=True):
    """A keyword argument by which a class becomes another row."""

    option: str
    row: str
    value: Any = None
    """The argument's value; None: any that counts as true."""


class Optimizer(Struct, frozen=True, kw_only=True, eq=False):
    """Memory and names of one optimizer."""

    name: str
    """Value of the job file's ``training.optimizer``."""
    description: str
    """Noun phrase for people: ``AdamW without foreach's copies (fused)``."""
    options: Options = field(default_factory=dict)
    """Values of the options on which memory depends, by name: the defaults, or a job's (``optimizer_options``)."""

    # --- states
    steps: bool = True
    """It updates parameters; False: gradients are computed and nothing else."""
    states: tuple[Full, ...] = ()
    """States of each trained parameter, or of those in ``part``."""
    part: Part = "all"
    """``targets``: linear layers that the option ``targets`` names."""
    rest: tuple[Full, ...] = ()
    """States of parameters outside of ``part``."""
    low: tuple[Full, ...] | None = None
    """The fewest states that it may have; None: ``states`` is right."""
    high: tuple[Full, ...] | None = None
    """The most states that it may have."""
    paged: bool = False
    """States are managed memory: NVML counts it to no process, and the driver moves it to the host."""
    on_host: bool = False
    """States live in host memory."""
    host_copies: int = 0
    """Copies of the parameters in host memory beside the states: of weights, of gradients."""

    # --- the step
    in_backward: bool = False
    """Each gradient is applied and freed as it appears, whatever ``training.optimizer_in_backward`` says."""
    step_copies: tuple[Full, ...] = ()
    """Copies of all that it steps which exist during the step, while the option ``foreach`` is on, if it has one."""
    step_parameters: float = 0
    """Tensors like the largest parameter that exist while it is updated, where the step does not copy everything."""
    step_tensors: float = 0
    """fp32 tensors as large as the largest parameter that exist while it is updated."""
    step_casts: float = 0
    """fp32 copies of the largest parameter that are added to ``step_tensors`` where weights have 16 bits."""
    steps_whole_matrices: bool = False
    """A sharded matrix is gathered to update it."""

    # --- libraries
    libraries: tuple[str, ...] = ()
    """Distributions that it needs, whatever the framework."""
    other_libraries: tuple[str, ...] = ()
    """Distributions that have it too, so that ``libraries`` may be absent."""
    trainer_libraries: tuple[str, ...] = ()
    """Distributions from which transformers' Trainer takes it; other frameworks do not."""
    class_names: tuple[str, ...] = ()
    """Its classes, with their libraries: ``torch.optim.AdamW``. The first library that has a class comes first."""
    trainer_names: tuple[str, ...] = ()
    """Values of ``TrainingArguments.optim`` that select it."""
    variants: tuple[Variant, ...] = ()
    """Keyword arguments of its classes that make it another row."""
    torch_class: str | None = None
    """``module:class`` with which the worker steps when it traces; None: it cannot be traced."""
    torch_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of ``torch_class``, besides ``options``."""

    # --- alternatives, by name
    same_result: str | None = None
    """Optimizer with the same result that takes less memory."""
    smaller_states: str | None = None
    """Optimizer with smaller states and nearly the same result."""
    unpaged: str | None = None
    """Optimizer with the same states on the GPU."""

    def with_options(self, given: Options | None) -> "Optimizer":
        """Return the row with a job's options; those that it has no use for change nothing."""
        used = {name: value for name, value in (given or {}).items() if name in self.options}
        return replace(self, options={**self.options, **used}) if used else self

    @property
    def elsewhere(self) -> bool:
        """NVML counts its states to no process of the GPU."""
        return self.paged or self.on_host

    @property
    def bitsandbytes_states(self) -> tuple[int, int] | None:
        """Number and bits of the states of bitsandbytes' class; None: it is none of these."""
        if self.libraries != ("bitsandbytes",):
            return None
        (state,) = self.states
        return round(state.count), 8 if isinstance(state, Quantized) else 32

    @property
    def fused(self) -> bool:
        """One kernel updates everything, and needs no other memory."""
        return bool(self.options.get("fused"))

    @property
    def copies(self) -> float | None:
        """Copies of all that it updates which exist during the step; None: it updates one parameter at a time."""
        if not self.step_copies or self.fused or not self.options.get("foreach", True):
            return None
        return sum(rule.bytes_of((1,), 1, self.options) for rule in self.step_copies)

    def state_bytes(
        self,
        tensor: ParameterTensor,
        width: float,
        *,
        shape: Shape | None = None,
        whole_embeddings: bool = False,
        bound: Literal["low", "expected", "high"] = "expected",
    ) -> float:
        """Return the bytes of state of one parameter.

        Args:
            tensor: the parameter.
            width: bytes per element of the dtype in which the optimizer holds it.
            shape: its shape when it is stepped, where flat buffers hide its own.
            whole_embeddings: the states of embeddings are not quantized.
            bound: the most or the least that it may take.
        """
        if not self.steps:
            return 0.0
        shape = tensor.shape if shape is None else shape
        rules = self._rules(tensor, bound)
        if whole_embeddings and tensor.role == "embedding":
            rules = tuple(_unquantized(rule) for rule in rules)
        return sum(rule.bytes_of(shape, width, self.options) for rule in rules)

    def _rules(self, tensor: ParameterTensor, bound: Literal["low", "expected", "high"]) -> tuple[Full, ...]:
        if bound == "low" and self.low is not None:
            return self.low
        if bound == "high" and self.high is not None:
            return self.high
        return self.states if self.covers(tensor) else self.rest

    def covers(self, tensor: ParameterTensor) -> bool:
        """Return True if a parameter is in the part that it steps by itself."""
        matrix = len(tensor.shape) > 1
        if self.part == "block-matrices":
            return matrix and tensor.layered
        if self.part == "targets":
            return matrix and tensor.linear and _is_target(tensor, self.options["targets"])
        return True


def _unquantized(rule: Full) -> Full:
    if not isinstance(rule, Quantized) or rule.small_width is None:
        return rule
    return Full(count=rule.count, width=rule.small_width, when=rule.when, per=rule.per)


def _is_target(tensor: ParameterTensor, targets: Any) -> bool:
    """Return True if a linear layer is a target: ``all-linear``, ``blocks``, or parts of names."""
    if targets == "all-linear":
        return True
    if targets == "blocks":
        return tensor.layered
    words = [targets] if isinstance(targets, str) else targets
    return any(word in tensor.name for word in words)
