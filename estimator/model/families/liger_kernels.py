"""Families for which Liger-Kernel has fused kernels, and the parts of their blocks that these compute.

Read from Liger-Kernel 0.8.2 (``transformers/monkey_patch.py``, ``ops/``). Its norms save their input and the
reciprocal deviation in fp32, and write the input's gradient over the output's; its gated MLPs save both factors but
not the activation's output, and write the factors' gradients over them; its rotary embeddings work in place and
save nothing of their own. Unsloth's kernels save the same. Experts are not among the parts: their kernel (since
0.8) gathers and multiplies in another way, and they are counted as they are without it.
"""

from collections.abc import Mapping
from types import MappingProxyType

_ALL = frozenset(("norm", "mlp", "rope"))
LIGER_PATCHES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        **dict.fromkeys(("llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3", "granite", "phi3"), _ALL),
        **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4", "falcon_h1"), _ALL),
        **dict.fromkeys(("hunyuan_v1_dense", "mllama_text_model", "llama4_text"), _ALL),
        **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), _ALL),
        **dict.fromkeys(("glm4", "gemma4_text", "qwen3_5_text"), _ALL - {"rope"}),
        **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _ALL - {"rope"}),
        **dict.fromkeys(("mixtral", "qwen3_moe", "gpt_oss", "hunyuan_v1_moe", "qwen3_vl_text"), _ALL - {"mlp"}),
        "deepseek_v4": frozenset(("norm",)),
    }
)
"""By ``model_type``: what ``apply_liger_kernel_to_*`` patches by default."""
