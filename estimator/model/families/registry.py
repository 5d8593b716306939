"""The registry of model families by ``model_type``.

A family is added by one row in ``DECODERS``, ``MIXTURES`` or ``ENCODERS``; a block that no other family has needs its
own body function, like ``llama_body``.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ...common.records import replace
from ..architecture import BlockRules
from .decoders import DECODERS, FOUR_NORMS, LLAMA_LIKE, PLAIN_MODELS
from .encoders import ENCODERS
from .family import DECODER_TASKS, Family
from .mixtures import MIXTURES, WITH_EXPERT_NAMES

FAMILIES: dict[str, Family] = {**DECODERS, **MIXTURES, **ENCODERS, **PLAIN_MODELS}
"""The families whose parameters are counted exactly; of two marker fields in a config the later family's counts."""
GENERIC = LLAMA_LIKE
"""The record of an unknown ``model_type``: a decoder like Llama's."""
_UNGATED = replace(PLAIN_MODELS["plain-gpt-rotary"], tasks=DECODER_TASKS)
"""The record of decoders whose MLPs have no gate."""
_SEPARATE = replace(
    DECODERS["phi"],
    block_norms=("ln_1", "ln_2"),
    parallel_residual="never",
    activation="gelu",
    mlp_ratio=4,
    tied=True,
    rules=BlockRules(),
)
"""The record of those among them whose queries, keys and values are linear layers of their own."""
_RELATIVES: Mapping[str, Family] = MappingProxyType(
    {
        "qwen": replace(GENERIC, window_off_by_default=True),
        **dict.fromkeys(("gemma", "olmo2", "gpt_oss"), replace(GENERIC, rules=BlockRules(fp32_norm_scale=True))),
        **dict.fromkeys(("xlm-roberta", "camembert"), ENCODERS["roberta"]),
        **dict.fromkeys(("electra", "esm"), ENCODERS["bert"]),
        "glm4_moe": GENERIC,
        "glm4": replace(GENERIC, block_norms=FOUR_NORMS),
        **dict.fromkeys(("bloom", "mpt"), _UNGATED),
        **dict.fromkeys(("biogpt", "opt", "starcoder2"), _SEPARATE),
        "falcon": replace(_UNGATED, multi_query=True),
        "gpt_bigcode": replace(_UNGATED, dropout=0.1, multi_query=True),
        "codegen": replace(_UNGATED, activation="gelu_new"),
        "gpt_neo": replace(_SEPARATE, activation="gelu_new"),
        "gptj": replace(DECODERS["phi"], mlp_ratio=4),
    }
)
"""Rules of unknown families by the beginning of their name: those of a known family that they resemble."""


def family_of(model_type: str | None) -> Family:
    """Return the record of a family; an unknown one is read as a decoder like Llama's."""
    name = model_type or ""
    family = FAMILIES.get(name) or WITH_EXPERT_NAMES.get(name)
    return family or next((rules for start, rules in _RELATIVES.items() if name.startswith(start)), GENERIC)
