"""Versions of the frameworks that a job uses, and the defaults that depend on them."""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from ...job.rules.frameworks import STORED, usual
from ...job.rules.optimizers.table import OPTIMIZERS
from .evidence import Setting, default_layer

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_ASSUMED = {"transformers": "5.23", "trl": "1.16", "peft": "0.17", "torch": "2.8"}


class AssumedVersion(str):
    """A version that is not known, and why it is assumed."""

    __slots__ = ("why",)

    why: str

    def __new__(cls, version: str, why: str) -> "AssumedVersion":
        """Return a version with its reason."""
        made = super().__new__(cls, version)
        made.why = why
        return made


def version_tuple(text: str | None) -> tuple[int, ...] | None:
    """Return ``(5, 2)`` for ``5.2.0.dev0``, which is enough to compare; None if the version is unknown."""
    numbers = _NUMBER.findall(text or "")
    return (int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0) if numbers else None


def is_at_least(framework: str, version: tuple[int, int], versions: Mapping[str, str]) -> bool:
    """Return True if the installed version, or the assumed one if none is known, is not older."""
    return (version_tuple(versions.get(framework)) or version_tuple(_ASSUMED[framework]) or (0, 0)) >= version


def framework_with_version(framework: str, versions: Mapping[str, str]) -> str:
    """Return ``transformers 5.2.0``, or ``transformers (version not known, 5.23 assumed)``."""
    known = versions.get(framework)
    if isinstance(known, AssumedVersion):
        return f"{framework} (version not known, {known} assumed: {known.why})"
    return f"{framework} {known}" if known else f"{framework} (version not known, {_ASSUMED[framework]} assumed)"


def transformers_defaults(versions: Mapping[str, str]) -> dict[str, Setting]:
    """Return the defaults of TrainingArguments and ``from_pretrained`` (transformers' ``training_args.py``)."""
    optimizer = OPTIMIZERS[usual("transformers", "training.optimizer", versions)]
    stored = usual("transformers", "training.precision", versions) == STORED
    values = {
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "optim": optimizer.trainer_names[0],
        "activation_checkpointing": False,
        "dtype": "auto" if stored else "float32",
        "fsdp_version_default": 2 if is_at_least("transformers", (5, 10), versions) else 1,
    }
    return default_layer(values, f"default of {framework_with_version('transformers', versions)}")


# Calls and arguments that today's libraries refuse: a script that has them runs with an older version.


_LENGTHS = ("max_length", "max_prompt_length", "max_target_length")


class OldCall(Struct, frozen=True, kw_only=True):
    """Something that a library took until a version."""

    library: str
    last: str
    """The last minor version that takes it."""
    source: str
    call: str = ""
    """The end of the name of a function, class or method; empty: ``names`` are called or imported from."""
    names: frozenset[str]
    """Arguments of the call; without one a function, class or module."""
    transformers: str | None = None
    """transformers' version of the same time, for another library."""


OLD_CALLS = (
    OldCall(
        library="transformers",
        last="4.49",
        names=frozenset({"AdamW"}),
        source="pull request 36177 (optimization.py: 4.49.0 has it, 4.50.3 has not)",
    ),
    OldCall(
        library="transformers",
        last="4.50",
        call="TrainingArguments",
        names=frozenset({"evaluation_strategy", "split_batches", "dispatch_batches"}),
        source="training_args.py (4.50.3 has them, 4.51.3 has not)",
    ),
    OldCall(
        library="transformers",
        last="4.52",
        call="from_pretrained",
        names=frozenset({"use_flash_attention_2"}),
        source="modeling_utils.py (4.52.4 has it, 4.53.3 has not)",
    ),
    OldCall(
        library="transformers",
        last="4.57",
        call="from_pretrained",
        names=frozenset({"load_in_8bit", "load_in_4bit"}),
        source="modeling_utils.py (4.57.1 has them, 5.0.0 has not)",
    ),
    OldCall(
        library="transformers",
        last="4.57",
        call="Trainer",
        names=frozenset({"tokenizer"}),
        source="trainer.py (4.57.1 renames it, until version 5.0.0)",
    ),
    OldCall(
        library="transformers",
        last="4.57",
        call="TrainingArguments",
        names=frozenset(
            (
                *("adafactor", "fp16_backend", "fp16_opt_level", "fsdp_min_num_params"),
                *("fsdp_transformer_layer_cls_to_wrap", "half_precision_backend"),
                *("include_inputs_for_metrics", "include_tokens_per_second", "jit_mode_eval"),
                *("mp_parameters", "no_cuda", "overwrite_output_dir", "past_index"),
                *("per_gpu_eval_batch_size", "per_gpu_train_batch_size", "push_to_hub_model_id"),
                *("push_to_hub_organization", "push_to_hub_token", "ray_scope", "save_safetensors"),
                *("torchdynamo", "tpu_metrics_debug", "tpu_num_cores", "use_ipex"),
                *("use_legacy_prediction_loop", "use_mps_device"),
            )
        ),
        source="training_args.py (4.57.1 has them, 5.0.0 has not)",
    ),
    OldCall(
        library="peft",
        last="0.9",
        names=frozenset({"prepare_model_for_int8_training"}),
        source="utils/other.py (removed in 0.10.0, of March 2024)",
        transformers="4.38",
    ),
    OldCall(
        library="trl",
        last="0.12",
        names=frozenset({"commands"}),
        source="trl/commands (0.12.2 has it, 0.13.0 of December 2024 has not)",
        transformers="4.47",
    ),
    OldCall(
        library="trl",
        last="0.12",
        call="SFTTrainer",
        names=frozenset(
            (
                *("dataset_text_field", "packing", "max_seq_length", "infinite", "num_of_sequences"),
                *("chars_per_token", "dataset_num_proc", "dataset_batch_size", "neftune_noise_alpha"),
                *("model_init_kwargs", "dataset_kwargs", "eval_packing"),
            )
        ),
        source="trainer/sft_trainer.py (0.12.0 has them, 0.13.0 has not)",
        transformers="4.47",
    ),
    OldCall(
        library="trl",
        last="0.12",
        call="DPOTrainer",
        names=frozenset(
            (
                *("beta", "label_smoothing", "loss_type", "precompute_ref_log_probs", "model_init_kwargs"),
                *("ref_model_init_kwargs", "truncation_mode", "generate_during_eval", "is_encoder_decoder", *_LENGTHS),
            )
        ),
        source="trainer/dpo_trainer.py (0.12.0 has them, 0.13.0 has not)",
        transformers="4.47",
    ),
    OldCall(
        library="trl",
        last="0.15",
        call="SFTTrainer",
        names=frozenset({"tokenizer"}),
        source="trainer/sft_trainer.py (0.15.0 renames it, until 0.16.0 of March 2025)",
        transformers="4.50",
    ),
    OldCall(
        library="trl",
        last="0.19",
        call="SFTConfig",
        names=frozenset({"max_seq_length"}),
        source="trainer/sft_config.py (0.19.1 has it, 0.20.0 of July 2025 has not)",
        transformers="4.54",
    ),
)


def old_names(path: str) -> Iterator[tuple[OldCall, str]]:
    """Yield what of a called name is old: ``transformers.AdamW``, ``trl.commands.cli_utils.TrlParser``."""
    library, _, rest = path.partition(".")
    for row in OLD_CALLS:
        if not row.call and row.library == library and not row.names.isdisjoint(rest.split(".")):
            yield row, path


def old_arguments(library: str, name: str, arguments: Iterable[str]) -> Iterator[tuple[OldCall, str]]:
    """Yield what of a call is old, with the argument.

    Args:
        library: whose function it is.
        name: the last part of its name.
        arguments: those that it is given by name.
    """
    for row in OLD_CALLS:
        if row.call and row.library == library and name.endswith(row.call):
            yield from ((row, argument) for argument in arguments if argument in row.names)


def assumed_versions(found: Mapping[OldCall, str], versions: Mapping[str, str]) -> dict[str, AssumedVersion]:
    """Return the newest versions that take all that a script has, of the libraries whose version is not known.

    Args:
        found: what it has that newer ones refuse, and where.
        versions: the known ones.
    """
    assumed: dict[str, AssumedVersion] = {}
    for row, where in found.items():
        takes = f"the last that takes {where}"
        of_its_time = f"as old as {row.library} {row.last}, {takes}"
        for library, last, why in ((row.library, row.last, takes), ("transformers", row.transformers, of_its_time)):
            if last is None or library in versions:
                continue
            before = version_tuple(assumed.get(library))
            if before is None or (version_tuple(last) or before) < before:
                assumed[library] = AssumedVersion(last, why)
    return assumed
