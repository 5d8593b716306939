"""TRL's methods by version: every expected value was read in TRL's own sources of that version."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.job.job import Rollout
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[..., JobReading]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads a launch line under a version of TRL."""

    def read_line(line: str, trl: str = "1.16.0") -> JobReading:
        versions = {"transformers": "5.2.0", "trl": trl, "torch": "2.13.0"}
        return read_launch(shlex.split(line), environ={}, cwd=tmp_path, versions=versions)

    return read_line


def line(method: str, *flags: str) -> str:
    return " ".join(["trl", method, "--model_name_or_path", "gpt2", "--per_device_train_batch_size", "2", *flags])


@pytest.mark.parametrize(
    ("method", "trl", "sequences", "length", "loss", "checkpointing"),
    [
        ("sft", "1.16.0", 1, 1024, "chunked", "full"),
        ("sft", "1.7.0", 1, 1024, "chunked", "full"),
        ("sft", "1.6.0", 1, 1024, "full", "full"),
        ("sft", "0.13.0", 1, 1024, "full", "none"),
        ("dpo", "1.16.0", 2, 1024, "chunked", "full"),
        ("dpo", "1.14.2", 2, 1024, "log-probs", "full"),
        ("dpo", "0.21.0", 2, 1024, "log-probs", "none"),
        ("dpo", "0.13.0", 2, 512, "log-probs", "none"),
        ("kto", "1.16.0", 1, 1024, "chunked", "full"),
        ("kto", "0.12.2", 1, 512, "log-probs", "none"),
        ("cpo", "0.29.1", 2, 1024, "log-probs", "full"),
        ("orpo", "0.12.2", 2, 512, "log-probs", "none"),
        ("reward", "1.16.0", 2, 1024, "full", "full"),
        ("grpo", "0.25.1", 1, 768, "log-probs", "full"),
        ("rloo", "0.25.1", 1, 768, "log-probs", "full"),
    ],
)
def test_defaults_follow_the_version(
    read: Read, method: str, trl: str, sequences: int, length: int, loss: str, checkpointing: str
) -> None:
    reading = read(line(method), trl)
    training = reading.job().training
    assert (training.micro_batch, training.sequences_per_example, training.sequence_length) == (2, sequences, length)
    assert (training.loss, training.activation_checkpointing) == (loss, checkpointing)
    assert reading.missing == ()
    assert reading.job().software.trl == trl


@pytest.mark.parametrize(
    ("method", "flags", "logits"),
    [
        ("orpo", "", "more"),
        ("cpo", "", "more"),
        ("cpo", "--loss_type simpo --cpo_alpha 0.0", "no"),
        ("dpo", "--rpo_alpha 1.0", "more"),
        ("dpo", "--loss_type sigmoid bco_pair sft", "more"),
        ("dpo", "--loss_type hinge", "no"),
        ("dpo", "--use_weighting", "more"),
        ("dpo", "", "no"),
    ],
)
def test_a_cross_entropy_beside_the_log_probabilities_is_a_doubt(
    read: Read, method: str, flags: str, logits: str
) -> None:
    unsure = read(line(method, flags), "0.25.1").job().unsure
    assert (unsure.logits if unsure else "no") == logits


@pytest.mark.parametrize(("trl", "batch", "sequences"), [("0.14.0", 1, 8), ("0.15.2", 8, 1), ("1.16.0", 8, 1)])
def test_the_batch_of_grpo_counts_completions_since_0_15(read: Read, trl: str, batch: int, sequences: int) -> None:
    training = read("trl grpo --model_name_or_path gpt2", trl).job({"training.sequence_length": 600}).training
    assert (training.micro_batch, training.sequences_per_example) == (batch, sequences)


def test_a_prompt_that_nothing_cuts_leaves_the_length_to_the_dataset(read: Read) -> None:
    reading = read(line("grpo"))
    assert reading.missing == ("training.sequence_length",)
    assert reading.value("training.loss_length") == 512
    assert any("longest prompt plus 512 completion tokens" in warning for warning in reading.warnings)
    assert read(line("grpo", "--max_length None"), "0.26.0").missing == ("training.sequence_length",)
    assert read(line("sft", "--max_length None")).missing == ("training.sequence_length",)
    assert read(line("grpo", "--max_prompt_length 256"), "0.26.0").missing == ()


def test_the_shorter_bound_is_the_length(read: Read) -> None:
    flags = ("--max_length 2048", "--max_prompt_length 512", "--max_completion_length 256")
    assert read(line("dpo", *flags), "0.20.0").value("training.sequence_length") == 768
    assert read(line("dpo", *flags[:2]), "0.20.0").value("training.sequence_length") == 2048


@pytest.mark.parametrize(
    ("method", "flags", "trl", "reference"),
    [
        ("dpo", (), "1.16.0", True),
        ("dpo", ("--use_peft",), "1.16.0", False),
        ("dpo", ("--use_peft", "--force_use_ref_model"), "0.20.0", True),
        ("dpo", ("--precompute_ref_log_probs",), "1.16.0", False),
        ("kto", (), "1.16.0", True),
        ("cpo", (), "0.20.0", False),
        ("orpo", (), "0.20.0", False),
        ("reward", (), "1.16.0", False),
        ("grpo", (), "1.16.0", False),
        ("grpo", ("--beta 0.04",), "1.16.0", True),
        ("grpo", (), "0.18.0", True),
        ("grpo", ("--beta 0.04", "--use_peft"), "1.16.0", False),
        ("rloo", (), "1.16.0", True),
        ("rloo", ("--beta 0",), "1.16.0", False),
    ],
)
def test_a_reference_model_is_held_where_the_trainer_makes_one(
    read: Read, method: str, flags: tuple[str, ...], trl: str, reference: bool
) -> None:
    models = read(line(method, *flags), trl).job({"training.sequence_length": 600}).other_models
    assert [model.role for model in models] == (["reference"] if reference else [])


@pytest.mark.parametrize(
    ("flags", "runs"), [((), True), (("--use_peft",), True), (("--precompute_ref_log_probs",), False)]
)
def test_the_reference_of_dpo_runs_beside_the_models_activations(
    read: Read, flags: tuple[str, ...], runs: bool
) -> None:
    assert read(line("dpo", *flags)).job().training.reference_pass is runs


@pytest.mark.parametrize(
    ("launch", "trl", "sharded"),
    [
        ("--accelerate_config zero3", "1.16.0", True),
        ("--accelerate_config zero2", "1.16.0", False),
        ("--accelerate_config fsdp2", "1.16.0", True),
        ("--accelerate_config fsdp1", "0.15.0", False),
    ],
)
def test_the_reference_is_sharded_by_zero_3_and_by_fsdp_since_0_16(
    read: Read, launch: str, trl: str, sharded: bool
) -> None:
    (reference,) = read(line("dpo", launch), trl).job().other_models
    assert reference.sharded is sharded


def test_reward_models_and_functions(read: Read) -> None:
    flags = ("--reward_model_name_or_path org/judge", "--reward_funcs accuracy_reward think_format_reward")
    reading = read(line("grpo", *flags))
    (judge,) = reading.job({"training.sequence_length": 600}).other_models
    assert (judge.role, judge.id, judge.task) == ("reward", "org/judge", "sequence-classification")
    assert reading.job({"training.sequence_length": 600}).unsure.weights == "no"
    own = read(line("grpo", "--reward_funcs my_lib.rewards.judge"))
    assert own.job({"training.sequence_length": 600}).unsure.weights == "more"
    assert any("my_lib.rewards.judge" in warning for warning in own.warnings)


def test_a_teacher_is_a_model_beside_the_student(read: Read) -> None:
    flags = "--teacher_model_name_or_path org/teacher --max_prompt_length 100"
    (teacher,) = read(line("distillation", flags)).job().other_models
    assert (teacher.role, teacher.id) == ("teacher", "org/teacher")
    unnamed = read(line("distillation", "--max_prompt_length 100"))
    assert unnamed.job().unsure.weights == "more"


@pytest.mark.parametrize(
    ("flags", "trl", "rollout"),
    [
        (("--gradient_accumulation_steps 4",), "1.16.0", Rollout(micro_batches=4)),
        (("--steps_per_generation 3",), "1.16.0", Rollout(micro_batches=3)),
        (("--generation_batch_size 12",), "1.16.0", Rollout(micro_batches=6)),
        (("--gradient_accumulation_steps 4",), "0.17.0", Rollout(prompt_length=512)),
        (("--use_vllm",), "1.16.0", Rollout(engine="vllm")),
        (("--use_vllm",), "0.18.0", None),
        (("--use_vllm", "--vllm_mode server"), "1.16.0", None),
        (
            ("--use_vllm", "--vllm_mode colocate", "--vllm_gpu_memory_utilization 0.5", "--vllm_enable_sleep_mode"),
            "0.23.0",
            Rollout(engine="vllm", gpu_memory_utilization=0.5, sleep=True),
        ),
        (("--use_vllm", "--vllm_tensor_parallel_size 2"), "1.16.0", Rollout(engine="vllm", tensor=2)),
    ],
)
def test_generation_in_the_training_process(
    read: Read, flags: tuple[str, ...], trl: str, rollout: Rollout | None
) -> None:
    reading = read(line("grpo", *flags), trl)
    assert reading.job({"training.sequence_length": 600}).rollout == rollout


def test_a_vllm_server_is_said_to_lie_elsewhere(read: Read) -> None:
    assert any("its own GPUs" in warning for warning in read(line("grpo", "--use_vllm --vllm_mode server")).warnings)


@pytest.mark.parametrize(
    ("flags", "trl", "loss"),
    [
        ("--use_liger_kernel", "1.16.0", "chunked"),
        ("--use_liger_kernel", "1.14.0", "chunked"),
        ("--use_liger_kernel", "1.0.0", "fused-log-probs"),
        ("--use_liger_loss", "0.20.0", "fused-log-probs"),
        ("--use_liger_kernel", "0.20.0", "log-probs"),
    ],
)
def test_liger_kernels_loss_by_version(read: Read, flags: str, trl: str, loss: str) -> None:
    assert read(line("dpo", flags), trl).value("training.loss") == loss


def test_sft_with_liger_before_1_15_and_after(read: Read) -> None:
    assert read(line("sft", "--use_liger_kernel"), "1.14.0").value("training.loss") == "fused-linear"
    assert read(line("sft", "--use_liger_kernel"), "1.15.0").value("training.loss") == "chunked"


def test_a_script_with_trls_trainers_is_read_like_the_command(read: Read, tmp_path: Path) -> None:
    script = """\
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer
args = OnlineDPOConfig(output_dir="out", per_device_train_batch_size=2, max_new_tokens=64, reward_model_path="org/rm")
trainer = OnlineDPOTrainer(model="gpt2", args=args)
trainer.train()
"""
    (tmp_path / "train.py").write_text(script)
    reading = read("python train.py")
    job: Any = reading.job()
    assert (job.training.sequences_per_example, job.training.sequence_length, job.training.loss) == (
        2,
        512,
        "log-probs",
    )
    assert [model.role for model in job.other_models] == ["reference", "reward"]
    assert job.rollout == Rollout()


def test_ppo_trains_on_the_query_and_the_response(read: Read, tmp_path: Path) -> None:
    script = """\
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import PPOConfig, PPOTrainer
tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = PPOConfig(output_dir="out", per_device_train_batch_size=2, response_length=64)
data = rows.map(lambda row: tokenizer(row["prompt"], truncation=True, max_length=256))
PPOTrainer(args=args, processing_class=tokenizer, model=model, train_dataset=data).train()
"""
    (tmp_path / "train.py").write_text(script)
    assert read("python train.py").job().training.sequence_length == 256 + 64


def test_a_limit_that_is_switched_off_is_no_default(read: Read, tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("model_name_or_path: gpt2\nmax_length: null\n")
    (tmp_path / "train.py").write_text("SFTTrainer('gpt2', args=SFTConfig(max_length=None)).train()\n")
    for launch in ("trl sft --config sft.yaml", "python train.py", line("sft", "--max_length None")):
        assert read(launch).missing == ("training.sequence_length",)


SCRIPT = """\
import torch
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import ModelConfig, ScriptArguments, get_peft_config, get_quantization_config
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

parser = HfArgumentParser((ScriptArguments, ORPOConfig, ModelConfig))
script_args, training_args, model_args = parser.parse_args_into_dataclasses()
dtype = model_args.dtype if model_args.dtype in ["auto", None] else getattr(torch, model_args.dtype)
model_kwargs = dict(revision=model_args.model_revision, DTYPE)
quantization_config = get_quantization_config(model_args)
if quantization_config is not None:
    model_kwargs["quantization_config"] = quantization_config
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, **model_kwargs)
trainer = ORPOTrainer(model, args=training_args, peft_config=get_peft_config(model_args))
trainer.train()
"""


OWN_ADAPTERS = """\
from dataclasses import dataclass
from trl import SFTConfig, SFTTrainer, TrlParser
@dataclass
class Choice:
    model_name_or_path: str = None
    use_peft: bool = False
    use_lora: bool = False
    lora_r: int = 16
def adapters(choice):
    return LoraConfig(r=choice.lora_r) if choice.use_lora else None
training_args, choice = TrlParser((SFTConfig, Choice)).parse_args_and_config()
SFTTrainer(choice.model_name_or_path, args=training_args, peft_config=adapters(choice)).train()
"""


BY_NAME = """\
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser
training_args, model_args = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
MORE
SFTTrainer(model=model_args.model_name_or_path, args=training_args, train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("more", "precision"),
    [("", "bf16-mixed"), ("training_args.model_init_kwargs = dict(torch_dtype=model_args.torch_dtype)", "bf16")],
)
def test_a_model_that_a_trainer_loads_by_name_gets_only_its_own_arguments(
    read: Read, tmp_path, more, precision
) -> None:
    (tmp_path / "sft.py").write_text(BY_NAME.replace("MORE", more))
    line = "python sft.py --model_name_or_path gpt2 --max_length 512 --bf16 --torch_dtype bfloat16"
    assert read(line, "0.19.1").job().training.precision == precision


@pytest.mark.parametrize(("flag", "rank"), [("--use_lora", 8), ("--use_peft", None)])
def test_a_scripts_own_choice_of_adapters_counts_whatever_a_flag_is_called(read: Read, tmp_path, flag, rank) -> None:
    (tmp_path / "sft.py").write_text(OWN_ADAPTERS)
    job = read(f"python sft.py --model_name_or_path gpt2 --max_length 512 {flag} --lora_r 8").job()
    assert (job.lora.rank if job.lora is not None else None) == rank


@pytest.mark.parametrize(
    ("dtype", "flags", "precision", "rank"),
    [
        ("dtype=dtype", "", "bf16-mixed", None),
        ("dtype=dtype", "--dtype bfloat16", "bf16", None),
        ("trust_remote_code=False", "", "bf16", None),  # the config's own type, under transformers 5
        ("dtype=dtype", "--use_peft --lora_r 8", "bf16-mixed", 8),
        ("dtype=dtype", "--use_peft --load_in_4bit", "bf16-mixed", 16),
    ],
)
def test_trls_own_arguments_are_followed_through_a_script(
    read: Read, tmp_path: Path, dtype: str, flags: str, precision: str, rank: int | None
) -> None:
    (tmp_path / "orpo.py").write_text(SCRIPT.replace("DTYPE", dtype))
    reading = read(f"python orpo.py --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2 {flags}")
    job = reading.job()
    assert (job.training.sequences_per_example, job.training.sequence_length, job.training.loss) == (
        2,
        1024,
        "log-probs",
    )
    assert job.training.precision == precision
    assert (job.lora.rank if job.lora else None) == rank
    assert (job.lora.quantization if job.lora else "none") == ("nf4" if "4bit" in flags else "none")
    assert [found.component for found in reading.uncertainties] == ["logits"]  # ORPO's likelihood
    assert (job.lora.kbit_preparation if job.lora else None) == (True if "4bit" in flags else None)


@pytest.mark.parametrize(("name", "sequences"), [("TPO", 3), ("GMPO", 1), ("AsyncGRPO", 1), ("SDFT", 1)])
def test_experimental_methods(read: Read, tmp_path: Path, name: str, sequences: int) -> None:
    config = f"{name}Config(output_dir='out', per_device_train_batch_size=2)"
    (tmp_path / "train.py").write_text(f"{name}Trainer(model='gpt2', args={config}).train()\n")
    reading = read("python train.py")
    job = reading.job({"training.sequence_length": 64})
    assert (job.training.micro_batch, job.training.sequences_per_example) == (2, sequences)
    assert job.training.activation_checkpointing == "full"
    assert job.unsure.weights == ("more" if name == "SDFT" else "no")


AXOLOTL = """\
base_model: gpt2
micro_batch_size: 4
sequence_len: 1024
rl: grpo
trl:
  use_vllm: true
  vllm_gpu_memory_utilization: 0.4
  max_completion_length: 256
  beta: 0
  reward_funcs: [rewards.mine]
"""


def test_axolotls_section_for_trl(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(AXOLOTL)
    job = read_config_file(tmp_path / "a.yaml", environ={}, versions={"trl": "1.16.0"}).job()
    assert job.rollout == Rollout(engine="vllm", gpu_memory_utilization=0.4)
    assert (job.training.loss, job.training.loss_length, job.other_models) == ("chunked", 256, [])
    assert job.unsure.weights == "more"  # what the reward function holds


def test_a_tools_own_loss_holds_the_logits(tmp_path: Path) -> None:
    (tmp_path / "l.yaml").write_text("model_name_or_path: gpt2\nstage: dpo\nfinetuning_type: full\ncutoff_len: 512\n")
    training = read_config_file(tmp_path / "l.yaml", environ={}, versions={"trl": "1.16.0"}).job().training
    assert (training.loss, training.sequences_per_example, training.reference_pass) == ("log-probs", 2, True)
    (tmp_path / "l.yaml").write_text("model_name_or_path: gpt2\nstage: dpo\ncutoff_len: 512\npref_loss: simpo\n")
    simpo = read_config_file(tmp_path / "l.yaml", environ={}, versions={"trl": "1.16.0"}).job()
    assert (simpo.training.reference_pass, simpo.other_models) == (False, [])


@pytest.mark.parametrize(
    ("method", "trl", "cast"),
    [
        *(("sft", "0.25.1", True), ("sft", "0.26.0", False), ("dpo", "0.28.0", True), ("dpo", "0.29.0", False)),
        *(("kto", "1.3.0", True), ("kto", "1.4.0", False)),
    ],
)
def test_older_versions_cast_what_is_not_quantized(read: Read, method: str, trl: str, cast: bool) -> None:
    lora = read(line(method, "--use_peft", "--load_in_4bit"), trl).job().lora
    assert lora is not None
    assert (lora.kbit_preparation, lora.adapter_dtype) == (cast, None if cast else "bf16")
    assert read(line(method, "--use_peft", "--load_in_4bit"), "0.7.1").job().training.activation_checkpointing == (
        "full" if method == "sft" else "none"
    )
    plain = read(line(method, "--use_peft"), trl).job().lora
    assert plain is not None
    assert (plain.kbit_preparation, plain.adapter_dtype) == (None, None)


def test_adapters_of_a_model_that_the_trainer_loads_itself(read: Read, tmp_path: Path) -> None:
    script = """\
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="out", per_device_train_batch_size=8, beta=0.04, use_vllm=True, vllm_mode="colocate")
lora = LoraConfig(r=4, target_modules="all-linear")
GRPOTrainer(model="gpt2", reward_funcs=lambda completions, **more: [0.0], args=args, peft_config=lora).train()
"""
    (tmp_path / "train.py").write_text(script)
    job = read("python train.py").job({"training.sequence_length": 600})
    assert (job.lora and job.lora.rank, job.other_models) == (4, [])  # its reference is itself without adapters
    (tmp_path / "train.py").write_text(script.replace("r=4, ", ""))
    assert read("python train.py").value("lora.rank") == 8  # peft's default, not that of TRL's ModelConfig
    assert job.rollout == Rollout(engine="vllm")


def test_unsloths_fast_inference_is_named(read: Read, tmp_path: Path) -> None:
    script = """\
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer
model, tokenizer = FastLanguageModel.from_pretrained("gpt2", fast_inference=True, gpu_memory_utilization=0.6)
args = GRPOConfig(output_dir="out", per_device_train_batch_size=8, max_completion_length=200)
GRPOTrainer(model=model, reward_funcs=[], args=args).train()
"""
    (tmp_path / "train.py").write_text(script)
    named = "fast_inference starts vLLM in this process"
    reading = read("python train.py")
    assert reading.value("rollout.gpu_memory_utilization") == 0.6
    assert not any(named in each for each in reading.warnings)
    (tmp_path / "train.py").write_text(script.replace("GRPO", "SFT").replace("max_completion_length", "max_length"))
    assert any(named in each for each in read("python train.py").warnings)


def test_a_reward_model_beside_reward_functions(read: Read, tmp_path: Path) -> None:
    script = """\
from trl import GRPOConfig, GRPOTrainer
def shorter(completions, **more):
    return [-float(len(each)) for each in completions]
args = GRPOConfig(output_dir="out", per_device_train_batch_size=8)
GRPOTrainer(model="gpt2", reward_funcs=[shorter, "org/judge"], args=args).train()
"""
    (tmp_path / "train.py").write_text(script)
    (judge,) = read("python train.py").job({"training.sequence_length": 600}).other_models
    assert (judge.role, judge.id, judge.task) == ("reward", "org/judge", "sequence-classification")


@pytest.mark.parametrize("name", ["max_length", "max_seq_length"])
def test_trainers_that_took_the_length_themselves(read: Read, tmp_path: Path, name: str) -> None:
    script = f"""\
from transformers import AutoModelForCausalLM, TrainingArguments
from trl import DPOTrainer
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments("out", per_device_train_batch_size=2)
DPOTrainer(model, None, args=args, beta=0.1, {name}=768, max_prompt_length=256).train()
"""
    (tmp_path / "train.py").write_text(script)
    assert read("python train.py", "0.12.0").value("training.sequence_length") == 768
    (tmp_path / "train.py").write_text(script.replace("=768", "=find_out()"))
    assert read("python train.py", "0.12.0").missing == ("training.sequence_length",)


def test_transformers_own_arguments_leave_trls_other_defaults(read: Read, tmp_path: Path) -> None:
    script = "GRPOTrainer('gpt2', args=TrainingArguments('out', per_device_train_batch_size=2)).train()\n"
    (tmp_path / "train.py").write_text(f"from trl import GRPOTrainer\n{script}")
    job = read("python train.py", "0.18.0").job()
    assert (job.training.sequence_length, job.training.loss_length) == (768, 256)
    assert [model.role for model in job.other_models] == ["reference"]
    assert job.training.activation_checkpointing == "none"


def test_a_trainer_of_trl_that_is_not_known_is_a_doubt(read: Read, tmp_path: Path) -> None:
    script = """\
from trl.experimental.new import NewConfig, NewTrainer
NewTrainer(model="gpt2", args=NewConfig(output_dir="out", per_device_train_batch_size=3, max_length=64)).train()
"""
    (tmp_path / "train.py").write_text(script)
    reading = read("python train.py")
    job = reading.job()
    assert (job.training.micro_batch, job.training.sequence_length) == (3, 64)
    assert job.training.activation_checkpointing == "full"  # as all of TRL's configurations have it
    assert (job.unsure.weights, job.unsure.activations, job.unsure.logits) == ("more", "more", "more")
    assert any("method new is not supported" in warning for warning in reading.warnings)


@pytest.mark.parametrize("argument", ["ref_model=make()", "reward_funcs=REWARDS"])
def test_models_that_only_the_running_script_knows_are_a_doubt(read: Read, tmp_path: Path, argument: str) -> None:
    method = "DPO" if "ref" in argument else "GRPO"
    script = f"""\
import importlib
from trl import {method}Config, {method}Trainer
from elsewhere import make
REWARDS = importlib.import_module("mine").REWARDS
args = {method}Config(output_dir="out", per_device_train_batch_size=3)
{method}Trainer(model="gpt2", args=args, {argument}).train()
"""
    (tmp_path / "train.py").write_text(script)
    job = read("python train.py").job({"training.sequence_length": 64})
    assert job.unsure.weights == "more"


@pytest.mark.parametrize(("trl", "activations"), [("0.23.1", "less"), ("0.24.0", "no")])
def test_reward_models_ran_their_sequences_in_turn_until_0_24(read: Read, trl: str, activations: str) -> None:
    unsure = read(line("reward"), trl).job().unsure
    assert (unsure.activations if unsure else "no") == activations


def test_reward_models_have_one_output(read: Read) -> None:
    assert read(line("reward")).value("model.num_labels") == 1
    assert read(line("sft")).value("model.num_labels") is None


@pytest.mark.parametrize(("trl", "prepared"), [("1.8.0", True), ("1.9.0", False)])
def test_online_methods_prepared_quantized_models_until_1_9(tmp_path: Path, trl: str, prepared: bool) -> None:
    """``prepare_peft_model`` of trl/experimental/utils.py cast norms to fp32 before; now all adapters get 16 bits."""
    (tmp_path / "t.py").write_text(
        "from peft import LoraConfig\nfrom transformers import *\nfrom trl.experimental.online_dpo import *\n"
        "four = BitsAndBytesConfig(load_in_4bit=True)\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2', quantization_config=four)\n"
        "OnlineDPOTrainer(model=model, args=OnlineDPOConfig(output_dir='o', bf16=True),"
        " peft_config=LoraConfig(r=8, target_modules=['c_attn'])).train()\n"
    )
    reading = read_launch(["python", "t.py"], environ={}, cwd=tmp_path, versions={"transformers": "5.2.0", "trl": trl})
    assert reading.value("lora.kbit_preparation") is prepared


def test_deepspeeds_engine_casts_frozen_models(read: Read, tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    flags = ("--deepspeed", "zero.json", "--dtype", "float32", "--max_length", "512")
    reading = read(line("dpo", *flags))
    assert reading.value("other_models") == [{"role": "reference", "dtype": "bf16"}]
    assert read(line("dpo", *flags[2:])).value("other_models") == [{"role": "reference"}]


@pytest.mark.parametrize(("device", "engine"), [("cuda:0", "vllm"), ("cuda:1", None), ("auto", None)])
def test_vllm_on_the_gpu_of_the_training_process(read: Read, device: str, engine: str | None) -> None:
    flags = ("--use_vllm", "true", "--vllm_device", device, "--vllm_gpu_memory_utilization", "0.5")
    reading = read(line("grpo", *flags, "--num_processes", "1"), trl="0.15.2")
    assert (reading.value("rollout.engine"), reading.value("rollout.gpu_memory_utilization")) == (
        (engine, 0.5) if engine else (None, None)
    )
    assert any("does not use" in each for each in reading.warnings) == (engine is None)
