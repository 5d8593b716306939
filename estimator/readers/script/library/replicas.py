"""DDP in scripts: ``DistributedDataParallel(...)``, and the handlers that pass its arguments through accelerate.

Of its arguments ``gradient_as_bucket_view`` alone decides about bytes that count. Buckets hold every gradient once,
whatever ``bucket_cap_mb`` is; ``static_graph`` and ``find_unused_parameters`` decide when they are rebuilt, and the
latter's map has 4 bytes per parameter tensor (torch 2.13, ``torch/csrc/distributed/c10d/reducer.cpp``).
"""

from collections.abc import Mapping
from typing import Any

from ...source import Setting
from ..models import Model, Notes, models_in
from ..python import UNKNOWN, Call, Thing, plain, short_text

_VIEWS = "gradient_as_bucket_view"
_HOOK = "ddp_comm_hook"


class Handler(Thing):
    """One of accelerate's ``KwargsHandler``s: its settings, and sentences on what is not known of it."""

    def __init__(self, settings: Mapping[str, Setting], sentences: Mapping[str, str]) -> None:
        self.settings = settings
        self.sentences = sentences
        """By the setting that is not known."""


def put_on_gpu(call: Call) -> Any:
    """Note that what is wrapped is on the GPU, and return it."""
    model = call.value(0, "module", default=UNKNOWN)
    for each in models_in(model):
        if isinstance(each, Model):
            each.on_gpu = True if each.on_gpu is None else each.on_gpu
            each.sharded = each.sharded or not call.name.endswith(("DDP", "DataParallel"))
    return model


def replicate(call: Call, notes: Notes) -> Any:
    """Follow ``DDP(model)``."""
    found = ddp_arguments(call)
    for name, setting in found.settings.items():
        notes.own_loop.setdefault(name, setting)
    _doubt(found, notes)
    if call.value(None, "mixed_precision") is not None:
        shown = f"{call.name}(mixed_precision={short_text(call.expression(None, 'mixed_precision'))})"
        sentence = f"{call.where}: {shown}: copies of the weights in another type are not counted."
        notes.doubt(sentence, "weights", direction="more")
        notes.doubt(sentence, "activations", "communication", direction="either")
    return put_on_gpu(call)


def ddp_arguments(call: Call) -> Handler:
    """Return DDP's arguments that memory depends on, as ``DistributedDataParallelKwargs`` takes them too."""
    settings: dict[str, Setting] = {}
    sentences: dict[str, str] = {}
    for name, renamed in ((_VIEWS, _VIEWS), ("comm_hook", _HOOK)):
        if name not in call.kwargs:
            continue
        setting, value = call.setting(name), plain(call.kwargs[name])
        if setting is not None and (name != _VIEWS or isinstance(value, bool)):
            settings[renamed] = setting
        else:
            shown = f"{call.name}({name}={short_text(call.nodes.get(name))})"
            sentences[renamed] = f"{call.where}: {shown} is only known when the script runs."
    if call.unknown_table is not None:
        sentences[_VIEWS] = f"{call.where}: {call.name}(**...) is only known when the script runs."
    return Handler(settings, sentences)


def take_handlers(value: Any, call: Call, notes: Notes) -> None:
    """Take the settings of ``Accelerator(kwargs_handlers=[...])``."""
    handlers = call.run.iterate(value)
    if handlers is None:
        sentence = f"{call.where}: Accelerator(kwargs_handlers=...) is only known when the script runs."
        notes.doubt(sentence, "communication", direction="less", key=f"parallel.{_VIEWS}")
        return
    for handler in handlers:
        if isinstance(handler, Handler):
            for name, setting in handler.settings.items():
                notes.accelerate.setdefault(name, setting)
            _doubt(handler, notes)


def _doubt(found: Handler, notes: Notes) -> None:
    """Note what is not known: views of the buckets take less, a communication hook may take more."""
    for name, sentence in found.sentences.items():
        if name == "autocast":
            notes.doubt(sentence, "activations", key="training.precision")
        elif name == _VIEWS:
            notes.doubt(sentence, "communication", direction="less", key=f"parallel.{_VIEWS}")
        else:
            notes.doubt(sentence, "communication", direction="more")


def autocast_arguments(call: Call, notes: Notes) -> Any:
    """Follow ``AutocastKwargs(enabled=False)``, with which the step runs in the type of the weights."""
    enabled = call.value(0, "enabled", default=True)
    shown = f"{call.name}(enabled={short_text(call.expression(0, 'enabled'))})" if enabled is not True else ""
    return Handler({}, {} if enabled is True else {"autocast": f"{call.where}: {shown} is not read."})


REPLICA_FUNCTIONS: Mapping[str, Any] = {
    **dict.fromkeys(("DDP", "DistributedDataParallel", "DataParallel"), replicate),
    "DistributedDataParallelKwargs": lambda call, notes: ddp_arguments(call),
    "AutocastKwargs": autocast_arguments,
}
"""Functions and classes by the last part of their names."""
