"""The pages of what is known by name: models, their families, frameworks, strategies, precisions, tools, optimizers."""

from collections.abc import Sequence

from vramtop.estimator.job.rules.frameworks import FRAMEWORKS, Framework
from vramtop.estimator.job.rules.library_defaults import DEFAULTS, Default
from vramtop.estimator.job.rules.optimizers.optimizer import Optimizer
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS
from vramtop.estimator.job.rules.strategies import PRECISIONS, STRATEGIES, Strategy
from vramtop.estimator.model.families.registry import FAMILIES
from vramtop.estimator.model.find_config import built_in_models
from vramtop.estimator.program.diffusion_models import diffusion_models
from vramtop.estimator.program.named_models import named_models
from vramtop.estimator.readers.tools.tool_registry import all_tools

from .markdown import bullets, code, codes, page, table

_MODELS = """\
A model is named by a built-in name, a Hugging Face id, a folder with a `config.json`, or `module:callable` of your
own. Of a Hugging Face id that is nowhere here, commands fetch the `config.json`, that file alone; the setting
`estimates.download = false` turns that off."""
_BUILT_IN = """\
They need no file and no network. Case and punctuation do not matter: `llama-3.1-8b`. `vramtop models` lists them with
their hub ids, parameters and bytes. `-text` is the language part of a model that reads images too."""
_NAMED = """\
vramtop [rehearses their training script](../how-to/before-launch.md#models-of-images-audio-and-video). `vramtop models`
lists their hub ids and other names. Models of torchvision and timm have the names of these libraries."""
_DIFFUSED = """\
They train adapters by default (`--full`: all parameters), in the loop of diffusers' example, with images of the stated
size. Fine-tunes of these models are named by the folder or hub id of their pipeline."""
_FAMILIES = """\
Of these families (`model_type` in `config.json`), parameters are counted exactly from the config; tests compare them
with the models that transformers builds. Another family is read as a decoder like Llama's, and an assumption says so;
`--method exact` and `traced` count the built model, whatever its family."""
_TOOLS = """\
vramtop reads their configuration files and launch lines (`vramtop fit config.yml`, `vramtop fit -- tune run ...`), and
scripts of your own, TRL's or transformers' Trainer under `torchrun`, `accelerate launch`, `deepspeed`, `srun` or
`mpirun`, with accelerate's and DeepSpeed's configurations."""
_DEFAULTS = """\
A setting that a job leaves out, or sets to `auto`, has the default of the library's newest version. `stored` is the
type in the checkpoint's `config.json`: fp32 if it has none, bf16 if the config is written out in a job file. Under
ZeRO, `bf16` becomes `bf16-mixed`, because DeepSpeed keeps an fp32 copy. Those of `peft` are for adapters over quantized
weights."""
_SHARDED = {
    0: "nothing",
    1: "optimizer states",
    2: "optimizer states, gradients",
    3: "weights, gradients, optimizer states",
}


def models_page() -> str:
    """Return the page of models and families."""
    named: dict[str, list[str]] = {}
    for model in named_models():
        named.setdefault(model.task, []).append(_short_name(model.id, model.aliases))
    diffused: dict[str, list[str]] = {}
    for model in diffusion_models():
        size = f"{model.size[0]} x {model.size[1]}"
        diffused.setdefault(size, []).append(_short_name(model.id, model.aliases))
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, family in sorted(FAMILIES.items()):
        alike.setdefault((family.stack, tuple(family.tasks)), []).append(name)
    families = [(codes(names), stack, codes(tasks)) for (stack, tasks), names in alike.items()]
    return page(
        "Models",
        _MODELS,
        "## Built-in models",
        _BUILT_IN,
        codes(model.label.replace(" ", "-") for model in built_in_models()),
        "## Models that are given images or audio",
        _NAMED,
        bullets(f"{task}: {', '.join(models)}" for task, models in named.items()),
        "## Diffusion models",
        _DIFFUSED,
        bullets(f"{pixels}: {', '.join(models)}" for pixels, models in diffused.items()),
        "## Families that are known exactly",
        _FAMILIES,
        table(("model_type", "stack", "tasks"), families),
    )


def _short_name(name: str, aliases: Sequence[str]) -> str:
    return code(min(aliases, key=len) if aliases else name)


def frameworks_page() -> str:
    """Return the page of frameworks, strategies, precisions and tools."""
    frameworks = (
        f"{code(name)}{_with(row)}; needs {codes(dict.fromkeys((*row.libraries, *row.training_libraries)))}"
        for name, row in FRAMEWORKS.items()
    )
    strategies = (f"{code(name)}: {_strategy(row)}" for name, row in STRATEGIES.items())
    defaults: dict[str, list[str]] = {}
    for row in DEFAULTS:
        defaults.setdefault(row.library, []).append(_default(row))
    tools = [
        (
            tool.name,
            ", ".join(
                code(" ".join(filter(None, (command.name, "|".join(sorted(command.subcommands or ()))))))
                for command in tool.commands
            )
            or "its training scripts, under `python` or `torchrun`",
        )
        for tool in sorted(all_tools(), key=lambda tool: tool.name.casefold())
    ]
    return page(
        "Frameworks, strategies and tools",
        "## Frameworks",
        "Values of `training.framework`: the library that runs the training loop, whose loss, casts and buffers count; "
        "with what it can do.",
        bullets(frameworks),
        "## Strategies",
        "Values of `parallel.strategy`, with what the data-parallel ranks shard.",
        bullets(strategies),
        "## Precisions",
        f"Values of `training.precision`: {codes(PRECISIONS)}. Weights have this type, and so has computation; with "
        "`-mixed`, weights are fp32 and computation is under autocast.",
        "## Defaults",
        _DEFAULTS,
        bullets(f"{library}: {', '.join(rows)}" for library, rows in defaults.items()),
        "## Tools that are read",
        _TOOLS,
        bullets(f"{tool}: {commands}" for tool, commands in tools),
    )


def _with(row: Framework) -> str:
    """Return what a framework can do."""
    found = {
        "LoRA": row.adapters,
        "activation offload": row.offloads_activations,
        "selective checkpointing": row.selective_checkpointing,
        f"{code(row.available_loss or '')} loss": row.available_loss,
    }
    able = ", ".join(name for name, has in found.items() if has)
    return f": {able}" if able else ""


def _strategy(row: Strategy) -> str:
    """Return what a strategy shards and allows."""
    found = (
        _sharded(row),
        f"CPU offload {codes(row.cpu_offload)}" if row.cpu_offload else "",
        "4-bit frozen weights" if row.quantized_weights else "",
        f"needs {codes(row.libraries)}" if row.libraries else "",
    )
    return "; ".join(filter(None, found))


def _default(row: Default) -> str:
    versions = " or ".join(f"{name} {'.'.join(map(str, version))}" for name, version in row.before)
    past = f" (before {versions}: {code(row.older)})" if row.before else ""
    return f"{code(f'{row.key} = {str(row.value).lower()}')}{past}"


def optimizer_names() -> str:
    """Return the names of the optimizers by the size of their states."""
    by_size: dict[str, list[str]] = {}
    for row in OPTIMIZERS.values():
        sizes = ", ".join(dict.fromkeys((_bytes(row, 2), _bytes(row, 4))))
        where = " in CPU RAM" if row.on_host else " paged" if row.paged else ""
        others = codes(name for name in row.trainer_names if name.replace("_", "-") != row.name)
        by_size.setdefault(f"{sizes}{where}", []).append(f"{code(row.name)}{f' ({others})' if others else ''}")
    return bullets(f"{size}: {', '.join(names)}" for size, names in by_size.items())


class _Matrix:
    """A weight of a linear layer in a block, of 4096 x 4096."""

    name, role, linear, layered = "model.layers.0.mlp.up_proj.weight", "weight", True, True
    shape = (4096, 4096)


def _bytes(row: Optimizer, width: int) -> str:
    """Return the states of a square matrix of a block, in bytes per element."""
    size = row.state_bytes(_Matrix(), width) / (4096 * 4096)
    return f"{size:.2f}".rstrip("0").rstrip(".")


def _sharded(row: Strategy) -> str:
    first = _SHARDED[row.zero_stage] if row.replicates else "one GPU, or ranks that share nothing"
    others = "; ".join(f"`{name}`: {_SHARDED[stage]}" for name, stage in row.stages_by_sharding.items())
    return f"{first} (`parallel.sharding` {others})" if others else first
