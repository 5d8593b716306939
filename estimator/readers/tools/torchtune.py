"""torchtune: the YAML of a recipe and the overrides of ``tune run RECIPE --config X batch_size=4``.

Names and meanings: ``recipes/`` and ``torchtune/training`` of torchtune 0.6. The recipes of its own loop: weights in
``dtype``, chunked loss, FSDP2 in the distributed ones.
"""

import os
import re
from pathlib import Path, PurePath

from ...common.errors import CannotTellError
from ...common.trust import look_up_program
from ..arguments.table import doubt_arguments, library, record_arguments
from ..program.program import Program
from ..source.evidence import FindingCollector, JobReading
from ..source.flags import parse_flags
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ..trainer.unread_settings import warn_of_unread
from .shared.own_loop import folder_id, record_optimizer, record_ranks, world_of_tool
from .shared.settings_files import overrides_first, tool_settings
from .shared.tool import has_key, known_tool

_DISTRIBUTED_NAMES = ("custom_sharded_layers", "fsdp_cpu_offload", "tensor_parallel_dim", "data_parallel_shard_dim")
"""Settings that only distributed recipes have."""
_VARIANT = re.compile(r"^q?lora_|_(instruct|base|v\d|reward|classifier)$")


def read(program: Program) -> JobReading:
    """Return the job of a torchtune recipe."""
    findings = program.findings
    settings = tool_settings(program, "config", written=("torchtune_config.yaml",), shipped=_shipped_config(program))
    findings.record("training.framework", "torchtune", "the program is torchtune")
    _read_model(program, settings)
    record_arguments(library("torchtune"), "step", settings, findings)
    doubt_arguments(library("torchtune"), "all", settings, findings)
    packed = settings.find("dataset.packed", "packed") or Setting.default(False, "torchtune's default packed")
    findings.record_from(packed, "training.varying_lengths", not as_bool(packed))
    optimizer = settings.find("optimizer._component_", "optimizer")
    if optimizer is None and (other := settings.find("tasks", "max_new_tokens")) is not None:
        raise CannotTellError(f"{other.origin} trains nothing; to generate text: vramtop fit MODEL --inference")
    record_optimizer(program, settings, optimizer, "optimizer.")
    _read_other_models(program, settings)
    loss = settings.find("loss._component_", "loss")
    if loss is not None:
        chunked = any(word in str(loss.value) for word in ("Chunked", "LinearCrossEntropy"))
        findings.record_from(loss, "training.loss", "chunked" if chunked else "full")
    _read_adapters(settings, findings)
    _read_ranks(program, settings)
    warn_of_unread(settings, findings)
    return findings.build()


def _shipped_config(program: Program) -> Path | None:
    """Return the file of ``--config llama3_1/8B_lora``, a name in torchtune's own list: beside its recipes."""
    flags, _ = parse_flags(overrides_first(program.launch.arguments))
    name = str(flags["config"].value) if "config" in flags else ""
    if not name or name.endswith((".yaml", ".yml")):
        return None
    folders: list[Path] = []
    command = program.launch.command
    if command:
        found = command if "/" in command else look_up_program(command, program.environ.get("PATH"))
        if found:
            environment = program.filesystem.resolve(str(found)).parent.parent
            folders += environment.glob("lib*/python3*/site-packages/recipes")
    elif "recipes" in (parts := PurePath(program.launch.script or "").parts):
        folders.append(program.filesystem.resolve(str(PurePath(*parts[: parts.index("recipes") + 1]))))
    files = [folder / "configs" / f"{name}.yaml" for folder in folders]
    found = next((file for file in files if os.access(file, os.R_OK)), None)
    if found is None and program.pid is None and not os.access(program.filesystem.resolve(name), os.F_OK):
        raise CannotTellError(
            f"--config {name} is in torchtune's own list, and torchtune is not installed here; "
            f"tune cp {name} my.yaml writes it into a file for --config my.yaml"
        )
    return found


def _read_model(program: Program, settings: LayeredSettings) -> None:
    """Record the checkpoint's folder if it is here with a config, otherwise the model that the builder stands for."""
    findings = program.findings
    checkpoint = settings.find("checkpointer.checkpoint_dir")
    if (folder := folder_id(program.filesystem, checkpoint)) is not None:
        findings.record_from(checkpoint, "model.id", folder)
        return
    builder = settings.find("model._component_", "policy_model._component_")
    known = _model_id(str(builder.value)) if builder is not None else None
    findings.record_from(builder, "model.id", known)
    if builder is not None and known is None:
        findings.warn(
            f"{builder.origin}: the builder {builder.value} is not supported; give model.id.", unless="model.id"
        )


def _model_id(builder: str) -> str | None:
    """Return the id of a builder, such as ``torchtune.models.llama3_1.qlora_llama3_1_8b``; None if it is unknown."""
    return library("torchtune").words["model"].get(_VARIANT.sub("", builder.rpartition(".")[2]))


def _read_other_models(program: Program, settings: LayeredSettings) -> None:
    """Record the models beside the trained one: DPO's reference, a teacher; and what their losses keep.

    Source: ``recipes/*dpo*.py``, ``recipes/knowledge_distillation_*.py``, ``recipes/ppo_*.py``.
    """
    findings, recipe = program.findings, PurePath(program.launch.script or "").stem
    sharded = "distributed" in recipe or settings.find(*_DISTRIBUTED_NAMES) is not None
    loss, teacher = settings.find("loss._component_"), settings.find("teacher_model._component_")
    reference = settings.find("ref_checkpointer._component_")
    if settings.find("policy_model._component_", "reward_and_value_model._component_") is not None:
        return
    if loss is not None and any(word in str(loss.value) for word in ("DPO", "RSO", "SimPO", "IPO")):
        origin = f"{loss.origin}: each example is a chosen and a rejected sequence"
        findings.infer("training.sequences_per_example", 2, origin)
        findings.record("training.loss", "log-probs", loss.origin)
        findings.infer("training.reference_pass", True, "a pass of the reference precedes the backward pass")
        findings.record_from(reference, "other_models", [{"role": "reference", "sharded": sharded}])
    elif teacher is not None:
        sentence = f"{teacher.origin}: the teacher is not counted."
        findings.doubt(sentence, "more", "weights", "activations", "logits", unless="other_models")


def _read_adapters(settings: LayeredSettings, findings: FindingCollector) -> None:
    builder = settings.find("model._component_")
    name = str(builder.value).rpartition(".")[2] if builder is not None else ""
    if builder is None or "lora" not in name:
        return
    record_arguments(library("torchtune"), "lora", settings, findings)
    _read_targets(settings, findings)
    findings.record_dropout(settings.find("model.lora_dropout"))
    if name.startswith("qlora"):
        # torchao's NF4 quantizes the scales of its blocks of 64 again, over blocks of 256
        findings.record_from(builder, "lora.quantization", "nf4-double")


def _read_targets(settings: LayeredSettings, findings: FindingCollector) -> None:
    modules = settings.find("model.lora_attn_modules")
    mlp, head = settings.find_true("model.apply_lora_to_mlp"), settings.find_true("model.apply_lora_to_output")
    names = modules.value if modules is not None and isinstance(modules.value, list) else []
    targets = ["o_proj" if name == "output_proj" else str(name) for name in names]
    targets += ("gate_proj", "up_proj", "down_proj") if mlp is not None else ()
    targets += ("lm_head",) if head is not None else ()
    if targets and modules is not None:
        origin = modules.origin if mlp is None else f"{modules.origin}; {mlp.origin}"
        findings.record("lora.targets", targets, origin)
    else:
        findings.require("lora.targets")


def _read_ranks(program: Program, settings: LayeredSettings) -> None:
    """Record FSDP2 for distributed recipes; only the launch line states which recipe a file is for."""
    findings, world = program.findings, world_of_tool(program)
    recipe = PurePath(program.launch.script or "").stem
    distributed = next((found for name in _DISTRIBUTED_NAMES if (found := settings.find(name)) is not None), None)
    several = (as_int(world.ranks) or 1) > 1
    if "single_device" in recipe or not (several or "distributed" in recipe or distributed is not None):
        return
    by_setting = distributed.origin if distributed is not None else "several ranks"
    findings.infer("parallel.strategy", "fsdp2", f"the recipe {recipe}" if recipe else by_setting)
    record_ranks(program, world, settings, library("torchtune"), settings.find("data_parallel_shard_dim"))
    record_arguments(library("torchtune"), "sharded", settings, findings)
    dtype = as_word(settings.find("dtype"))
    if dtype in ("bf16", "fp16"):
        findings.infer("parallel.reduce_dtype", dtype, "FSDP2 reduces gradients in their own dtype")


TOOL = known_tool("torchtune", read, is_own=lambda table: has_key(table, "_component_"))
