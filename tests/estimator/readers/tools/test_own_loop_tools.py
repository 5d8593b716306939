"""Tools with a training loop of their own: configuration file, launch line and worker give the same job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.job.settings import Uncertainties
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[..., JobReading]
WORKER = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}


def values(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(key) for key in keys)


TUNE = """
output_dir: /tmp/out
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 32
tokenizer:
  max_seq_len: 900
batch_size: 2
other: ${batch_size}
optimizer:
  _component_: torch.optim.AdamW
  fused: True
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
dtype: bf16
enable_activation_checkpointing: True
gradient_accumulation_steps: 8
"""


def test_torchtune_on_one_device(read: Read, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(TUNE)
    reading = read("tune run lora_finetune_single_device --config r.yaml batch_size=6 tokenizer.max_seq_len=450")
    job = reading.job()
    assert job.training.framework == "torchtune"
    assert (job.model.id, job.training.micro_batch, job.training.sequence_length) == ("meta-llama/Llama-3.1-8B", 6, 450)
    assert (job.training.precision, job.training.optimizer, job.training.loss) == ("bf16", "adamw-fused", "chunked")
    assert job.lora is not None
    assert job.lora.targets == ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert job.parallel.strategy == "none"
    assert reading.evidence()["training.micro_batch"] == "batch_size= on the command line"


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("tune run --nproc_per_node 4 lora_finetune_distributed --config r.yaml", {}),
        ("python -u /s/recipes/lora_finetune_distributed.py --config r.yaml", WORKER),
    ],
)
def test_distributed_recipes_of_torchtune_shard(read: Read, tmp_path: Path, line: str, environ: dict[str, str]) -> None:
    (tmp_path / "r.yaml").write_text(TUNE + "tensor_parallel_dim: 2\nfsdp_cpu_offload: true\n")
    reading = read(line, **environ)
    assert values(reading, "parallel.strategy", "parallel.data_shard", "parallel.tensor") == ("fsdp2", 2, 2)
    assert values(reading, "parallel.cpu_offload") == ("all",)


def test_the_qlora_builder_of_torchtune_quantizes(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(TUNE.replace("lora_llama3", "qlora_llama3"))
    assert values(read_config_file(tmp_path / "r.yaml", environ={}), "lora.quantization") == ("nf4-double",)


@pytest.mark.parametrize("key", ["tasks: [truthfulqa_mc2]", "max_new_tokens: 300"])
def test_recipes_of_torchtune_that_evaluate_or_generate_train_nothing(tmp_path: Path, key: str) -> None:
    (tmp_path / "r.yaml").write_text(TUNE.partition("optimizer:")[0] + key)
    with pytest.raises(CannotTellError, match="trains nothing"):
        read_config_file(tmp_path / "r.yaml", environ={})


def test_a_configuration_that_torchtune_ships_is_copied_where_torchtune_is_not_installed(read: Read) -> None:
    with pytest.raises(CannotTellError, match=r"tune cp llama3_1/8B_lora my\.yaml"):
        read("tune run lora_finetune_single_device --config llama3_1/8B_lora")


TITAN = """
[job]
dump_folder = "out"
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
[training]
local_batch_size = 6
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""


def test_torchtitan_toml_on_the_command_line(read: Read, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(TITAN)
    line = "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file t.toml --training.seq_len 8192"
    job = read(line).job()
    assert job.training.framework == "torchtitan"
    assert (job.model.id, job.training.micro_batch, job.training.sequence_length) == (
        "meta-llama/Llama-3.1-8B",
        6,
        8192,
    )
    assert (job.training.precision, job.training.optimizer, job.training.compile) == ("bf16-mixed", "adamw-fused", True)
    parallel = job.parallel
    assert (parallel.strategy, parallel.data_shard, parallel.tensor) == ("fsdp2", 4, 2)
    assert parallel.sequence_parallel
    assert job.training.activation_checkpointing == "full"


def test_torchtitan_pipeline_cuts_the_batch(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        TITAN.replace(
            "tensor_parallel_degree = 2", "pipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 2"
        )
    )
    reading = read_config_file(tmp_path / "t.toml", environ={})
    assert values(reading, "training.micro_batch", "training.gradient_accumulation", "parallel.pipeline") == (2, 3, 2)
    assert values(reading, "parallel.reshard_after_forward") == (False,)
    assert reading.missing == ("parallel.data_shard",)


def test_torchtitan_with_the_current_launch_line(read: Read) -> None:
    reading = read(
        "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b"
        " --training.max_context_length 8192 --training.num_tokens_per_microbatch_per_dp_rank 16384"
    )
    assert values(reading, "model.id", "training.micro_batch", "training.sequence_length", "parallel.data_shard") == (
        ("meta-llama/Llama-3.1-8B", 2, 8192, 8)
    )


def test_function_of_torchtitan_is_named_where_it_decides(read: Read) -> None:
    line = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b --training.seq_len 64"
    reading = read(line)
    assert any("llama3_8b is a Python function, which vramtop does not read" in warning for warning in reading.warnings)
    micro = {"training.micro_batch": 1}
    unsure = reading.job(micro).unsure
    assert (unsure.activations, unsure.weights, unsure.logits) == ("either", "less", "less")
    stated = read(f"{line} --activation_checkpoint.mode full --parallelism.tensor_parallel_degree 1")
    assert (stated.job(micro).unsure.activations, stated.job(micro).unsure.gradients) == ("no", "no")


AUTOMODEL = """
step_scheduler:
  global_batch_size: 64
  local_batch_size: 2
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: org/model
  torch_dtype: bfloat16
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  target_modules: ['*.q_proj', '*.v_proj']
  dim: 24
distributed:
  strategy: fsdp2
  dp_size: none
  tp_size: 2
  activation_checkpointing: true
loss_fn:
  _target_: nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy
packed_sequence:
  packed_sequence_size: 3000
optimizer:
  _target_: torch.optim.AdamW
"""


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("torchrun --nproc-per-node 8 -m nemo_automodel.cli.app a.yaml", {}),
        ("python -u /s/nemo_automodel/recipes/llm/train_ft.py -c a.yaml", WORKER | {"WORLD_SIZE": "8"}),
    ],
)
def test_automodel(read: Read, tmp_path: Path, line: str, environ: dict[str, str]) -> None:
    (tmp_path / "a.yaml").write_text(AUTOMODEL)
    job = read(line, **environ).job()
    assert (job.training.micro_batch, job.training.sequence_length, job.training.gradient_accumulation) == (2, 3000, 8)
    parallel = job.parallel
    assert (parallel.strategy, parallel.data_shard, parallel.tensor) == ("fsdp2", 4, 2)
    assert (job.training.loss, job.training.activation_checkpointing) == ("fused-linear", "full")
    assert job.lora is not None
    assert (job.lora.rank, job.lora.targets) == (24, ["q_proj", "v_proj"])


def test_automodel_configuration_alone_lacks_the_ranks(read: Read, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(AUTOMODEL)
    assert read("automodel a.yaml").missing == ("parallel.data_shard",)
    assert values(read("automodel a.yaml --nproc-per-node 4"), "parallel.data_shard") == (2,)
    assert read_config_file(tmp_path / "a.yaml", environ={}).missing == ("parallel.data_shard",)


def test_litgpt(read: Read) -> None:
    reading = read(
        "litgpt finetune_lora checkpoints/org/model --precision bf16-true --quantize bnb.nf4-dq --lora_r 4"
        " --lora_key true --train.micro_batch_size 3 --train.max_seq_length 256"
    )
    job = reading.job()
    assert (job.model.id, job.training.framework, job.training.precision) == ("org/model", "litgpt", "bf16")
    assert (job.training.micro_batch, job.training.sequence_length) == (3, 256)
    assert job.lora is not None
    assert (job.lora.rank, job.lora.targets, job.lora.quantization) == (4, ["q_proj", "k_proj", "v_proj"], "nf4-double")


def test_litgpt_full_on_two_devices(read: Read, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("checkpoint_dir: org/model\ndevices: 2\ntrain:\n  max_seq_length: 128\n")
    for reading in (read("litgpt finetune_full --config f.yaml"), read_config_file(tmp_path / "f.yaml", environ={})):
        assert values(reading, "lora.rank", "parallel.strategy", "parallel.data_shard") == (None, "fsdp1", 2)
        assert values(reading, "training.micro_batch", "training.sequence_length") == (1, 128)


def test_megatron(read: Read) -> None:
    reading = read(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 512 --num-attention-heads 8"
        " --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 --bf16"
        " --vocab-size 50257 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"
        " --recompute-granularity selective"
    )
    job = reading.job()
    assert job.model.config is not None
    assert (job.model.config["n_layer"], job.model.config["n_inner"], job.model.config["vocab_size"]) == (
        12,
        2048,
        50432,
    )
    assert (job.training.micro_batch, job.training.gradient_accumulation, job.training.precision) == (
        4,
        4,
        "bf16-mixed",
    )
    parallel = job.parallel
    assert (parallel.strategy, parallel.data_shard, parallel.tensor) == ("zero1", 4, 2)
    assert parallel.sequence_parallel
    assert job.training.activation_checkpointing == "selective"
    assert reading.missing == ()


def test_megatron_with_experts_and_its_own_fsdp(read: Read) -> None:
    reading = read(
        "python -u train.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --group-query-attention"
        " --num-query-groups 4 --swiglu --ffn-hidden-size 3584 --num-experts 8 --moe-router-topk 2 --seq-length 2048"
        " --micro-batch-size 1 --vocab-size 32000 --bf16 --use-megatron-fsdp"
        " --data-parallel-sharding-strategy optim_grads_params --untie-embeddings-and-output-weights"
        " --nccl-ub --outer-dp-sharding-strategy optim --suggested-communication-unit-size 200000000"
        " --megatron-fsdp-main-params-dtype auto --megatron-fsdp-main-grads-dtype bf16"
        " --megatron-fsdp-grad-comm-dtype auto --keep-fp8-transpose-cache --fp8-format hybrid",
        **WORKER,
    )
    job = reading.job()
    assert job.model.config is not None
    assert job.model.config["model_type"] == "mixtral"
    assert (job.model.config["num_key_value_heads"], job.model.config["num_local_experts"]) == (4, 8)
    assert (job.parallel.strategy, job.parallel.sharding, job.parallel.data_shard) == (
        ("megatron-fsdp", "optim_grads_params", 4)
    )
    parallel = job.parallel
    assert (parallel.double_buffer, parallel.outer_sharding, parallel.communication_unit) == (True, "optim", 2 * 10**8)
    assert (parallel.main_weights, parallel.gradient_dtype, parallel.reduce_dtype) == (False, "bf16", None)
    assert job.unsure.weights == "more"  # FP8's transposed copies


def test_megatron_without_gates(read: Read) -> None:
    sizes = "pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 --merge-file m --seq-length 64"
    grouped = read(f"{sizes} --micro-batch-size 1 --group-query-attention --num-query-groups 2 --log-num-zeros-in-grad")
    config = grouped.job().model.config
    assert config is not None
    assert (config["model_type"], config["num_key_value_heads"], config["vocab_size"]) == ("plain-gpt", 2, 50304)
    assert grouped.job().unsure == Uncertainties()
    for flag in ("--num-experts 4", "--multi-latent-attention"):
        assert read(f"{sizes} --micro-batch-size 1 {flag}").job().unsure.activations != "no"


DPO = """
model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
tokenizer:
  max_seq_len: 512
ref_checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
batch_size: 4
optimizer:
  _component_: torch.optim.AdamW
loss:
  _component_: torchtune.rlhf.loss.DPOLoss
dtype: bf16
"""


def test_torchtune_dpo_holds_a_reference_and_two_sequences(read: Read, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(DPO)
    reading = read("tune run --nproc_per_node 4 full_dpo_distributed --config r.yaml")
    keys = ("training.sequences_per_example", "training.loss", "training.reference_pass", "other_models")
    assert values(reading, *keys) == (2, "log-probs", True, [{"role": "reference", "sharded": True}])
    (tmp_path / "r.yaml").write_text(DPO.replace("ref_checkpointer", "other_checkpointer"))
    assert read("tune run lora_dpo_single_device --config r.yaml").value("other_models") is None


def test_torchtune_distillation_doubts_a_teacher(read: Read, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(TUNE + "teacher_model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\n")
    reading = read("tune run knowledge_distillation_single_device --config r.yaml")
    assert (reading.job().unsure.weights, reading.job().unsure.logits) == ("more", "more")


def test_torchtune_ppo_is_doubted(read: Read, tmp_path: Path) -> None:
    text = "policy_model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\ntokenizer: {max_seq_len: 512}\n"
    (tmp_path / "r.yaml").write_text(f"{text}batch_size: 4\ndtype: bf16\n")
    reading = read("tune run ppo_full_finetune_single_device --config r.yaml")
    assert reading.value("model.id") == "meta-llama/Llama-3.1-8B"
    assert any("PPO's reference" in warning for warning in reading.warnings)
    assert reading.job().unsure.optimizer == "more"
