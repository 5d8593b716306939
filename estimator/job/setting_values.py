"""Types of the values that a job's settings may have: tasks, counts, dtypes, and the names of the tables' rows."""

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta

from .rules.frameworks import FRAMEWORKS
from .rules.library_defaults import AUTO
from .rules.optimizers.table import OPTIMIZERS
from .rules.strategies import PRECISIONS, STRATEGIES

Task = Literal[
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "feature-extraction",
    "multiple-choice",
    "next-sentence-prediction",
    "pretraining",
    "text-encoding",
    "table-question-answering",
    "image-text-to-text",
    "multimodal-lm",
    "visual-question-answering",
    "document-question-answering",
    "image-classification",
    "zero-shot-image-classification",
    "masked-image-modeling",
    "image-segmentation",
    "semantic-segmentation",
    "instance-segmentation",
    "universal-segmentation",
    "object-detection",
    "zero-shot-object-detection",
    "depth-estimation",
    "normal-estimation",
    "pointmap-estimation",
    "pose-estimation",
    "keypoint-detection",
    "keypoint-matching",
    "mask-generation",
    "image-matting",
    "image-to-image",
    "video-classification",
    "text-recognition",
    "table-recognition",
    "speech-seq2seq",
    "ctc",
    "rnnt",
    "tdt",
    "audio-classification",
    "audio-frame-classification",
    "audio-xvector",
    "audio-tokenization",
    "text-to-spectrogram",
    "text-to-waveform",
    "time-series-prediction",
    "decision",
    "backbone",
]
"""The heads of transformers' auto classes: ``causal-lm`` is ``AutoModelForCausalLM``."""
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
