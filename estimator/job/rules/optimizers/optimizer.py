"""The record of one optimizer: what its states and its step take, and its names in libraries."""

from collections.abc import Mapping
from math import ceil, prod
from typing import Any, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

Shape = tuple[int, ...]
Options = Mapping[str, Any]
Side = Literal["longer", "shorter"]


class ParameterTensor(Protocol):
    """A parameter, as far as its optimizer states depend on it."""

    @property
    def name(self) -> str:
        """Name in ``named_parameters``."""

    @property
    def shape(self) -> Shape:
        """Shape of the whole tensor."""

    @property
    def role(self) -> str:
        """``embedding`` where it is looked up, not multiplied."""

    @property
    def linear(self) -> bool:
        """It is the weight of a linear layer."""

    @property
    def layered(self) -> bool:
        """It belongs to one of the repeated blocks."""


class Full(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True, tag_field="kind"):
    """States as large as the parameter; the base of all other kinds, which hold another number of elements."""

    count: float = 1
    width: float | None = None
    """Bytes per element; None: those of the parameter."""
    when: str | None = None
    """Option that has to be on; None: always."""
    per: str | None = None
    """Option by whose value ``count`` is multiplied."""
    under: int | None = None
    """They exist where the parameter has fewer bytes per element than this: fp32 copies of 16-bit parameters."""
    least: int | None = None
    """They exist where the parameter has at least so many bytes per element."""
    vectors: bool = True
    """Vectors have them too, not only matrices."""

    def bytes_of(self, shape: Shape, width: float, options: Options) -> float:
        """Return the bytes for a parameter of a shape."""
        if self.when and not options[self.when]:
            return 0.0
        if (self.under is not None and width >= self.under) or (self.least is not None and width < self.least):
            return 0.0
        if len(shape) < 2 and not self.vectors:
            return 0.0
        count = self.count * (options[self.per] if self.per else 1)
        return count * self._bytes(shape, width if self.width is None else self.width, options)

    def _bytes(self, shape: Shape, width: float, options: Options) -> float:
        return self._elements(shape, options) * width

    def _elements(self, shape: Shape, _options: Options) -> float:
        return prod(shape)


class Quantized(Full, frozen=True, kw_only=True):
    """States of few bits with a constant per block; small parameters keep them unquantized."""

    bits: int = 8
    block: int = 256
    constant: int = 4
    """Bytes of the constant of a block."""
    smallest: int = 4096
    """Parameters with fewer elements are not quantized."""
    small_width: float = 4
    """Bytes per element where they are not quantized."""
    own_width: bool = False
    """Parameters that are not quantized have states in the parameter's own type."""
    whole_blocks: bool = False
    """Parameters that are not a multiple of the block are not quantized either."""

    def _bytes(self, shape: Shape, width: float, options: Options) -> float:
        elements = self._elements(shape, options)
        if elements < self.smallest or (self.whole_blocks and elements % self.block):
            return elements * (width if self.own_width else self.small_width)
        return elements * self.bits / 8 + ceil(elements / self.block) * self.constant


class Factored(Full, frozen=True, kw_only=True):
    """A row and a column for each matrix of a parameter; full size for a vector."""

    low_rank: bool = False
    """It is that of a matrix whose shorter side is the option ``rank``."""

    def _elements(self, shape: Shape, options: Options) -> float:
        if self.low_rank and len(shape) > 1:
            shape = (prod(shape[:-1]), shape[-1])
            shape = (max(shape), min(options["rank"], *shape))
        return prod(shape) if len(shape) < 2 else prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]


class PerRow(Full, frozen=True, kw_only=True):
    """One value for each row of a matrix; full size for a vector."""

    def _elements(self, shape: Shape, _options: Options) -> float:
        return prod(shape) if len(shape) < 2 else shape[0]


class LowRank(Full, frozen=True, kw_only=True):
    """``rank`` values (an option) for each element of a side of the matrix."""

    side: Side = "longer"

    def _elements(self, shape: Shape, options: Options) -> float:
        return _low_rank(shape, self.side, options)


class QuantizedLowRank(Quantized, frozen=True, kw_only=True):
    """States of few bits for a matrix whose shorter side is the option ``rank``."""

    def _elements(self, shape: Shape, options: Options) -> float:
        return _low_rank(shape, "longer", options)


class Squares(Full, frozen=True, kw_only=True):
    """A square matrix for each side of a parameter, or for its shorter side; none for a vector."""

    limit: str | None = None
    """Option with the longest side that has one; None: all have."""
    shorter: bool = False
    """Only the shorter side has one."""
    of_vectors: bool = False
    """Vectors have one too."""

    def _elements(self, shape: Shape, options: Options) -> float:
        if len(shape) < 2 and not self.of_vectors:
            return 0
        sides = [min(shape)] if self.shorter else list(shape)
        limit = options[self.limit] if self.limit else None
        return sum(side * side for side in sides if limit is None or side <= limit)


def _low_rank(shape: Shape, side: Side, options: Options) -> int:
    if len(shape) < 2:
        return prod(shape)
    rows, columns = prod(shape[:-1]), shape[-1]
    rank = min(int(options["rank"]), rows, columns)
    return rank * {"longer": max(rows, columns), "shorter": min(rows, columns)}[side]


State = Full | Quantized | Factored | PerRow | LowRank | QuantizedLowRank | Squares
"""All kinds, by which a row of ``optimizers.toml`` names the class."""
Part = Literal["all", "block-matrices", "targets"]
"""Parameters that an optimizer steps by itself; another one steps the rest."""


class Variant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A keyword argument by which a class becomes another row."""

    option: str
    row: str
    value: Any = None
    """The argument's value; None: any that counts as true."""


class Optimizer(Struct, frozen=True, kw_only=True, eq=False, forbid_unknown_fields=True):
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
    states: tuple[State, ...] = ()
    """States of each trained parameter, or of those in ``part``."""
    part: Part = "all"
    """``targets``: linear layers that the option ``targets`` names."""
    rest: tuple[State, ...] = ()
    """States of parameters outside of ``part``."""
    low: tuple[State, ...] | None = None
    """The fewest states that it may have; None: ``states`` is right."""
    high: tuple[State, ...] | None = None
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
    step_copies: tuple[State, ...] = ()
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

    @property
    def torch_arguments(self) -> dict[str, Any]:
        """Keyword arguments with which ``torch_class`` is made: the options that are on, and its own."""
        return {**{name: value for name, value in self.options.items() if value}, **self.torch_options}

    def with_options(self, given: Options | None) -> "Optimizer":
        """Return the row with a job's options; those that it has no use for change nothing."""
        used = {name: value for name, value in (given or {}).items() if name in self.options}
        return replace(self, options={**self.options, **used}) if used else self

    @property
    def elsewhere(self) -> bool:
        """NVML counts its states to no process of the GPU."""
        return self.paged or self.on_host

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

    def _rules(self, tensor: ParameterTensor, bound: Literal["low", "expected", "high"]) -> tuple[State, ...]:
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
    if not isinstance(rule, Quantized) or rule.own_width:
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
