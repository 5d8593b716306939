"""Operations of the worker: what a request can ask for. Each imports the libraries that it needs when it is called.

    {"op": "builder", "name": "resnet50"} -> {"name": as the library takes it, "module": that defines it, or null}
    {"op": "packages", "distributions": [name, ...], "modules": [name, ...], "requirements_of": [name, ...]}
        -> {"python": ..., "versions": {distribution: version},
            "modules": [those that can be found], "requirements": [those of the distributions in requirements_of, ...]}
    {"op": "torch"}
        -> {"version": ..., "cuda": version or null, "hip": version or null,
            "architectures": ["sm_80", ..., "compute_90"] or null, "problem": null}
        -> {"problem": "why torch cannot be imported"}
    {"op": "inventory", "config": {"model_type": ..., ...}, "task": "causal-lm",
     "lora": {"rank", "targets"} or absent, "places": true or absent,
     "code": {"folder", "model", "remote"} or absent}
        -> {"groups": [{"name", "shape", "repeat", "kind", "quantized", "places"}, ...],
            "layers": ..., "tied_head": ..., "tied": [[name, ...], ...],
            "buffers": [{"name", "repeat", "tensor_bytes"}, ...],
            "adapters": [{"name", "shape", "repeat", "kind"}, ...] or null,
            "config": {...}, "versions": {...}}
    {"op": "trace", "script": {"text", "start": [words that start it], "gpus": ranks, "card": as ``Card`` takes it},
     "config": the model's, "task": ..., "least_rounds": of layers that a shallow model has, or null: all are traced,
     "allocator": {"conf": ...}, "code": that the script runs, or absent}
        -> {"parameters": ..., "trainable": ..., "doubts": [sentence, ...],
            "phases": {"forward": {"allocated": ..., "components": {...}}, ...}, "peak_tensors": [...],
            "timeline": [[event, bytes], ...], "timeline_components": {"weights": [bytes, ...], ...},
            "timeline_phases": [[phase, event], ...], "reserved": {...}, "allocations": "...", "versions": {...}}

``inventory`` and ``trace`` need torch (2.4 or newer) and transformers (4.45 or newer), and peft for adapters. No
weights are read and nothing is downloaded. Code that belongs to a model or to the user runs only where ``code``
names it.
"""

from __future__ import annotations

import contextlib
import gc
import platform
from typing import Any

from .request.protocol import loaded_versions


def packages(request: dict[str, Any]) -> dict[str, Any]:
    """Return installed versions, the modules that can be found, and requirements; imports none of them."""
    from importlib.metadata import PackageNotFoundError, requires, version

    versions, requirements = {}, []
    for name in request.get("distributions") or ():
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    for name in request.get("requirements_of") or ():
        with contextlib.suppress(PackageNotFoundError):
            requirements += requires(name) or []
    return {
        "python": platform.python_version(),
        "versions": versions,
        "modules": [name for name in request.get("modules") or () if _is_importable(name)],
        "requirements": requirements,
    }


def builder(request: dict[str, Any]) -> dict[str, Any]:
    """Return the module of torchvision or timm that builds a model of a name, as their sources say; imports neither."""
    import re
    from importlib.util import find_spec
    from pathlib import Path

    library, _, name = request["name"].rpartition("/")
    function = name.partition(".")[0]  # timm's names have a tag of their weights behind a point
    defined = re.compile(rf"^@register_model(?:\(\))?\n(?:[@ )].*\n)*def {re.escape(function)}\(", re.MULTILINE)
    for package in [library] if library else ["torchvision", "timm"]:
        spec = find_spec(package)
        if spec is None:
            continue
        folder = Path(spec.origin or "").parent
        for file in sorted(folder.glob("models/**/*.py")):
            if defined.search(file.read_text(encoding="utf-8", errors="replace")):
                return {"module": ".".join((package, *file.relative_to(folder).with_suffix("").parts)), "name": name}
    return {"module": None, "name": name}


def torch_build(_request: dict[str, Any]) -> dict[str, Any]:
    """Return how torch was built, without initialising CUDA."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything: OSError, ImportError, ...
        return {"problem": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    # torch.cuda.get_arch_list() is empty where no GPU is visible
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return {
        "version": str(torch.__version__),
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "architectures": flags.split() if flags else None,
        "problem": None,
    }


def _is_importable(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # its parent package is missing, or was imported without a spec
        return False


def inventory(request: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters and buffers of the model with this config and task, grouped by name and shape."""
    import torch

    from . import inventory as contents
    from .request.user_code import read_user_code

    code = read_user_code(request)
    with torch.device("meta"):  # shapes without storage
        model = contents.build_model(request.get("config") or {}, request["task"], code=code)
        answer = {
            **contents.parameter_groups(model, places=bool(request.get("places"))),
            "tied_head": contents.has_tied_head(model),
            "tied": contents.tied_parameters(model),
            "buffers": contents.buffer_groups(model),
            "config": contents.config_fields(model),
            "adapters": None,
        }
        if request.get("lora"):
            adapted = contents.add_lora_adapters(model, request["lora"]["rank"], request["lora"]["targets"])
            answer["adapters"] = contents.adapter_groups(adapted)
    return {**answer, "versions": loaded_versions()}


def trace(message: dict[str, Any]) -> dict[str, Any]:
    """Rehearse two training steps of a script, and return the memory of the second; of inference, that of all."""
    from .described import import_libraries, trace_script
    from .inventory import require_known_type
    from .memory.replay import pack_allocations, replay_reserved
    from .memory.summary import MEASURED_STEP, allocator_events, summarize
    from .repetition.repeated_trace import trace_repeated

    script = message["script"]
    import_libraries(script["text"])
    if "code" not in message:
        require_known_type(message["config"])
    traced = None
    if message["least_rounds"] is not None:
        traced = trace_repeated(
            lambda configs: trace_script(script, configs), message["config"], message["task"], message["least_rounds"]
        )
    traced = traced or trace_script(script, [None])[0]
    gc.disable()  # what is left to do makes 100,000 tuples and no garbage; the collection after the answer enables it
    has_steps = any(each.name == "optimizer step" for each in traced.history.phases)
    summary = summarize(traced.history, MEASURED_STEP if has_steps else 1)
    allocations = list(allocator_events(traced.history))
    timeline_events = [event for event, _ in summary["timeline"]]
    return {
        "parameters": traced.parameters,
        "trainable": traced.trainable,
        "doubts": traced.doubts,
        **summary,
        "reserved": replay_reserved(allocations, timeline_events, message.get("allocator")),
        "allocations": pack_allocations(allocations),
        "versions": traced.versions,
    }


OPERATIONS = {
    "builder": builder,
    "packages": packages,
    "torch": torch_build,
    "inventory": inventory,
    "trace": trace,
}
