"""Finds the model that a script trains: the one of a trainer, else an optimizer, else the first that is loaded."""

from dataclasses import dataclass, field

from ..source import MODEL_STATES, Setting
from .models import Model, Notes, ParameterOwner, models_in
from .own_models import OwnModel, find_own_model


@dataclass(slots=True)
class Trained:
    """What the script trains."""

    model: Model | None = None
    name: Setting | None = None
    """The name of a model that a trainer loads itself."""
    owners: list[ParameterOwner] = field(default_factory=list)
    own: OwnModel | None = None
    """A model that the script builds of layers."""
    unknown: str | None = None
    """A sentence, where it is a model that is not known."""
    certain: bool = False
    """A trainer or an optimizer has the model."""


def find_trained(notes: Notes) -> Trained:
    """Return what is trained: what a trainer has, else an optimizer, else what is prepared, else the first model."""
    for trainer in sorted(notes.trainers, key=lambda each: not each.ran):
        if trainer.model_name is not None:
            return Trained(name=trainer.model_name, certain=True)
        owners = list(dict.fromkeys(models_in(trainer.model)))
        if owners:
            return _choose(owners, notes, certain=True)
        if trainer.unknown_model is not None and not _loose_models(notes):
            break
    owners = list(dict.fromkeys(owner for optimizer in notes.optimizers for owner in optimizer.trains()))
    if owners:
        return _choose(owners, notes, certain=True)
    if any(optimizer.trains_unknown() for optimizer in notes.optimizers):
        where = notes.optimizers[0].where
        return Trained(unknown=f"{where}: the model that the optimizer trains is made in a way that is not followed.")
    given = [owner for value in notes.parameters_given for owner in models_in(value)]
    candidates = [model for model in given if isinstance(model, Model) and not _is_frozen(model) and not model.role]
    if candidates:
        return _choose(list(dict.fromkeys(candidates)), notes, certain=True)
    if notes.parameters_given and not given and not notes.models:
        return Trained(unknown="The model that is trained is made in a way that is not followed.")
    loose = _loose_models(notes)
    own = find_own_model([], notes) if notes.optimizers and not notes.models else None
    if own is not None:
        return Trained(own=own)
    if notes.optimizers and notes.models and not loose:
        where = notes.optimizers[0].where
        return Trained(unknown=f"{where}: the model that the optimizer trains is made in a way that is not followed.")
    return _choose(list(loose[:1]), notes, certain=False)


def _loose_models(notes: Notes) -> list[Model]:
    """Return the models that may be the trained one, where nothing says which is."""
    named = [model for model in notes.models if model.role is None and model.copy_of is None and not _is_frozen(model)]
    return named or [model for model in notes.models if model.role is None and model.has_adapters]


def _is_frozen(model: ParameterOwner) -> bool:
    if isinstance(model, Model) and model.has_adapters:
        return not model.adapters_train
    if model.requires is not None:
        return not any(model.requires.values())
    return bool(model.rules) and model.rules[-1] == ("*", False)


def _choose(owners: list[ParameterOwner], notes: Notes, *, certain: bool) -> Trained:
    models = [owner for owner in owners if isinstance(owner, Model)]
    live = [model for model in models if not _is_frozen(model)]
    model = next(iter(live or models), None)
    if len(live) > 1:
        others = ", ".join(each.where for each in live[1:])
        notes.doubt(
            f"{others}: another model is trained as well; its gradients and optimizer state are not counted.",
            *MODEL_STATES,
            direction="more",
        )
    if model is None and owners:
        model = _beside(owners, notes)
    own = find_own_model(owners, notes) if model is None else None
    if own is not None:
        return Trained(owners=owners, own=own, certain=certain)
    if model is None and owners:
        sentence = f"{owners[0].where}: the trained model is made of layers of the script's own and is not read."
        return Trained(owners=owners, unknown=sentence)
    return Trained(model=model, owners=owners, certain=certain)


def _beside(owners: list[ParameterOwner], notes: Notes) -> Model | None:
    """Return the model that a module of the script holds together with layers."""
    for module in notes.modules:
        inside = list(models_in(module))
        model = next((each for each in inside if isinstance(each, Model)), None)
        if model is not None and any(owner in inside for owner in owners):
            return model
    for model in notes.models:
        if any(owner in models_in(list(model.replaced.values())) for owner in owners):
            return model if isinstance(model, Model) else None
    return None
