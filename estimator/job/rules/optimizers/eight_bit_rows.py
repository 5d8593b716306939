"""bitsandbytes' optimizers: states in 8 or 32 bits, perhaps paged.

Sources: bitsandbytes 0.49 (``optim/optimizer.py``, ``functional.py``).
"""

from .optimizer import Optimizer, Variant
from .states import Full, Quantized

_LIBRARY = ("bitsandbytes",)

ROWS = (
    Optimizer(
        name="adamw-8bit",
        description="AdamW with states in 8 bits",
        states=(Quantized(count=2),),
        libraries=_LIBRARY,
        class_names=("bitsandbytes.optim.AdamW8bit", "bitsandbytes.optim.Adam8bit"),
        trainer_names=("adamw_8bit", "adamw_bnb_8bit", "adamw_bnb", "adamw_torch_8bit"),
        variants=(Variant(option="is_paged", row="paged-adamw-8bit"),),
    ),
    Optimizer(
        name="paged-adamw-8bit",
        description="a paged AdamW",
        states=(Quantized(count=2),),
        paged=True,
        libraries=_LIBRARY,
        class_names=("bitsandbytes.optim.PagedAdamW8bit", "bitsandbytes.optim.PagedAdam8bit"),
        trainer_names=("paged_adamw_8bit",),
        unpaged="adamw-8bit",
    ),
    Optimizer(
        name="paged-adamw",
        description="a paged AdamW",
        states=(Full(count=2),),
        paged=True,
        libraries=_LIBRARY,
        class_names=(
            *("bitsandbytes.optim.PagedAdamW", "bitsandbytes.optim.PagedAdamW32bit"),
            *("bitsandbytes.optim.PagedAdam", "bitsandbytes.optim.PagedAdam32bit"),
        ),
        trainer_names=("paged_adamw_32bit", "paged_adamw"),
        variants=(Variant(option="optim_bits", value=8, row="paged-adamw-8bit"),),
        unpaged="adamw-fused",
    ),
    Optimizer(
        name="lion",
        description="Lion",
        states=(Full(),),
        trainer_libraries=_LIBRARY,
        class_names=("bitsandbytes.optim.Lion", "lion_pytorch.Lion"),
        trainer_names=("lion_32bit", "lion"),
    ),
)
