"""What libraries do in a script: models, parameters, adapters, optimizers, trainers, and the settings stated to them.

Lives here: torch, transformers, peft, accelerate and TRL as far as memory depends on them; nothing is imported of them.
Callers: ``readers.script``, which follows a script with them.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .configs import (
        LENGTH_ARGUMENTS as LENGTH_ARGUMENTS,
        SIZE_ARGUMENTS as SIZE_ARGUMENTS,
        TRAINING_CONFIG as TRAINING_CONFIG,
    )
    from .layers import Container as Container, Layer as Layer
    from .model import Model as Model, models_in as models_in
    from .notes import Doubt as Doubt, Notes as Notes
    from .parameters import ParameterOwner as ParameterOwner, Shape as Shape, elements as elements
    from .script_library import ScriptLibrary as ScriptLibrary
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "configs": "LENGTH_ARGUMENTS SIZE_ARGUMENTS TRAINING_CONFIG",
            "layers": "Container Layer",
            "model": "Model models_in",
            "notes": "Doubt Notes",
            "parameters": "elements ParameterOwner Shape",
            "script_library": "ScriptLibrary",
        },
    )
