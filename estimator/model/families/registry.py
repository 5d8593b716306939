"""The registry of model families by ``model_type``.

A family is added by one row in ``DECODERS``, ``MIXTURES`` or ``ENCODERS``; a block that no other family has needs its
own body function, like ``llama_body``.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ...common.records import replace
from ..architecture import BlockRules
from .decoders import DECODERS, FOUR_NORMS, LLAMA_LIKE, PLAIN_MODELS, fused_body
from .encoders import ENCODERS
from .family import DECODER_TASKS, Family
from .mixtures import MIXTURES, WITH_EXPERT_NAMES

FAMILIES: dict[str, Family] = {**DECODERS, **MIXTURES, **ENCODERS, **PLAIN_MODELS}
"""The families whose parameters are counted exactly; of two marker fields in a config the later family's counts."""
GENERIC = LLAMA_LIKE
"""The record of an unknown ``model_type``: a decoder like Llama's."""
_UNGATED = replace(PLAIN_MODELS["plain-gpt-rotary"], tasks=DECODER_TASKS)
"""The record of decoders whose MLPs have no gate."""
_BLOOM = replace(
    _UNGATED,
    body=fused_body("self_attention.query_key_value", "self_attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
)
_SEPARATE = replace(
    DECODERS["phi"],
    block_norms=("ln_1", "ln_2"),
    parallel_residual="never",
    activation="gelu",
    mlp_ratio=4,
    learned_positions=2048,
    tied=True,
    rules=BlockRules(),
)
"""The record of those among them whose queries, keys and values are linear layers of their own."""
_RELATIVES: Mapping[str, Family] = MappingProxyType(
    {
        "qwen": replace(GENERIC, window_off_by_default=True),
        **dict.fromkeys(("gemma", "olmo2", "gpt_oss"), replace(GENERIC, rules=BlockRules(fp32_norm_scale=True))),
        **dict.fromkeys(("xlm-roberta", "camembert"), ENCODERS["roberta"]),
        "electra": ENCODERS["bert"],
        "esm": replace(ENCODERS["bert"], activation="gelu_erf", reads_activation=False),
        "glm4_moe": GENERIC,
        "glm4": replace(GENERIC, block_norms=FOUR_NORMS),
        "bloom": _BLOOM,
        "mpt": replace(_UNGATED, body=fused_body("attn.Wqkv", "attn.out_proj", "ffn.up_proj", "ffn.down_proj")),
        "starcoder2": replace(_SEPARATE, learned_positions=0),
        **dict.fromkeys(("biogpt", "opt"), _SEPARATE),
        "falcon": replace(_BLOOM, multi_query=True),
        "gpt_bigcode": replace(_UNGATED, dropout=0.1, multi_query=True, learned_positions=1024),
        "codegen": replace(
            _UNGATED,
            body=fused_body("attn.qkv_proj", "attn.out_proj", "mlp.fc_in", "mlp.fc_out"),
            activation="gelu_new",
        ),
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
