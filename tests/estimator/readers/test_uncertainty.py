"""A setting that is not understood widens the range by the components it concerns; other settings do not."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Uncertainties
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading
from vramtop.estimator.readers.source.settings import Setting

Read = Callable[[str], JobReading]
TRAINER = "python t.py --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2 --max_length 512"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nmicro_batch_size: 2\nsequence_len: 512\n"


STATES = ("weights", "gradients", "optimizer")
LESS = Uncertainties(**dict.fromkeys((*STATES, "activations"), "less"))
EITHER = Uncertainties(**dict.fromkeys((*STATES, "activations"), "either"))


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads the launch line of an empty script, with an empty environment.

    That a script is read widens the range of each; the test of that is below.
    """
    (tmp_path / "t.py").touch()
    versions = {"transformers": "5.2.0"}
    return lambda line: replace(
        read_launch(shlex.split(line), environ={}, cwd=tmp_path, versions=versions), script=None
    )


def test_what_is_read_in_a_script_is_never_a_narrow_figure(tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    reading = read_launch(shlex.split(TRAINER), environ={}, cwd=tmp_path)
    read, described = (estimate(job, method="formula") for job in (reading.job(), replace(reading, script=None).job()))
    peak = read.peak
    assert peak.device_bytes == described.peak.device_bytes
    assert peak.low_bytes <= peak.device_bytes // 2
    assert peak.high_bytes >= peak.device_bytes * 3 // 2
    assert described.peak.low_bytes > peak.low_bytes
    (warning,) = [each for each in read.warnings if each not in described.warnings]
    assert warning.startswith("t.py was read, not run:")


def test_the_range_of_a_running_job_is_as_wide_as_its_settings_are_open(tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    reported = {"per_device_train_batch_size": Setting(value=2, origin="the running Trainer")}
    for known in ({}, reported):
        reading = read_launch(shlex.split(TRAINER), environ={}, cwd=tmp_path, reported=known, pid=1)
        assert reading.script is None
        assert any("t.py was read, not run" in each for each in reading.warnings) == (not known)


@pytest.mark.parametrize(
    ("flags", "unsure"),
    [
        ("--attn_implementation flex_attention", Uncertainties(activations="either")),
        ("--some_offload_setting true", LESS),
        (
            "--activation_checkpointing --activation_checkpointing_kwargs '{\"every_n_layers\": 2}'",
            Uncertainties(activations="more"),
        ),
        ("--lr_scheduler_type cosine --weight_decay 0.1 --tokenizers_parallelism true", Uncertainties()),
        ("--precompute_ref_log_probs true --use_bnb_nested_quant true --use_dora false", Uncertainties()),
        ("--use_dora true", Uncertainties(gradients="either", optimizer="either", activations="either")),
        ("--use_flash_attn true", Uncertainties(activations="less")),
        ("--sft_type full", EITHER),
        ("--torch_compile true --torch_compile_backend inductor", Uncertainties()),
        ("--torch_compile true --torch_compile_backend eager", Uncertainties()),
        ("--torch_compile_backend cudagraphs", EITHER),
        ("--lora_alpha 3 --some_offload_setting false --dataloader_num_workers 4", Uncertainties()),
    ],
)
def test_uncertain_settings(read: Read, flags: str, unsure: Uncertainties) -> None:
    assert read(f"{TRAINER} {flags}").job().unsure == unsure


def test_a_file_of_accelerate_that_is_not_there_may_shard(read: Read) -> None:
    reading = read(f"accelerate launch --num_processes 2 --config_file zero3.yaml {TRAINER.removeprefix('python ')}")
    assert any("zero3.yaml: no such file" in warning for warning in reading.warnings)
    assert reading.job().unsure == Uncertainties(weights="either", gradients="either", optimizer="either")


@pytest.mark.parametrize(("model", "length"), [("bert-base-uncased", 512), ("roberta-base", 512), ("gpt2", None)])
def test_an_encoder_bounds_a_length_that_is_not_known(read: Read, model: str, length: int | None) -> None:
    line = TRAINER.replace("Qwen/Qwen2.5-0.5B", model)
    reading = read(f"{line.removesuffix(' --max_length 512')} --task text-classification")
    assert reading.value("training.sequence_length") == length
    doubted = {each.component: each.direction for each in reading.uncertainties}
    assert (doubted == {"activations": "less", "logits": "less"}) == (length is not None)
    assert not read(f"{line} --task text-classification").uncertainties


@pytest.mark.parametrize(
    ("line", "compiles"),
    [
        (f"{TRAINER} --torch_compile true", True),
        (f"{TRAINER} --torch_compile true --torch_compile_backend eager", False),
        (f"{TRAINER} --torch_compile_backend inductor", True),
        (f"accelerate launch --dynamo_backend EAGER {TRAINER.removeprefix('python ')}", False),
        (f"accelerate launch --dynamo_backend inductor {TRAINER.removeprefix('python ')}", True),
        (f"accelerate launch --dynamo_backend no {TRAINER.removeprefix('python ')}", False),
    ],
)
def test_only_a_backend_of_torch_compile_that_fuses_kernels_counts(read: Read, line: str, compiles: bool) -> None:
    assert read(line).job().training.compile == compiles


@pytest.mark.parametrize("method", ["formula", "auto"])
def test_the_range_is_wider_by_the_uncertain_component(read: Read, method: str) -> None:
    known = estimate(read(f"{TRAINER} --optim adamw_torch").job(), method=method)  # type: ignore[arg-type]
    changes = {"unsure.optimizer": "either"}
    doubted = estimate(read(f"{TRAINER} --optim adamw_torch").job(changes), method=method)  # type: ignore[arg-type]
    states = known.peak.components.optimizer
    assert states > 0
    assert doubted.peak.device_bytes == known.peak.device_bytes
    assert doubted.peak.low_bytes == known.peak.low_bytes - states
    assert doubted.peak.high_bytes == known.peak.high_bytes + states
    assert any("optimizer missing or twice as large" in warning for warning in doubted.warnings)


def test_doubted_gradients_may_be_there_at_a_peak_without_them(read: Read) -> None:
    job = read(f"{TRAINER} --optim adamw_torch").job({"training.micro_batch": 16})
    known, doubted = (
        estimate(with_changes(job, {"unsure.gradients": each}), method="formula") for each in ("no", "more")
    )
    kept = max(phase.components.gradients for phase in known.phases)
    assert known.peak.components.gradients < kept
    assert doubted.peak.high_bytes == known.peak.high_bytes + kept


@pytest.mark.parametrize(("strategy", "rehearsed"), [("fsdp1", 8.48), ("fsdp2", 5.92), ("none", None)])
def test_several_passes_before_one_backward_keep_whole_blocks_under_fsdp(
    read: Read, strategy: str, rehearsed: float | None
) -> None:
    # RewardTrainer of TRL 0.19 on 8 ranks, rehearsed with torch 2.13: pairs of 2 x 400 tokens
    job = read(TRAINER.replace("Qwen2.5-0.5B", "Qwen2.5-1.5B")).job()
    ranks = {} if strategy == "none" else {"parallel.strategy": strategy, "parallel.data_shard": 8}
    job = with_changes(job, {"training.precision": "bf16-mixed", "training.activation_checkpointing": "full", **ranks})
    known, doubted = (
        estimate(with_changes(job, {"unsure.communication": each}), method="formula") for each in ("no", "more")
    )
    assert known.peak.allocated_range is not None
    assert doubted.peak.allocated_range is not None
    if rehearsed is None:
        assert doubted.peak.high_bytes == known.peak.high_bytes
        return
    assert known.peak.allocated_range.high_bytes < rehearsed * GIB < doubted.peak.allocated_range.high_bytes
    assert any("whole on each GPU" in warning for warning in doubted.warnings)


def test_settings_of_older_libraries_are_words_in_the_sentence(read: Read) -> None:
    models = [{"role": "reference", "id": "gpt2"}]
    older = {"software.trl": "0.15", "other_models": models, "model.attention": "eager"}
    made = estimate(with_changes(read(TRAINER).job(), {"unsure.older": older}), method="formula")
    assert [each for each in made.warnings if "(other models, model.attention = eager)" in each]


def test_what_is_set_holds_for_older_libraries_too(read: Read) -> None:
    job = with_changes(read(TRAINER).job(), {"unsure.older": {"software.trl": "0.15", "training.precision": "fp32"}})
    assert with_changes(job, {"training.precision": "fp16"}).unsure.older == {"software.trl": "0.15"}
    for same in ({"training.micro_batch": 1}, {"training.precision": job.training.precision}):
        assert with_changes(job, same).unsure == job.unsure


def test_what_a_doubted_optimizer_computes_with_is_doubted_too(read: Read) -> None:
    job = read(f"{TRAINER} --optim adamw_torch --gradient_checkpointing").job({"model.id": "llama-3.1-8b"})
    doubted = {f"unsure.{each}": "less" for each in ("weights", "gradients", "optimizer", "activations", "logits")}
    peak = estimate(with_changes(job, doubted), method="formula").peak
    assert peak.phase == "optimizer step"
    assert peak.components.temporary > 10 * 2**30
    assert peak.low_bytes < 2**30


def test_a_value_given_by_the_user_is_not_uncertain(read: Read) -> None:
    reading = read(f"{TRAINER} --attn_implementation flex_attention")
    assert reading.job({"model.attention": "eager"}).unsure == Uncertainties()
    assert reading.job({"unsure.activations": "less"}).unsure == Uncertainties(activations="less")


def test_an_optimizer_that_is_not_known_is_a_wide_range_and_never_adamw(read: Read) -> None:
    reading = read(f"{TRAINER} --optim brand_new_adamw")
    assert reading.value("training.optimizer") == "unknown"
    assert [each for each in reading.warnings if "brand_new_adamw" in each]
    known, unknown = (estimate(reading.job(changes)) for changes in ({"training.optimizer": "adamw"}, {}))
    states = known.peak.components.optimizer
    none = estimate(reading.job({"training.optimizer": "sgd"}))
    assert unknown.peak.low_bytes <= none.peak.low_bytes + states // 10
    assert unknown.peak.high_bytes >= known.peak.high_bytes + states


@pytest.mark.parametrize(
    ("text", "unsure"),
    [
        ("relora_cpu_offload: true\n", LESS),
        ("gptq: true\n", Uncertainties(weights="less", activations="less")),
        ("spectrum_top_fraction: 0.5\n", Uncertainties(gradients="less", optimizer="less")),
        (
            "adapter: lora\nlora_r: 8\nlora_target_linear: true\nlora_modules_to_save: [norm]\n"
            "gradient_checkpointing: true\n",
            Uncertainties(weights="more", gradients="more", optimizer="more"),
        ),
        (
            "wandb_project: x\nval_set_size: 0.1\nlora_on_cpu: true\ndataset_processes: 8\nneftune_noise_alpha: 5\n",
            Uncertainties(),
        ),
    ],
)
def test_uncertain_keys_of_a_tool_configuration(tmp_path: Path, text: str, unsure: Uncertainties) -> None:
    (tmp_path / "a.yml").write_text(AXOLOTL + text)
    reading = read_config_file(tmp_path / "a.yml", environ={})
    assert reading.job().unsure == unsure
    assert bool(reading.warnings) == (unsure != Uncertainties())


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4"
    " --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --vocab-size 100 --use-distributed-optimizer"
)


@pytest.mark.parametrize(
    ("flags", "unsure", "reduce"),
    [
        (
            "--bf16 --ckpt-fully-parallel-save --ckpt-format torch_dist --no-load-optim --tp-comm-overlap",
            Uncertainties(),
            None,
        ),
        (
            "--bf16 --grad-reduce-in-bf16 --recompute-granularity full --recompute-method uniform",
            Uncertainties(),
            "bf16",
        ),
        ("--fp16", Uncertainties(), "fp16"),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", Uncertainties(), None),
        ("--bf16 --fp8-format hybrid", Uncertainties(weights="less", activations="less"), None),
        ("--bf16 --cross-entropy-loss-fusion", Uncertainties(activations="less", logits="less"), None),
        ("--bf16 --recompute-granularity full --recompute-num-layers 4", Uncertainties(activations="either"), None),
    ],
)
def test_uncertain_flags_of_megatron(read: Read, flags: str, unsure: Uncertainties, reduce: str | None) -> None:
    job = read(f"{MEGATRON} {flags}").job()
    assert (job.unsure, job.parallel.reduce_dtype) == (unsure, reduce)


def test_units_that_are_not_the_blocks(read: Read, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: POLICY,"
        " fsdp_backward_prefetch: BACKWARD_PRE, fsdp_cpu_ram_efficient_loading: true, fsdp_state_dict_type: FULL}\n"
    )
    text = (tmp_path / "a.yaml").read_text()
    line = TRAINER.replace("python", "accelerate launch --config_file a.yaml")
    for policy, units, doubt in (
        ("TRANSFORMER_BASED_WRAP", None, "no"),
        ("NO_WRAP", "model", "no"),
        ("SIZE_BASED_WRAP", "model", "less"),
    ):
        (tmp_path / "a.yaml").write_text(text.replace("POLICY", policy))
        job = read(line).job()
        assert job.parallel.fsdp_units == units
        assert job.unsure == Uncertainties(communication=doubt)  # type: ignore[arg-type]


def test_a_missing_deepspeed_file_may_offload(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(AXOLOTL + "deepspeed: elsewhere/zero2.json\n")
    reading = read_config_file(tmp_path / "a.yml", environ={})
    assert reading.job({"parallel.data_shard": 2}).unsure == Uncertainties(**dict.fromkeys(STATES, "less"))


def test_an_argument_known_only_at_run_time(read: Read, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("TrainingArguments(gradient_checkpointing=find_out())\n")
    assert read(TRAINER).job().unsure == Uncertainties(activations="either")
    assert read(f"{TRAINER} --gradient_checkpointing true").job().unsure == Uncertainties()


def test_copies_of_head_and_embedding_are_a_warning(tmp_path: Path) -> None:
    """With one weight for both, peft 0.21 trains two copies of it unless it is asked to tie them."""
    line = "trl sft --model_name_or_path gpt2 --use_peft --lora_modules_to_save lm_head wte"
    both = read_launch(line.split(), environ={}, cwd=tmp_path)
    assert any("a copy of each" in warning for warning in both.warnings)
    one = read_launch(line.removesuffix(" wte").split(), environ={}, cwd=tmp_path)
    assert not any("a copy of each" in warning for warning in one.warnings)


SILENT_ONCE = (
    ("llamafactory", "use_mca", {"weights", "gradients", "optimizer", "activations", "logits"}),
    ("llamafactory", "use_asft_loss", {"weights", "logits"}),
    ("llamafactory", "use_unsloth", {"activations", "logits"}),
    ("llamafactory", "use_kt", {"weights", "gradients", "optimizer", "activations"}),
    ("axolotl", "dense_mixer", {"activations"}),
    ("axolotl", "use_scattermoe", {"activations"}),
    ("axolotl", "use_kernels", {"activations"}),
    ("axolotl", "kd_trainer", {"logits"}),
    ("axolotl", "label_smoothing_factor", {"logits"}),
    ("axolotl", "peft_layer_replication", {"activations"}),
)


@pytest.mark.parametrize(("tool", "key", "components"), SILENT_ONCE)
def test_keys_of_tools_that_memory_depends_on_are_named(
    tmp_path: Path, tool: str, key: str, components: set[str]
) -> None:
    factory = "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: lora\ncutoff_len: 64\n"
    text = {"axolotl": AXOLOTL, "llamafactory": factory}[tool]
    (tmp_path / "a.yml").write_text(text)
    usual = read_config_file(tmp_path / "a.yml", environ={})
    (tmp_path / "a.yml").write_text(f"{text}{key}: true\n")
    found = read_config_file(tmp_path / "a.yml", environ={})
    more = {each.component for each in found.uncertainties} - {each.component for each in usual.uncertainties}
    assert components - {each.component for each in usual.uncertainties} == more
    assert any(key in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("flags", "batch"),
    [
        ("--per_device_train_batch_size 1 --eval_strategy steps", 8),
        ("--per_device_train_batch_size 1", None),
        ("--per_device_train_batch_size 1 --eval_strategy no", None),
        ("--per_device_train_batch_size 2 --eval_strategy steps --per_device_eval_batch_size 2", 2),
    ],
)
def test_evaluation_is_counted_where_the_settings_say_that_there_is_one(
    tmp_path: Path, flags: str, batch: int | None
) -> None:
    line = f"trl sft --model_name_or_path gpt2 --max_length 64 {flags}"
    reading = read_launch(line.split(), environ={}, cwd=tmp_path, versions={"transformers": "5.23.0"})
    assert reading.job().training.evaluation_batch == batch


def test_validation_of_torchtitan_on_larger_batches(tmp_path: Path) -> None:
    text = '[job]\n[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
    for more, doubt in (("[validation]\nenable = true\n", "more"), ("[validation]\nenable = false\n", "no")):
        (tmp_path / "t.toml").write_text(text + more)
        assert read_config_file(tmp_path / "t.toml", environ={}).job().unsure.logits == doubt


def test_defaults_that_depend_on_a_version_that_is_not_known(tmp_path: Path) -> None:
    """transformers 5 loads weights as they are stored, 5.10 shards by FSDP 2; the range reaches to what was before."""
    (tmp_path / "t.py").write_text(
        "from transformers import *\nmodel = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
        "args = TrainingArguments(output_dir='o', per_device_train_batch_size=1, fsdp='full_shard auto_wrap')\n"
        "Trainer(model=model, args=args).train()\n"
    )
    line = "torchrun --nproc_per_node 2 t.py"
    figures = []
    for versions in ({}, {"transformers": "5.23.0"}, {"transformers": "4.49.0"}):
        reading = read_launch(line.split(), environ={}, cwd=tmp_path, versions=versions)
        job = reading.job({"model.id": "qwen2.5-0.5b", "training.sequence_length": 512})
        figures.append(estimate(job, method="formula").peak)
        assert bool(job.unsure.older) == (not versions)
    unknown, new, old = figures
    assert unknown.device_bytes == new.device_bytes < old.device_bytes <= unknown.high_bytes


@pytest.mark.parametrize(
    "cut",
    [
        "    found['labels'] = tokenizer(row['b'], max_length=max_target_length, truncation=True)['input_ids']\n",
        "    labels = tokenizer(row['b'], max_length=128, truncation=True)\n",
        "    more = tokenizer(text_target=row['b'], max_length=128, truncation=True)\n",
    ],
)
def test_targets_are_as_long_as_the_script_cuts_them(tmp_path: Path, cut: str) -> None:
    (tmp_path / "t.py").write_text(
        "from transformers import *\nmax_input_length = 512\n"
        f"{'max_target_length = 128' if 'max_target' in cut else ''}\n"
        "tokenizer = AutoTokenizer.from_pretrained('t5-small')\n"
        "def encode(row):\n"
        "    found = tokenizer(row['a'], max_length=max_input_length, truncation=True)\n"
        f"{cut}"
        "    return found\n"
        "model = AutoModelForSeq2SeqLM.from_pretrained('t5-small')\n"
        "Seq2SeqTrainer(model, Seq2SeqTrainingArguments('o'), train_dataset=load().map(encode)).train()\n"
    )
    job = read_launch(["python", "t.py"], environ={}, cwd=tmp_path, versions={"transformers": "5.2.0"}).job()
    assert (job.training.sequence_length, job.training.loss_length) == (512, 128)


@pytest.mark.parametrize(
    ("cut", "targets", "unsure"),
    [("data.max_target_length", 128, "no"), ("", None, "either")],
    ids=["read", "not cut"],
)
def test_a_decoder_has_the_length_of_its_targets(tmp_path: Path, cut: str, targets: int | None, unsure: str) -> None:
    option = "    max_target_length: int = 128\n" if cut else ""
    (tmp_path / "t.py").write_text(
        "from dataclasses import dataclass\nfrom transformers import *\n"
        f"@dataclass\nclass Data:\n    max_source_length: int = 512\n{option}"
        "data, args = HfArgumentParser((Data, Seq2SeqTrainingArguments)).parse_args_into_dataclasses()\n"
        "model = AutoModelForSeq2SeqLM.from_pretrained('t5-small')\n"
        "tokenizer = AutoTokenizer.from_pretrained('t5-small')\n"
        "rows = load().map(lambda row: tokenizer(row['a'], max_length=data.max_source_length, truncation=True))\n"
        f"labels = load().map(lambda row: tokenizer(text_target=row['b']{cut and f', max_length={cut}'}))\n"
        "Seq2SeqTrainer(model=model, args=args, train_dataset=rows).train()\n"
    )
    line = "python t.py --output_dir o --per_device_train_batch_size 2"
    job = read_launch(line.split(), environ={}, cwd=tmp_path, versions={"transformers": "5.2.0"}).job()
    assert (job.training.sequence_length, job.training.loss_length, job.unsure.logits) == (512, targets, unsure)


@pytest.mark.parametrize(
    ("model", "task"), [("google-t5/t5-base", "seq2seq-lm"), ("facebook/bart-large", "seq2seq-lm"), ("gpt2", None)]
)
def test_a_head_that_nothing_states_is_the_usual_one_of_its_family(read: Read, model: str, task: str | None) -> None:
    reading = read(TRAINER.replace("Qwen/Qwen2.5-0.5B", model))
    assert reading.value("model.task") == task
    assert reading.job().model.task == (task or "causal-lm")


@pytest.mark.parametrize(
    ("default", "words", "choices"), [(", default=5", [], 5), ("", ["--num_choices", "3"], 3), ("", [], None)]
)
def test_each_choice_of_an_example_is_a_sequence(
    tmp_path: Path, default: str, words: list[str], choices: int | None
) -> None:
    (tmp_path / "t.py").write_text(
        "import argparse\nfrom transformers import *\np = argparse.ArgumentParser()\n"
        f"p.add_argument('--num_choices', type=int{default})\na = p.parse_args()\n"
        "model = AutoModelForMultipleChoice.from_pretrained('roberta-large')\n"
        "Trainer(model=model, args=TrainingArguments('o')).train()\n"
    )
    reading = read_launch(["python", "t.py", *words], environ={}, cwd=tmp_path)
    assert reading.value("training.sequences_per_example") == choices
    assert ("training.sequences_per_example" in reading.missing) == (choices is None)


@pytest.mark.parametrize(("flag", "precision"), [("--bf16 True", "bf16"), ("", "fp16"), ("--wide True", "fp32")])
def test_a_method_of_the_options_own_class_is_followed(tmp_path: Path, flag: str, precision: str) -> None:
    (tmp_path / "t.py").write_text(
        "from dataclasses import dataclass\nimport torch\nfrom transformers import *\n"
        "@dataclass\nclass Mine:\n    wide: bool = False\n"
        "    def loading(self, args):\n"
        "        if self.wide:\n            return {'torch_dtype': torch.float32}\n"
        "        return {'torch_dtype': torch.bfloat16 if args.bf16 else torch.float16}\n"
        "args, mine = HfArgumentParser((TrainingArguments, Mine)).parse_args_into_dataclasses()\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2', **mine.loading(args))\n"
        "Trainer(model=model, args=args).train()\n"
    )
    line = ["python", "t.py", "--output_dir", "o", "--max_length", "64", *flag.split()]
    assert read_launch(line, environ={}, cwd=tmp_path).value("training.precision") == precision


def test_texts_that_are_joined_leave_a_length_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(
        "from transformers import *\n"
        "class Rows:\n"
        "    def __init__(self, texts, tokenizer):\n"
        "        self.rows = tokenizer(texts, max_length=128, truncation=True)\n"
        "rows = Rows(load(), AutoTokenizer.from_pretrained('gpt2'))\n"
        "print('rows: ' + str(len(rows.rows)))\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
        "Trainer(model=model, args=TrainingArguments('o'), train_dataset=rows).train()\n"
    )
    assert read_launch(["python", "t.py"], environ={}, cwd=tmp_path).value("training.sequence_length") == 128


@pytest.mark.parametrize(
    ("more", "unsure"), [("", "no"), ("        other = self.teacher(**inputs)\n", "either")], ids=["a loss", "more"]
)
def test_a_loss_of_one_pass_leaves_all_but_the_logits_certain(tmp_path: Path, more: str, unsure: str) -> None:
    (tmp_path / "t.py").write_text(
        "import torch\nfrom transformers import *\n"
        "class Weighted(Trainer):\n"
        "    def compute_loss(self, model, inputs, return_outputs=False):\n"
        "        labels = inputs.pop('labels')\n        outputs = model(**inputs)\n"
        f"{more}"
        "        loss = torch.nn.CrossEntropyLoss()(outputs.logits.view(-1, 2), labels.view(-1))\n"
        "        return (loss, outputs) if return_outputs else loss\n"
        "    def _maybe_log_save_evaluate(self, *args):\n        pass\n"
        "    def create_scheduler(self, *args):\n        pass\n"
        "model = AutoModelForSequenceClassification.from_pretrained('bert-base-uncased')\n"
        "Weighted(model=model, args=TrainingArguments('o')).train()\n"
    )
    job = read_launch(["python", "t.py", "--max_length", "64"], environ={}, cwd=tmp_path).job()
    assert (job.unsure.logits, job.unsure.optimizer) == ("either", unsure)


@pytest.mark.parametrize(("visible", "splits"), [("0", False), ("0,1", True), (None, True)])
def test_data_parallel_leaves_the_weights_certain(tmp_path: Path, visible: str | None, splits: bool) -> None:
    (tmp_path / "t.py").write_text(
        "import torch\nfrom transformers import *\n"
        "model = AutoModelForSequenceClassification.from_pretrained('bert-base-uncased')\n"
        "if torch.cuda.device_count() > 1:\n    model = torch.nn.DataParallel(model)\n"
        "Trainer(model=model, args=TrainingArguments('o')).train()\n"
    )
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    job = read_launch(["python", "t.py", "--max_length", "64"], environ=environ, cwd=tmp_path).job()
    assert (job.unsure.logits == "either", job.unsure.weights) == (splits, "no")


@pytest.mark.parametrize(
    ("early", "arguments", "late", "checkpointing"),
    [
        ("config.gradient_checkpointing = True\n", "config=config", "", "full"),
        ("", "gradient_checkpointing=True", "", "full"),
        ("", "config=config", "model.config.gradient_checkpointing = True\n", None),
    ],
)
def test_a_model_checkpoints_as_its_config_says_when_it_is_made(
    tmp_path: Path, early: str, arguments: str, late: str, checkpointing: str | None
) -> None:
    (tmp_path / "t.py").write_text(
        "from transformers import *\nconfig = AutoConfig.from_pretrained('bert-base-uncased')\n"
        f"{early}model = AutoModelForSequenceClassification.from_pretrained('bert-base-uncased', {arguments})\n"
        f"{late}Trainer(model=model, args=TrainingArguments('o')).train()\n"
    )
    reading = read_launch(["python", "t.py", "--max_length", "64"], environ={}, cwd=tmp_path)
    assert reading.job().training.activation_checkpointing == (checkpointing or "none")


def test_what_is_known_of_an_own_class_of_a_model_is_counted_with_a_doubt(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(
        "from transformers import *\n"
        "class OwnForSequenceClassification(RobertaPreTrainedModel):\n    pass\n"
        "model = OwnForSequenceClassification.from_pretrained('roberta-base')\n"
        "Trainer(model=model, args=TrainingArguments('o')).train()\n"
    )
    job = read_launch(["python", "t.py", "--max_length", "64"], environ={}, cwd=tmp_path).job()
    assert (job.model.id, job.model.task) == ("roberta-base", "sequence-classification")
    assert job.unsure.weights == "either"
