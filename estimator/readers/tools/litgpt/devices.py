"""Reads how LitGPT spreads a job, from ``devices`` and ``num_nodes``; visible GPUs count for ``auto`` only.

Read from ``finetune/*.py``, ``pretrain.py`` and ``utils.py`` (``parse_devices``) of LitGPT 0.5.4 to 0.5.13.
"""

from ....job.rules import older
from ...program import Program, checked_ranks, visible_gpus
from ...source import LayeredSettings, Setting, as_int, as_word, default_setting, is_open, parse_digits, refusal

LORA_RECIPES = ("lora", "finetune", "finetune_lora")


def read_devices(program: Program, settings: LayeredSettings, *, recipe: str) -> None:
    """Record the ranks: several mean FSDP, and for fine-tuning checkpointed blocks."""
    findings, pretrains = program.findings, recipe == "pretrain"
    written_nodes = settings.find("num_nodes")
    nodes = as_int(written_nodes) or 1
    if written_nodes is not None and as_int(written_nodes) is None:
        findings.refuse_ranks(refusal(written_nodes, "number of machines"))
        findings.require("parallel.data_shard")
        return
    devices = settings.find("devices") or default_setting("auto" if pretrains else 1, "LitGPT's default devices")
    if as_word(devices) in ("auto", "-1"):
        devices = _all_devices(program, nodes) or devices
    per_node = as_int(devices)
    if per_node is None:
        if not is_open(devices):
            findings.refuse_ranks(refusal(devices, "number of devices"))
        findings.require("parallel.data_shard")
        return
    origin = f"{devices.origin} times {written_nodes.origin}" if nodes > 1 and written_nodes else devices.origin
    ranks = Setting(value=per_node * nodes, origin=origin, written=devices.written)
    if checked_ranks(ranks, findings).ranks is None:
        findings.require("parallel.data_shard")
        return
    if ranks.value == 1:
        findings.record("parallel.data_shard", 1, origin, written=False)
        return
    composable = recipe in LORA_RECIPES and not older(program.versions.get("litgpt"), 0, 5, 11)
    strategy = "fsdp2" if composable else "fsdp1"
    findings.record("parallel.strategy", strategy, f"{origin}: LitGPT shards over several devices", written=False)
    _read_reduction(program, composable=composable)
    if pretrains:
        findings.record("parallel.sharding", "hybrid", "litgpt pretrain shards within a machine", written=False)
        findings.record_from(ranks, "parallel.data_shard", per_node)
        findings.record_from(ranks, "parallel.data_replicate", nodes)
    else:
        findings.record_from(ranks, "parallel.data_shard", ranks.value)
        origin = f"{origin}: LitGPT then checkpoints every block"
        findings.record("training.activation_checkpointing", "full", origin, written=False)


def _read_reduction(program: Program, *, composable: bool) -> None:
    """Record the dtype of reduced gradients: FSDP1's is that of computation, FSDP2's that of the weights.

    Source: Lightning's ``plugins/precision/fsdp.py``; its ``ModelParallelStrategy`` gives FSDP2 no policy.
    """
    findings = program.findings
    precision = findings.get("training.precision")
    half, _, mixed = str(precision.value if precision is not None else "").partition("-")
    if composable and mixed:
        findings.warn("LitGPT gathers fp32 weights for LoRA on several devices; 16-bit ones are counted.")
        findings.add_uncertainty("more", "weights")
    if half in ("bf16", "fp16") and not (composable and mixed):
        findings.record("parallel.reduce_dtype", half, "Lightning reduces FSDP's gradients in 16 bits", written=False)


def _all_devices(program: Program, nodes: int) -> Setting | None:
    """Return the GPUs of one machine: those that its ranks hold, else the visible ones; None if they are unknown."""
    if program.self_started_ranks is not None:
        origin = f"{program.self_started_ranks} processes that it started hold GPU memory"
        return default_setting(program.self_started_ranks, origin)
    total = parse_digits(program.environ.get("WORLD_SIZE", ""))  # Lightning sets it for the ranks that it starts
    if total is not None and total % nodes == 0:
        return default_setting(total // nodes, "WORLD_SIZE in the environment")
    return visible_gpus(program.environ)
