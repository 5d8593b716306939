"""torchtune: the YAML of a recipe and the overrides of ``tune run RECIPE --config X batch_size=4``.

Names and meanings: ``recipes/`` and ``torchtune/training`` of torchtune 0.6. The recipes of its own loop: weights in
``dtype``, chunked loss, FSDP2 in the distributed ones.
"""

import os
import shutil
from pathlib import Path, PurePath

from ..program.program import Program
from ..program.ranks import read_world_size
from ..source.evidence import FindingCollector, JobReading
from ..source.flags import parse_flags
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ..trainer.precision import WEIGHT_TYPES
from ..trainer.unread_settings import warn_of_unread
from .shared.job_keys import put_bool, put_int, put_ranks, put_word
from .shared.known_models import folder_id, torchtune_id
from .shared.merged_settings import overrides_first, tool_settings

_OPTIMIZERS = {
    "adamw": "adamw",
    "adam": "adamw",
    "adamw8bit": "adamw-8bit",
    "pagedadamw8bit": "paged-adamw-8bit",
    "pagedadamw": "paged-adamw",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "lion": "lion",
}
_DISTRIBUTED = ("custom_sharded_layers", "fsdp_cpu_offload", "tensor_parallel_dim", "data_parallel_shard_dim")


def read(program: Program) -> JobReading:
    """The job of a torchtune recipe."""
    findings = program.findings
    settings = tool_settings(program, "config", written=("torchtune_config.yaml",), shipped=_shipped(program))
    findings.put("training.framework", "torchtune", "the program is torchtune's")
    _model(program, settings)
    put_int(findings, "training.micro_batch", settings.find("batch_size"))
    length = settings.find("tokenizer.max_seq_len")
    put_int(findings, "training.sequence_length", length)
    put_int(findings, "training.gradient_accumulation", settings.find("gradient_accumulation_steps"))
    dtype = settings.find("dtype") or Setting(value="bf16", origin="torchtune's default dtype", written=False)
    put_word(findings, "training.precision", dtype, WEIGHT_TYPES)
    _optimizer(settings, findings)
    put_word(
        findings,
        "training.activation_checkpointing",
        settings.find("enable_activation_checkpointing"),
        {"true": "full", "false": "none"},
    )
    if settings.find("ac_mode") is not None:
        findings.put("training.activation_checkpointing", "selective", "ac_mode")
    put_bool(findings, "training.activation_offload", settings.find("enable_activation_offloading"))
    put_bool(findings, "training.optimizer_in_backward", settings.find("optimizer_in_bwd"))
    put_bool(findings, "training.compile", settings.find("compile"))
    loss = settings.find("loss._component_", "loss")
    if loss is not None:
        chunked = any(word in str(loss.value) for word in ("Chunked", "LinearCrossEntropy"))
        findings.put("training.loss", "chunked" if chunked else "full", loss.origin)
    _adapters(settings, findings)
    _ranks(program, settings)
    warn_of_unread(settings, findings)
    return findings.build()


def _shipped(program: Program) -> Path | None:
    """The file of ``--config llama3_1/8B_lora``, a name in torchtune's own list: beside its recipes."""
    flags, _ = parse_flags(overrides_first(program.launch.arguments))
    name = str(flags["config"].value) if "config" in flags else ""
    if not name or name.endswith((".yaml", ".yml")):
        return None
    folders: list[Path] = []
    if program.launch.command:
        command = program.launch.command
        found = command if "/" in command else shutil.which(command, path=program.environ.get("PATH"))
        if found:
            folders += program.filesystem.resolve(found).parent.parent.glob("lib*/python3*/site-packages/recipes")
    elif "recipes" in (parts := PurePath(program.launch.script or "").parts):
        folders.append(program.filesystem.resolve(str(PurePath(*parts[: parts.index("recipes") + 1]))))
    files = [folder / "configs" / f"{name}.yaml" for folder in folders]
    return next((file for file in files if os.access(file, os.R_OK)), None)


def _model(program: Program, settings: LayeredSettings) -> None:
    """The checkpoint's folder if it is here with a config, else the model that the builder stands for."""
    findings = program.findings
    folder = settings.find("checkpointer.checkpoint_dir")
    here = folder_id(program.filesystem, str(folder.value)) if folder is not None else None
    if folder is not None and here is not None:
        findings.put("model.id", here, folder.origin)
        return
    component = settings.find("model._component_")
    known = torchtune_id(str(component.value)) if component is not None else None
    if component is not None and known is not None:
        findings.put("model.id", known, component.origin)
    elif component is not None:
        findings.warn(f"{component.origin}: the builder {component.value} is not known here; give model.id.")


def _optimizer(settings: LayeredSettings, findings: FindingCollector) -> None:
    setting = settings.find("optimizer._component_", "optimizer")
    if setting is None:
        return
    word = str(setting.value).rpartition(".")[2].lower()
    known = _OPTIMIZERS.get(word)
    if known is None:
        sentence = f"{setting.origin}: optimizer {setting.value!r} is not known here and is counted as adamw."
        findings.mark_uncertain("training.optimizer", sentence)
    fused = settings.find("optimizer.fused")
    if known in (None, "adamw"):
        known = "adamw-fused" if as_bool(fused) else "adamw"
    findings.put("training.optimizer", known, setting.origin)


def _adapters(settings: LayeredSettings, findings: FindingCollector) -> None:
    component = settings.find("model._component_")
    name = str(component.value).rpartition(".")[2] if component is not None else ""
    if component is None or "lora" not in name:
        return
    put_int(findings, "lora.rank", settings.find("model.lora_rank"))
    modules = settings.find("model.lora_attn_modules")
    named = modules.value if modules is not None and isinstance(modules.value, list) else []
    targets = ["o_proj" if name == "output_proj" else str(name) for name in named]
    mlp = settings.find("model.apply_lora_to_mlp")
    if as_bool(mlp):
        targets += ["gate_proj", "up_proj", "down_proj"]
    head = settings.find("model.apply_lora_to_output")
    if as_bool(head):
        targets.append("lm_head")
    if targets and modules is not None:
        origin = modules.origin if not as_bool(mlp) or mlp is None else f"{modules.origin}; {mlp.origin}"
        findings.put("lora.targets", targets, origin)
    else:
        findings.require("lora.targets")
    if name.startswith("qlora"):
        # torchao's NF4 quantizes the scales of its blocks of 64 again, over blocks of 256
        findings.put("lora.quantization", "nf4-double", component.origin)


def _ranks(program: Program, settings: LayeredSettings) -> None:
    """Distributed recipes shard with FSDP2; which recipe a file is for, only the launch line says."""
    findings = program.findings
    world = read_world_size(program.launcher, LayeredSettings(), program.environ)
    recipe = PurePath(program.launch.script or "").stem
    sign = next((found for name in _DISTRIBUTED if (found := settings.find(name)) is not None), None)
    many = (as_int(world.ranks) or 1) > 1
    if "single_device" in recipe or not (many or "distributed" in recipe or sign is not None):
        return
    origin = f"the recipe {recipe}" if recipe else sign.origin if sign is not None else "several ranks"
    findings.put("parallel.strategy", "fsdp2", origin, written=False)
    put_ranks(
        program,
        world if program.config_file is None else None,
        {
            "tensor": settings.find("tensor_parallel_dim"),
            "context": settings.find("context_parallel_dim"),
            "data_replicate": settings.find("data_parallel_replicate_dim"),
        },
        settings.find("data_parallel_shard_dim"),
    )
    put_bool(findings, "parallel.reshard_after_forward", settings.find("fsdp_reshard_after_forward"))
    offload = settings.find("fsdp_cpu_offload")
    if offload is not None and as_bool(offload):
        findings.put("parallel.cpu_offload", "all", offload.origin)
    dtype = settings.find("dtype")
    if dtype is not None and as_word(dtype) in ("bf16", "fp16"):
        findings.put(
            "parallel.reduce_dtype", as_word(dtype), "FSDP2 reduces gradients in their own type", written=False
        )
