"""Models that have no closed form, by name: their training script stands for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.paths import is_file
from vramtop.estimator.job.settings import ModelSpec
from vramtop.estimator.model.find_config import PIPELINE, other_kind, resolve_model
from vramtop.estimator.program.diffusion_models import DiffusionModel, find_diffusion_model, read_pipeline
from vramtop.estimator.program.named_models import NamedModel, find_named_model, named_by_config

if TYPE_CHECKING:
    from collections.abc import Collection

    from vramtop.estimator.program.image_script import LibraryModel

ScriptedModel: TypeAlias = Union[NamedModel, "LibraryModel", DiffusionModel]
"""A model without a closed form."""

_OTHERWISE = ("inference.", "model.task", "rollout.", "training.mode")
"""Beginnings of keys of jobs whose checkpoint on disk the closed form answers for."""


def find_scripted(name: str, python: str | None, *, stated: Collection[str] = ()) -> ScriptedModel | None:
    """Return the model of a name that has no closed form; None: it is another model, or nothing.

    Args:
        name: of the model, or of a folder with its config.json or model_index.json.
        python: interpreter that the user named; None: those that are active are searched.
        stated: keys of its job; a checkpoint on disk that serves, or has another task, has no such script.

    Raises:
        CannotTellError: it is called like a vision model, and no Python has a library that builds it; or it is a
            pipeline of diffusers for which no script is known.
        InputError: a file of the pipeline cannot be read.
    """
    found = find_named_model(name) or find_diffusion_model(name) or read_pipeline(name, os.environ)
    if found is not None:
        return found
    try:
        model = resolve_model(ModelSpec(id=name))
    except InputError:
        return _library_model(name, python)
    return None if any(key.startswith(_OTHERWISE) for key in stated) else named_by_config(model)


def _library_model(name: str, python: str | None) -> LibraryModel | None:
    """Return the model that torchvision or timm builds by a name; None: neither does.

    Args:
        name: of the model.
        python: interpreter that the user named; None: those that are active are searched.

    Raises:
        CannotTellError: it is called like a vision model, and no Python has a library that builds it.
    """
    from vramtop.estimator.common.library_versions import find_interpreters
    from vramtop.estimator.program.image_script import LibraryModel  # asks Pythons
    from vramtop.estimator.trace.installed_packages import image_model, is_built_by_name

    spelled: tuple[str, ...] = (name,)
    if "-" in name and other_kind(name) == "vision":  # resnet-50, vit-base-patch16-224
        last = name.rpartition("/")[2].lower()
        spelled = (last.replace("-", ""), last.replace("-", "_"))
    if not is_built_by_name(spelled[0]):
        return None
    pythons = tuple(find_interpreters(python, os.environ))
    for each in spelled:
        if (found := image_model(each, pythons)) is not None:
            return LibraryModel(name=found[0], module=found[1], python=found[2])
    if other_kind(name) != "vision" or not pythons:
        return None
    raise CannotTellError(
        f"{name} is called like a vision model, which torchvision and timm build by name, but in {pythons[0]} neither "
        f"has that name; {pythons[0]} -m pip install torchvision timm installs them, and vramtop rehearse -- python "
        "train.py answers for your own script"
    )


def may_be_scripted(name: str) -> bool:
    """Return True for a name of a model without a closed form, without asking Pythons which of them builds it."""
    is_named = (find_named_model(name) or find_diffusion_model(name)) is not None
    return is_named or other_kind(name) == "vision" or is_file(Path(name, PIPELINE))


def is_scripted(name: str) -> bool:
    """Return True for a name of a model without a closed form, and for one that looks like torchvision's and timm's."""
    try:
        return find_scripted(name, None) is not None
    except CannotTellError:
        return True
