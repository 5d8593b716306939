"""The layers that LitGPT's switches (``lora_mlp``, ...) adapt, by the names that the model at hand gives them."""

from ....common import VramtopError
from ...program import Program
from ...source import LayeredSettings, as_bool
from .adapters import known_architecture

TARGETS: dict[str, tuple[tuple[tuple[str, ...], ...], bool]] = {
    "lora_query": ((("q_proj",),), True),
    "lora_key": ((("k_proj",),), False),
    "lora_value": ((("v_proj",),), True),
    "lora_projection": ((("o_proj",), ("dense",), ("out_proj",)), False),
    "lora_mlp": (
        (
            ("gate_proj", "up_proj", "down_proj"),
            ("gate_up_proj", "down_proj"),
            ("dense_h_to_4h", "dense_4h_to_h"),
            ("fc1", "fc2"),
        ),
        False,
    ),
    "lora_head": ((("lm_head",), ("embed_out",)), False),
}
"""Each switch with the names of its layers in several families, and its default."""


def record_targets(program: Program, settings: LayeredSettings) -> None:
    """Record the layers that the switches adapt; without a known model, by all names."""
    names, experts = _module_names(program)
    targets: list[str] = []
    origins: list[str] = []
    for name, (families, on_by_default) in TARGETS.items():
        setting = settings.find(name)
        is_on = as_bool(setting) if setting is not None else on_by_default
        if is_on and name == "lora_mlp" and experts and setting is not None:
            targets += experts
        elif is_on:
            every = tuple(dict.fromkeys(layer for family in families for layer in family))
            targets += next((family for family in families if names.issuperset(family)), every)
        if setting is not None:
            origins.append(setting.origin)
    origin = "; ".join(origins) or "LitGPT's default: queries and values"
    program.findings.record("lora.targets", targets, origin, written=bool(origins))


def _module_names(program: Program) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the last parts of the names of the model's linear layers, and those of its experts and their router.

    Both are empty if the model is not known.
    """
    from ....model.count_parameters import count_parameters  # here: a model is looked up only where it must be
    from ....model.families import family_of

    arch = known_architecture(program)
    try:
        inventory = count_parameters(arch) if arch is not None else None
    except VramtopError:
        inventory = None
    if arch is None or inventory is None:
        return frozenset(), ()
    linear = [group.name for group in inventory.groups if group.linear]
    names = frozenset(name.removesuffix(".weight").rpartition(".")[2] for name in linear)
    experts = family_of(inventory.family).expert_names if arch.experts else None
    return names, (*experts, "gate") if experts else ()
