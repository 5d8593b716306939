"""Effects of library calls in a script: optimizers, trainers, accelerators, sharding, and the settings stated to them.

Lives here: torch, transformers, peft, accelerate and TRL as far as memory depends on them; nothing is imported of them.
Callers: ``readers.script``, which follows a script with them.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .script_library import DIFFUSION as DIFFUSION, PAIRED as PAIRED, ScriptLibrary as ScriptLibrary
    from .sharding import settle_sharding as settle_sharding
    from .unfollowed import doubt_end as doubt_end, doubt_lengths as doubt_lengths
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "script_library": "DIFFUSION PAIRED ScriptLibrary",
            "sharding": "settle_sharding",
            "unfollowed": "doubt_end doubt_lengths",
        },
    )
