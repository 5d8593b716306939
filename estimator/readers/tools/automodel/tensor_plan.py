"""The tensor-parallel plan of a recipe: ``tp_plan`` (``custom_tp_plan``, ``tp_shard_plan``), or Automodel's own.

A plan is the import path of a dict or of a function that returns one, or a table of styles; without one Automodel takes
its own plan for the model's class, else the model's (``_get_parallel_plan`` of components/distributed/parallelizer.py).
A path is followed to its file, which is read as data: nothing that a recipe names is run.
"""

import re

from ....job.rules import Strategy
from ....model.placement import STYLES, read_plan_file, style_of_class
from ...program import Program
from ...source import MODEL_STATES, Component, LayeredSettings, Setting, as_int

_NAMES = ("distributed.tp_plan", "distributed.custom_tp_plan", "distributed.tp_shard_plan")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_OWN = "nemo_automodel"
_LEFT_WHOLE: tuple[Component, ...] = (*MODEL_STATES, "activations")


def read_tensor_plan(program: Program, settings: LayeredSettings, *, strategy: Strategy) -> None:
    """Record ``parallel.tensor_plan``, or doubt what a plan that cannot be read leaves whole."""
    findings = program.findings
    written = settings.find(*_NAMES)
    table = _table(settings)
    if as_int(settings.find("distributed.tp_size")) in (None, 1) or (written is None and not table):
        return
    given = written or table[0][1]
    if strategy.megatron_fsdp:
        findings.warn(f"{given.origin} is ignored: Automodel gives Megatron-FSDP no plan of the user's.")
        return
    path = str(given.value) if written is not None and _PATH.fullmatch(str(given.value)) else None
    if path is not None and path.startswith(f"{_OWN}."):
        findings.warn(f"{given.origin}: a plan of Automodel's own is counted as the model's plan in transformers.")
        return
    plan = _styles(table) if path is None else read_plan_file(path, program.filesystem.cwd)
    if plan is not None:
        findings.record_from(given, "parallel.tensor_plan", plan)
        return
    why = "it cannot be read without running it" if path is not None else "not all of its styles are known"
    findings.warn(f"{given.origin}: {why}; the model's own plan is counted.", unless="parallel.tensor_plan")
    findings.add_uncertainty("more", *_LEFT_WHOLE, unless="parallel.tensor_plan")


def _table(settings: LayeredSettings) -> list[tuple[str, Setting]]:
    """Return the entries of a plan that is written as a table: module, and style or its class."""
    entries = []
    for prefix in _NAMES:
        for name in settings.names(f"{prefix}."):
            setting = settings.find(name)
            if setting is not None:
                entries.append((name.removeprefix(f"{prefix}."), setting))
    return entries


def _styles(table: list[tuple[str, Setting]]) -> dict[str, str] | None:
    """Return the plan of a table, with layouts as part of the style; None: a style is not known."""
    plan: dict[str, str] = {}
    for name, setting in table:
        module, _, last = name.rpartition(".")
        value = str(setting.value)
        style = style_of_class(value) if last == "_target_" else value if value in STYLES else None
        if style is None:
            return None
        plan[module if last == "_target_" else name] = style
    return plan or None
