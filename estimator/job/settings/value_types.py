"""Types of values that several tables of a job share."""

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta

from ..rules import AUTO, FRAMEWORKS, OPTIMIZERS, PRECISIONS, STRATEGIES

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""No count of sequences, tokens or ranks reaches the maximum, and sums below it stay exact."""
Version = Annotated[str, Meta(pattern=r"^v?\d+(\.\d+)*", max_length=64)]
EnvironmentName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"]
Dtype = Literal["fp32", "bf16", "fp16"]
Quantization = Literal["none", "nf4", "nf4-double", "int8", "int4"]
FusedKernel = Literal["norm", "mlp", "rope", "cross-entropy"]

if TYPE_CHECKING:
    FrameworkName: TypeAlias = str
    OptimizerName: TypeAlias = str
    PrecisionName: TypeAlias = str
    StrategyName: TypeAlias = str
else:  # the tables' rows are the values that a job file may give
    FrameworkName = Literal[tuple(FRAMEWORKS)]
    OptimizerName = Annotated[
        str,
        Meta(
            pattern=rf"^({'|'.join((AUTO, *OPTIMIZERS))}|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)$",
            max_length=200,
            extra={"choices": (AUTO, *OPTIMIZERS)},
        ),
    ]
    _PRECISIONS = (AUTO, *PRECISIONS)
    PrecisionName = Literal[_PRECISIONS]
    StrategyName = Literal[tuple(STRATEGIES)]
