"""Flags as people type them: other tools' names, values that are left out, contradictions."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job, Rollout
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.job_file.table_fields import job_keys
from vramtop.estimator.job.settings import Lora, ModelSpec
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.trl.read_method import read_method
from vramtop.tui.job.flags.familiar import FAMILIAR_FLAGS
from vramtop.tui.job.flags.gpu_flags import GpuAction, GpuCountAction
from vramtop.tui.job.flags.job_flags import add_job_arguments, job_flags
from vramtop.tui.job.flags.settings import FlagSettings, settings_of_flags
from vramtop.tui.job.flags.words import normal_words
from vramtop.tui.job.load_job import load_from_options


def typed(line: str, *, gpus: int | None = None, model_alone: bool = False) -> FlagSettings:
    """What a command line sets, after the command."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_job_arguments(parser)
    options = parser.parse_args(normal_words(line.split()))
    assert options.job in (None, "llama-3.1-8b")
    return settings_of_flags(options.flags, gpus=gpus, model_alone=model_alone)


def job(line: str, *, gpus: int | None = None) -> Job:
    settings = typed(line, gpus=gpus)
    return settings.complete(with_changes(Job(model=ModelSpec(id="gpt2")), settings.changes))


@pytest.mark.parametrize(
    ("lines", "changes"),
    [
        ("--batch-size 4 | --per_device_train_batch_size=4 | -b 4 | -b4 | --bs=4", {"training.micro_batch": 4}),
        ("--gradient-accumulation-steps 8", {"training.gradient_accumulation": 8}),
        ("--seq-len 4k | --max_len 4K | --max_seq_length 4,096 | --ctx 4096", {"training.sequence_length": 4096}),
        ("--seq 128k | --context_len 128k | --sequence-length 128k", {"training.sequence_length": 131072}),
        ("--batch 8 --seq 2k | -bs 8 -seq 2k", {"training.micro_batch": 8, "training.sequence_length": 2048}),
        ("--context 2", {"parallel.context": 2}),
        ("--lora --rank 8 | --lora --lora-r 8", {"lora.rank": 8}),
        ("--lora-targets q_proj,v_proj", {"lora.targets": ["q_proj", "v_proj"]}),
        ("--lora-targets ['q_proj']", {"lora.targets": ["q_proj"]}),
        ("--gc llama-3.1-8b | --grad-ckpt llama-3.1-8b", {"training.activation_checkpointing": "full"}),
        ("--gradient-checkpointing llama-3.1-8b", {"training.activation_checkpointing": "full"}),
        ("--gradient_checkpointing False", {"training.activation_checkpointing": "none"}),
        ("--activation-checkpointing llama-3.1-8b", {"training.activation_checkpointing": "full"}),
        ("--activation-checkpointing selective", {"training.activation_checkpointing": "selective"}),
        (
            "--use-gradient-checkpointing unsloth",
            {"training.activation_checkpointing": "full", "training.activation_offload": True},
        ),
        ("--lora llama-3.1-8b", {"lora.rank": 16}),
        ("--lora 64", {"lora.rank": 64}),
        ("--qlora llama-3.1-8b", {"lora.rank": 16, "lora.quantization": "nf4-double", "lora.targets": "all-linear"}),
        ("--load-in-8bit | --quantization_bit 8", {"lora.quantization": "int8"}),
        ("--bits 4 --double_quant --lora_r 64", {"lora.rank": 64, "lora.quantization": "nf4-double"}),
        ("--awq --lora 8", {"lora.rank": 8, "lora.quantization": "int4"}),
        ("--use_peft --lora_target_modules all-linear", {"lora.rank": 16, "lora.targets": "all-linear"}),
        ("--full-finetune", {"lora": None}),
        ("--pure-bf16 | --precision bfloat16", {"training.precision": "bf16"}),
        ("--precision 16-mixed", {"training.precision": "fp16-mixed"}),
        ("--adafactor", {"training.optimizer": "adafactor"}),
        ("--optim paged_adamw_8bit", {"training.optimizer": "paged-adamw-8bit"}),
        ("--optimizer adamw_torch_fused", {"training.optimizer": "adamw-fused"}),
        ("--offload-optimizer", {"parallel.cpu_offload": "optimizer"}),
        ("--task SEQ_CLS", {"model.task": "sequence-classification"}),
        (
            "--unsloth",
            {
                "training.loss": "unsloth",
                "training.activation_checkpointing": "full",
                "training.activation_offload": True,
            },
        ),
        (
            "--unsloth --gradient-checkpointing false",
            {"training.loss": "unsloth", "training.activation_checkpointing": "none"},
        ),
        ("--liger", {"training.loss": "fused-linear"}),
        (
            "--flash-attention llama-3.1-8b | --attention flash-attention-2",
            {"model.attention": "flash_attention_2"},
        ),
        ("--attn_implementation flash_attention_3", {"model.attention": "flash_attention_3"}),
        ("--compile llama-3.1-8b", {"training.compile": True}),
        ("--tp 2 --pp 2 | -tp 2 -pp 2", {"parallel.tensor": 2, "parallel.pipeline": 2}),
        ("--fsdp 8", {"parallel.strategy": "fsdp2", "parallel.data_shard": 8}),
        ("--fsdp_sharding_strategy FULL_SHARD", {"parallel.strategy": "fsdp1", "parallel.sharding": "full"}),
        ("--ddp 4", {"parallel.strategy": "ddp", "parallel.data_replicate": 4}),
        ("--learning-rate 2e-5 --num-train-epochs 3 --tf32 llama-3.1-8b --packing True", {}),
    ],
)
def test_names_of_other_tools_set_what_those_tools_set(lines: str, changes: dict[str, Any]) -> None:
    for line in lines.split(" | "):
        assert typed(line).changes == changes, line


@pytest.mark.parametrize(
    ("line", "gpus", "sizes"),
    [
        ("--zero 3", 8, ("zero3", 8, 1)),
        ("--zero 3 --tp 2", 8, ("zero3", 4, 1)),
        ("--zero3", 8, ("zero3", 8, 1)),
        ("--deepspeed ZeRO-3", 8, ("zero3", 8, 1)),
        ("--zero2", 4, ("zero2", 4, 1)),
        ("--zero3", None, ("zero3", 1, 1)),
        ("--strategy fsdp2", 4, ("fsdp2", 4, 1)),
        ("--strategy fsdp2 --data-shard 2", 4, ("fsdp2", 2, 1)),
        ("--fsdp", 4, ("fsdp2", 4, 1)),
        ("--fsdp 2", 8, ("fsdp2", 8, 1)),
        ("--fsdp 1", 4, ("fsdp1", 4, 1)),
        ("--fsdp 2 --tp 2", 4, ("fsdp2", 2, 1)),
        ("--fsdp full_shard", 4, ("fsdp1", 4, 1)),
        ("--ddp", 2, ("ddp", 1, 2)),
        ("--num-processes 8", None, ("ddp", 1, 8)),
        ("--nproc-per-node 8 --nnodes 2 --zero 2", None, ("zero2", 16, 1)),
        ("--batch-size 1", 8, ("none", 1, 1)),
    ],
)
def test_a_strategy_is_spread_over_the_gpus(line: str, gpus: int | None, sizes: tuple[str, int, int]) -> None:
    parallel = job(line, gpus=gpus).parallel
    assert (parallel.strategy, parallel.data_shard, parallel.data_replicate) == sizes


SPREAD_OVER_TWO = ("--lora", "--lora --ddp", "--lora --tp 2", "--inference", "--device-map auto")


def test_one_process_takes_several_gpus_with_a_device_map_only() -> None:
    said = "The job runs on one of the 2 GPUs"
    remarks = {line: typed(line, gpus=2, model_alone=True).remarks for line in SPREAD_OVER_TWO}
    assert [line for line, found in remarks.items() if any(said in each for each in found)] == ["--lora"]
    assert job("--device-map auto", gpus=2).parallel.pipeline == 2
    assert job("--device-map auto --pipeline 4", gpus=8).parallel.pipeline == 4


@pytest.mark.parametrize(
    ("line", "changes", "precision"),
    [
        ("--bf16", {}, "bf16"),  # transformers 5 loads weights as the checkpoint has them
        ("--bf16 True", {}, "bf16"),
        ("--bf16 false", {}, "auto"),
        ("--fp16 false --bf16", {}, "bf16"),
        ("--bf16 --torch_dtype float32", {}, "bf16-mixed"),
        ("--dtype float32", {}, "fp32"),
        ("--dtype auto", {}, "auto"),
        ("--bf16 --zero2", {}, "bf16-mixed"),  # DeepSpeed keeps an fp32 copy
        ("--bf16 --fsdp 2", {}, "bf16-mixed"),  # so does accelerate under FSDP
        ("--bf16 --fsdp 2 --lora", {}, "bf16"),  # of weights that train
        ("--fp16 --inference", {}, "fp16"),
        ("--bf16", {"model.id": "gpt2"}, "bf16-mixed"),  # whose checkpoint is fp32
        ("--fp16", {"model.id": "llama-2-7b"}, "fp16-mixed"),  # gradients in fp16 cannot be unscaled
        ("--bf16 --lora", {"model.id": "gpt2"}, "bf16-mixed"),
        ("--bf16 --lora", {}, "bf16"),
        ("--bf16 --inference", {"model.id": "gpt2"}, "bf16"),
        ("--bf16", {"software.transformers": "4.57"}, "bf16-mixed"),  # which loads fp32
        ("--bf16 --framework torchtitan", {}, "bf16-mixed"),
        ("--fp16 --framework torchtune", {}, "fp16"),
    ],
)
def test_mixed_precision_leaves_the_weights_as_the_library_loads_them(line, changes, precision) -> None:
    given = typed(line)
    named = with_changes(Job(model=ModelSpec(id="llama-3.1-8b")), {**given.changes, **changes})
    assert given.complete(named).training.precision == precision


@pytest.mark.parametrize(
    ("words", "autocast"),
    [
        (["--bf16", "--lora"], True),
        (["--mixed-precision", "bf16", "--dtype", "bfloat16", "--lora"], True),
        (["--sft", "--lora", "--dtype", "bfloat16"], True),  # whose trainer sets bf16
        (["--bf16", "--lora", "--lora-autocast", "false"], False),
        (["--pure-bf16", "--lora"], None),
        (["--lora"], None),
    ],
)
def test_bf16_over_adapters_is_the_trainers_autocast(words: list[str], autocast: bool | None) -> None:
    lora = loaded("--model", "llama-3.1-8b", *words, model=None)[0].lora
    assert lora.autocast is autocast


def test_a_global_batch_is_divided() -> None:
    assert job("--train_batch_size 64 --gradient_accumulation_steps 2 --zero 2", gpus=8).training.micro_batch == 4
    accumulated = job("--global-batch-size 64 --micro-batch-size 2 --num-processes 8").training
    assert (accumulated.micro_batch, accumulated.gradient_accumulation) == (2, 4)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--bf16 --fp16", "--bf16 and --fp16 contradict"),
        ("--precision fp16-mixed --bf16", "--precision and --bf16 contradict"),
        ("--micro-batch 4 --batch-size 2", "--micro-batch and --batch-size contradict"),
        ("--qlora --8bit", "--qlora and --8bit contradict"),
        ("--full --lora", "--full and --lora contradict"),
        ("--lora-rank 8 --full", "--full and --lora-rank contradict"),
        ("--zero 3 --fsdp 8", "--zero and --fsdp contradict"),
        ("--zero 3", "give the number of GPUs with --gpus N"),
        ("--zero 5", "--zero: '5' is not a ZeRO stage"),
        ("--zero2 --zero3", "--zero2 and --zero3 contradict"),
        ("--dpo --grpo", "--dpo and --grpo contradict each other (training method)"),
        ("--seq-len abc", "--seq-len: 'abc' is not a number of tokens, such as 4096 or 4k"),
        ("--ctx 0", "--ctx: 0 is not a whole number of at least 1"),
        ("--batch-size 2.5", "--batch-size: 2.5 is not a whole number"),
        ("--micro-batch abc", "--micro-batch: 'abc' is not a whole number"),
        ("--optim adamx", "--optim: 'adamx' is not known; did you mean"),
        ("--strategy zero4", "--strategy: 'zero4' is not one of none"),
        (
            "--context 8192",
            "--context: it is the number of GPUs that share a sequence; for the length write --seq-len 8192",
        ),
        ("--cp 8k", "--cp: it is the number of GPUs that share a sequence; for the length write --seq-len 8k"),
        ("--lora=all", "--lora: 'all' is not a whole number"),
        ("--num-processes 8 --tp 3", "8 GPUs cannot be split into groups of 3"),
        ("--global-batch-size 63 --num-processes 8", "a global batch of 63 cannot be divided by 8 GPUs"),
    ],
)
def test_what_contradicts_or_is_open_is_one_sentence(line: str, words: str) -> None:
    with pytest.raises(InputError) as failed:
        job(line)
    assert words in failed.value.message


def loaded(*words: str, model: str | None = "gpt2") -> tuple[Job, tuple[str, ...]]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_job_arguments(parser)
    line = [*([] if model is None else [model]), *words]
    loaded = load_from_options(parser.parse_args(normal_words(line)), None)
    return loaded.job, loaded.notes


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--dpo"], (2, "chunked", True, ["reference"], None)),
        (["--dpo", "--lora"], (2, "chunked", True, [], None)),
        (["--dpo", "--lora", "--liger"], (2, "chunked", True, [], None)),
        (["--dpo", "--loss", "log-probs"], (2, "log-probs", True, ["reference"], None)),
        (["--dpo", "--set", "software.trl=1.14"], (2, "log-probs", True, ["reference"], None)),
        (["--orpo", "--lora"], (2, "log-probs", False, [], None)),
        (["--kto"], (1, "chunked", True, ["reference"], None)),
        (["--grpo", "--grad-accum", "4"], (1, "chunked", False, [], Rollout(micro_batches=4))),
        (["--grpo", "--set", "rollout.engine=vllm"], (1, "chunked", False, [], Rollout(engine="vllm"))),
    ],
)
def test_a_training_method_brings_what_its_trainer_holds(words: list[str], settings: tuple[Any, ...]) -> None:
    job, notes = loaded(*words)
    training, roles = job.training, [model.role for model in job.other_models]
    assert (training.sequences_per_example, training.loss, training.reference_pass, roles, job.rollout) == settings
    assert f"{words[0]}: training." in notes[-1]
    assert "trl (version not known, 1.16 assumed)" in notes[-1] or "software" in str(words)


def test_a_reward_model_has_one_output_for_two_sequences() -> None:
    for words in (["--reward"], ["--task", "reward"], ["--stage", "rm"]):
        job, _ = loaded(*words)
        assert (job.model.task, job.model.num_labels) == ("sequence-classification", 1)
        assert job.training.sequences_per_example == 2


def test_arguments_of_trl_count_where_its_trainer_has_them() -> None:
    held, _ = loaded("--grpo", "--beta", "0.1")
    assert [model.role for model in held.other_models] == ["reference"]
    assert loaded("--grpo", "--beta", "0")[0].other_models == []
    assert "--beta: GPU memory does not depend on it." in loaded("--dpo", "--beta", "0.1")[1]
    served, _ = loaded("--grpo", "--use-vllm", "--vllm-gpu-memory-utilization", "0.2")
    assert served.rollout == Rollout(engine="vllm", gpu_memory_utilization=0.2)
    assert loaded("--grpo", "--use-vllm", "--vllm-mode", "server")[0].rollout is None
    with pytest.raises(InputError, match=r"only affects completions of --grpo and --rloo; .* --engine vllm"):
        loaded("--use-vllm")


def test_weights_of_a_model_from_scratch_may_be_fp32() -> None:
    job, notes = loaded("--from-scratch")
    assert (job.lora, job.unsure.weights, job.unsure.optimizer) == (None, "more", "more")
    assert any("--dtype float32" in note for note in notes)
    assert loaded("--from-scratch", "--dtype", "float32")[0].unsure.weights == "no"


def test_a_method_reads_as_its_trl_line(tmp_path: Path) -> None:
    line = "trl dpo --model_name_or_path gpt2 --load_in_4bit --use_peft --max_length 2048"
    lora = Lora(rank=16, quantization="nf4")
    flagged = {finding.key: finding.value for finding in read_method("dpo", Job(model=ModelSpec(id="gpt2"), lora=lora))}
    launched = {each.key: each.value for each in read_launch(line.split(), environ={}, cwd=tmp_path).findings}
    assert flagged
    assert flagged == {key: launched[key] for key in flagged}


def test_a_method_that_trains_is_none_of_inference() -> None:
    with pytest.raises(InputError, match="--dpo is a training method"):
        loaded("--dpo", "--inference")


@pytest.mark.parametrize(
    ("words", "name"),
    [(["--trainable", "foo"], "--trainable"), (["--set", "training.trainable=foo"], "training.trainable")],
)
def test_a_pattern_that_matches_nothing_is_named_as_it_was_given(words: list[str], name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: no parameter of this model matches 'foo'"):
        loaded(*words)


@pytest.mark.parametrize(
    ("line", "gpu", "card", "count"),
    [
        ("--gpu 0,1", "0,1", None, None),
        ("--gpu 12", "12", None, None),
        ("--gpu h100", None, "h100", None),
        ("--gpu 4090", None, "4090", None),
        ("--gpu=RTX 4090", None, "RTX 4090", None),
        ("--gpu 8xh100", None, "h100", 8),
        ("--gpu H100:8", None, "H100", 8),
        ("--gpus 8", None, None, 8),
        ("--gpus 8xH100", None, "H100", 8),
        ("--gpus H100:8", None, "H100", 8),
    ],
)
def test_a_gpu_is_an_index_or_a_card_and_a_number_may_name_the_card(line, gpu, card, count) -> None:
    parser = argparse.ArgumentParser()
    parser.set_defaults(gpu_type=None)
    parser.add_argument("--gpu", action=GpuAction)
    parser.add_argument("--gpus", action=GpuCountAction)
    options = parser.parse_args([line] if "=" in line else line.split())
    assert (options.gpu, options.gpu_type, options.gpus) == (gpu, card, count)


def test_vramtops_own_flag_replaces_another_name_before_it() -> None:
    """A suggestion is pasted behind the command line that it is for."""
    given = typed("-b 8 --fp32 --full --micro-batch 4 --precision bf16 --lora-rank 8")
    assert given.changes == {"training.micro_batch": 4, "training.precision": "bf16", "lora.rank": 8}
    assert given.remarks == ("--micro-batch 4 replaces -b.", "--precision bf16 replaces --fp32.")
    assert typed("--bf16 --precision fp16-mixed").changes == {"training.precision": "fp16-mixed"}


def test_the_same_setting_twice_is_no_contradiction() -> None:
    assert typed("--batch-size 2 --micro-batch 2").changes == {"training.micro_batch": 2}
    assert typed("--batch-size 2 --batch-size 4").changes == {"training.micro_batch": 4}


def test_the_output_says_what_a_name_means_about_which_tools_differ() -> None:
    (remark,) = typed("--gbs 8").remarks
    assert remark.startswith("--gbs: all sequences of an optimizer step")
    (ignored,) = typed("--lr 1e-4").remarks
    assert "does not depend on it" in ignored


def test_no_name_is_used_twice_and_each_says_what_it_means() -> None:
    names = [name for flag in FAMILIAR_FLAGS for name in flag.names]
    assert len(names) == len(set(names))
    assert not set(names) & set(job_flags())
    assert all(flag.meaning.endswith(".") for flag in FAMILIAR_FLAGS)


def test_each_familiar_flag_sets_keys_that_exist() -> None:
    examples = {"N": "2", "RANK": "8", "STAGE": "3", "NAMES": "q_proj", "SHARE": "0.5", "FOLDER": "out"}
    examples |= {"TYPE": "fp8", "NAME": "fp8", "NUMBER": "0.1", "SIZE": "64"}
    own = {"--optim": "adamw_torch", "--attn-implementation": "sdpa"}
    for flag in FAMILIAR_FLAGS:
        for text in flag.choices or (own.get(flag.names[0]) or examples.get(flag.placeholder, "adamw_torch"),):
            method = [("--grpo", "")] if flag.meaning.startswith("TRL's") else []
            settings = settings_of_flags([(flag.names[0], text), *method])
            assert set(settings.changes) <= {*job_keys(), "lora"}
