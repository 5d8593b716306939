"""The strategy of a recipe's ``distributed`` section, and the version of AutoModel that reads it."""

from ....job.rules import STRATEGIES, Strategy
from ...program import Program, WorldSize, checked_ranks, read_world_size
from ...source import LayeredSettings, Setting, as_int, as_word, default_setting, version_tuple

_STRATEGIES = {
    **dict.fromkeys(("fsdp2", "fsdp2manager", "fsdp2config"), "fsdp2"),
    **dict.fromkeys(("megatron_fsdp", "megatron-fsdp", "mfsdp"), "megatron-fsdp"),
    **dict.fromkeys(("megatronfsdpmanager", "megatronfsdpconfig"), "megatron-fsdp"),
    **dict.fromkeys(("nvfsdp", "nvfsdpmanager"), "megatron-fsdp"),
    **dict.fromkeys(("ddp", "ddpmanager", "ddpconfig"), "ddp"),
}
_SIZE_NAMES = ("dp", "tp", "cp", "pp", "ep")
_LATEST = (0, 5)
"""The version whose source these rules follow (tags v0.1.0 to v0.5.0 of NVIDIA-NeMo/Automodel)."""


def version_of(program: Program) -> tuple[int, ...]:
    """Return AutoModel's installed version, by default the latest that is known here."""
    known = program.versions.get("nemo_automodel") or program.versions.get("nemo-automodel")
    return version_tuple(known) or _LATEST


def named_strategy(settings: LayeredSettings) -> Setting | None:
    """Return the strategy: FSDP2 where only sizes are given; None where no setting concerns several ranks."""
    named = settings.find("distributed.strategy", "distributed._target_", "distributed_config._target_")
    sized = [name for name in _SIZE_NAMES if settings.find(f"distributed.{name}_size") is not None]
    if named is None and sized:
        return default_setting("fsdp2", "Automodel's default strategy")
    return named


def strategy_of(program: Program, settings: LayeredSettings) -> Strategy | None:
    """Return the job's strategy; None: one rank, whose model is not spread, or nothing says anything about ranks."""
    named = named_strategy(settings)
    if named is None or as_int(world_size(program, settings).ranks) == 1:
        return None
    return STRATEGIES[_STRATEGIES.get(as_word(named) or "", "fsdp2")]


def is_known(named: Setting) -> bool:
    """Return True for a strategy with rules."""
    return (as_word(named) or "") in _STRATEGIES


def world_size(program: Program, settings: LayeredSettings) -> WorldSize:
    """Return the number of ranks; ``automodel`` itself starts one per GPU, or as many as ``--nproc-per-node``."""
    per_node = settings.find("nproc_per_node")
    if "tool" not in program.launcher.launchers or "RANK" in program.environ:
        return read_world_size(program.launcher, LayeredSettings(), program.environ, findings=program.findings)
    return checked_ranks(None if as_word(per_node) in ("gpu", "auto") else per_node, program.findings)
