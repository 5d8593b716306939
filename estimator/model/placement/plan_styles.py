"""Styles of tensor-parallel plans: transformers' names, and the classes of torch and Automodel that they stand for."""

from collections.abc import Mapping
from typing import Final

WHOLE: Final = frozenset(
    {
        *("replicate", "replicated_with_grad_allreduce", "ep_router", "sequence_parallel", "all_reduce", "gather"),
        *("moe_identity_expert", "mla_kv_a_proj", "local", "local_params", "moe_tp_experts"),
    }
)
"""Styles that split no parameter of the module they name; the plan names experts' parameters by themselves."""
STYLES: Final = frozenset(
    {
        *("colwise", "colwise_rep", "colwise_gather_output", "packed_colwise", "embedding_colwise"),
        *("rowwise", "rowwise_rep", "rowwise_split_input", "packed_rowwise", "embedding_rowwise", "grouped_gemm"),
        *WHOLE,
    }
)
"""Every style of transformers' plans (``integrations/tensor_parallel.py``, 4.48 to 5.23)."""
_CLASSES: Mapping[str, str] = {
    "ColwiseParallel": "colwise",
    "RowwiseParallel": "rowwise",
    "SequenceParallel": "sequence_parallel",
    "VocabParallelEmbedding": "embedding_rowwise",
    "SequenceParallelAllGatherActivation": "sequence_parallel",
}
"""Styles for torch's classes, and for those that Automodel derives from them (components/distributed)."""


def style_of_class(name: str, *, whole_input: bool = False, whole_output: bool = False) -> str | None:
    """Return the style that stands for a class of parallel style; None: there is none.

    Args:
        name: of the class, without its module.
        whole_input: its input is whole on every rank (``input_layouts=Replicate()``).
        whole_output: its output is.
    """
    style = _CLASSES.get(name.rpartition(".")[2])
    if style == "colwise" and whole_output:
        return "colwise_rep"
    return "rowwise_rep" if style == "rowwise" and whole_input else style
