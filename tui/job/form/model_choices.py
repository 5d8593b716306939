"""Names of models to choose from, and the search among them: those in the cache, and built-in ones."""

import os
from collections.abc import Iterator, Sequence

import msgspec


class ModelChoice(msgspec.Struct, frozen=True):
    """A model that can be chosen."""

    name: str
    """Name as it is written into the field."""
    note: str
    """Where the name comes from: in the cache, or the built-in model's publisher."""
    other_names: tuple[str, ...] = ()


def model_choices(cached: Sequence[str] = ()) -> tuple[ModelChoice, ...]:
    """Return the models that can be chosen, the likeliest first: in the cache, built in."""
    found = [*(ModelChoice(name, "in the cache") for name in cached), *_built_in_choices()]
    return tuple({choice.name: choice for choice in reversed(found)}.values())[::-1]


def search_models(typed: str, choices: Sequence[ModelChoice]) -> tuple[ModelChoice, ...]:
    """Return the models of which a name has the letters of each typed word in their order, the best match first."""
    from ...widgets.match_list import best_matches  # the command line, which completes names, needs no widgets

    return tuple(choices[at] for at in best_matches(typed, [(each.name, *each.other_names) for each in choices]))


def model_names() -> tuple[str, ...]:
    """Return all names of built-in models; short ones first, since they are quicker to type."""
    choices = tuple(_built_in_choices())
    return tuple(dict.fromkeys([*(each.name for each in choices), *(n for each in choices for n in each.other_names)]))


def cached_models() -> tuple[str, ...]:
    """Return the ids of the models in the Hugging Face cache, sorted; empty if the cache cannot be read."""
    from vramtop.estimator.model.find_config import hub_cache

    try:
        names = sorted(entry.name for entry in hub_cache(os.environ).iterdir() if entry.name.startswith("models--"))
    except OSError:
        return ()
    return tuple(name.removeprefix("models--").replace("--", "/", 1) for name in names)


def _built_in_choices() -> Iterator[ModelChoice]:
    from vramtop.estimator.model.find_config import built_in_models  # models are looked for off the UI thread

    for model in built_in_models():
        publisher, _, short = model.id.rpartition("/")
        name = model.names[0] if model.language_part else short
        yield ModelChoice(name, publisher or "built in", (*model.ids, *model.aliases))
