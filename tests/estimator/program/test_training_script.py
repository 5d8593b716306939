"""The program that a described job stands for: what it says, that it runs, and that it takes what the job takes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_configs import llama_config
from rehearsed import rehearse

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.program.text_script import training_script
from vramtop.estimator.program.training_script import How, start_command

LLAMA = llama_config(hidden=256, mlp=512, layers=3, heads=4, kv_heads=2, vocab=4096)
BATCH = {"micro_batch": 2, "sequence_length": 128}
FSDP = {"strategy": "fsdp2", "data_shard": 4}
CHECKPOINTED = {"activation_checkpointing": "full", "gradient_accumulation": 2}


def job_of(**tables: Any) -> Job:
    model = {"config": LLAMA, **tables.pop("model", {})}
    training = {**BATCH, **tables.pop("training", {})}
    return job_from_mapping({"model": model, "training": training, **tables}, where="job")


def script_of(job: Job, **options: Any) -> str:
    return training_script(job, resolve_model(job.model), how=How(**options))


JOBS = {
    "weights in bf16": job_of(training={"precision": "bf16"}),
    "autocast and checkpoints": job_of(training={"precision": "bf16-mixed", **CHECKPOINTED}),
    "adapters": job_of(training={"precision": "bf16"}, lora={"rank": 8, "targets": "all-linear", "dropout": 0.1}),
    "batches of other lengths": job_of(training={"precision": "bf16", "varying_lengths": True}),
    "classes of sequences of other lengths": job_of(
        training={"precision": "fp32", "varying_lengths": True}, model={"task": "sequence-classification"}
    ),
    "FSDP1 over four GPUs": job_of(training={"precision": "bf16-mixed"}, parallel={**FSDP, "strategy": "fsdp1"}),
    "FSDP2 over four GPUs": job_of(training={"precision": "bf16-mixed"}, parallel=FSDP),
}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_rehearsals")
@pytest.mark.parametrize("name", JOBS)
def test_its_rehearsal_allocates_what_a_traced_step_of_the_job_does(name: str, in_folder: Path) -> None:
    job = JOBS[name]
    Path("train.py").write_text(script_of(job), encoding="utf-8")
    command = start_command(job, "train.py").replace("python", sys.executable, 1).split()
    if command[0] == "torchrun":
        command[:1] = [sys.executable, "-m", "torch.distributed.run"]
    gpu = find_gpu("h100-80gb")
    rehearsed, traced = rehearse(command, gpu=gpu).budget, estimate(job, method="traced", gpu=gpu)
    assert rehearsed.peak.allocated_bytes == pytest.approx(traced.peak.allocated_bytes, rel=0.002)
    assert rehearsed.peak.phase == traced.peak.phase
    if job.parallel.strategy != "fsdp1":  # of which one rank's shards are counted
        assert rehearsed.model.trainable_parameters == traced.model.trainable_parameters


def test_it_runs_as_it_is_printed(tmp_path: Path, python_with_torch: str) -> None:
    text = script_of(job_of(training={"precision": "bf16", "sequence_length": 16, **CHECKPOINTED}, lora={"rank": 4}))
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python_with_torch, "train.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "train_runtime" in done.stdout


def test_what_was_left_open_has_a_comment() -> None:
    job = job_of(lora={"rank": 8})
    text = script_of(job, stated={"training.sequence_length", "lora.rank"})
    lines = {line.strip() for line in text.splitlines()}
    assert "r=8," in lines
    assert 'target_modules=["q_proj", "v_proj"],  # not set' in lines
    assert "per_device_train_batch_size=2,  # not set" in lines
    assert not [line for line in lines if line.startswith("tokens = ") and "not set" in line]
    assert "not set" not in script_of(job)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training": {"framework": "torchtitan"}}, "torchtitan"),
        ({"training": {"mode": "inference"}, "parallel": {"device_map": "auto"}}, "placed by a device map"),
        ({"training": {"mode": "inference"}, "parallel": {"tensor": 2}}, "spreads the model over GPUs"),
        ({"training": {"mode": "inference", "precision": "bf16-mixed"}}, "under autocast"),
        ({"training": {"mode": "inference", "precision": "bf16", "compile": True}}, "cache of its own"),
        ({"training": {"mode": "inference"}, "inference": {"weights": "int4"}}, "int4 come from a checkpoint"),
        ({"parallel": {"context": 2}}, "over GPUs"),
        ({"parallel": {"tensor": 2}, "lora": {"rank": 8}}, "adapters have no plan"),
        ({"parallel": {"tensor": 4}}, "4 GPUs cannot share 2 key-value heads"),
        ({"parallel": {"tensor": 2}, "model": {"config": {**LLAMA, "model_type": "gpt_neox"}}}, "not gpt_neox"),
        ({"training": {"optimizer": "muon"}}, "muon"),
        ({"training": {"keep_outputs": True}}, "training.keep_outputs"),
        ({"training": {"trainable": ["!norm"]}, "lora": {"rank": 8}}, "frozen beside adapters"),
    ],
)
def test_a_job_without_a_program_is_refused_by_the_setting(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CannotTellError, match=f"no program can be written for this job yet: .*{said}"):
        script_of(job_of(**changes))


SPLIT = {
    "alone": job_of(training={"precision": "bf16"}, parallel={"tensor": 2}),
    "autocast, tied": job_of(
        training={"precision": "bf16-mixed", "activation_checkpointing": "full"},
        model={"config": {**LLAMA, "tie_word_embeddings": True}},
        parallel={"tensor": 2},
    ),
    "and FSDP2": job_of(training={"precision": "bf16"}, parallel={**FSDP, "data_shard": 2, "tensor": 2}),
}


@pytest.mark.parametrize("name", ["alone", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SPLIT][1:])])
def test_layers_that_are_split_over_gpus_take_what_the_closed_form_says(name: str) -> None:
    job, gpu = SPLIT[name], find_gpu("h100-80gb")
    assert start_command(job, "train.py") == f"torchrun --nproc-per-node {job.parallel.world_size} train.py"
    traced, exact = (estimate(job, method=method, gpu=gpu).peak for method in ("traced", "exact"))
    assert traced.allocated_bytes == pytest.approx(exact.allocated_bytes, rel=0.01)
    assert traced.components.weights == pytest.approx(exact.components.weights, rel=0.01)


@pytest.mark.parametrize("sharding", ["fsdp1", "fsdp2", "zero3", "ddp"])
def test_each_strategy_has_its_settings_and_its_launcher(sharding: str) -> None:
    ranks = {"data_replicate": 4} if sharding == "ddp" else {"data_shard": 4}
    job = job_of(parallel={"strategy": sharding, **ranks}, lora={"rank": 8, "quantization": "nf4"})
    text = script_of(job)
    compile(text, "train.py", "exec")
    assert max(map(len, text.splitlines())) <= 120
    assert start_command(job, "train.py") == "torchrun --nproc-per-node 4 train.py"
    assert ("fsdp_config=" in text, "deepspeed=" in text) == (sharding.startswith("fsdp"), sharding == "zero3")
    assert ("quant_storage=torch.bfloat16" in text) == sharding.startswith("fsdp")


def test_frozen_weights_are_recomputed_in_the_way_that_works_under_deepspeed_stage_3() -> None:
    shards = {"strategy": "zero3", "data_shard": 4}
    texts = [script_of(job_of(training=CHECKPOINTED, parallel=shards, **lora)) for lora in ({}, {"lora": {"rank": 4}})]
    assert ['"use_reentrant": True' in text for text in texts] == [False, True]


def test_stage_3_knows_its_arguments_before_the_model_is_built() -> None:
    """Only then does transformers build it in parts, with linear layers of which autograd keeps no whole weight."""
    job = job_of(training={"precision": "bf16"}, parallel={"strategy": "zero3", "data_shard": 4})
    text = script_of(job)
    assert text.index("TrainingArguments(\n") < text.index("from_config(")
    assert "bf16=True" in text
    stage_2 = script_of(job_of(parallel={"strategy": "zero2"}))
    assert stage_2.index("from_config(") < stage_2.index("TrainingArguments(\n")
    assert start_command(job_of(parallel={"strategy": "zero2"}), "train.py") == "torchrun --nproc-per-node 1 train.py"


def test_settings_beside_the_step_are_in_the_script() -> None:
    job = job_of(training={"evaluation_batch": 4, "trainable": ["lm_head"]}, lora={"rank": 8}, parallel=FSDP)
    text = script_of(job)
    compile(text, "train.py", "exec")
    assert "per_device_eval_batch_size=4," in text
    assert "eval_dataset=[item] * 16" in text
    assert "modules_to_save=" in text
    assert "# needs transformers==5.20" in script_of(job_of(software={"transformers": "5.20"}))


OWN_OPTIMIZER = """
import torch
class Copies(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, copies=2):
        super().__init__(params, {"lr": lr, "copies": copies})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                for number in range(group["copies"]):
                    self.state[each].setdefault(number, torch.zeros_like(each)).add_(each.grad)
"""


@pytest.fixture
def own_optimizer(tmp_path: Path) -> Job:
    """A job with an optimizer of the user's own."""
    (tmp_path / "own_optimizer.py").write_text(OWN_OPTIMIZER, encoding="utf-8")
    own = {"optimizer": "own_optimizer:Copies", "optimizer_options": {"copies": 5}, "precision": "fp32"}
    return job_of(model={"code_folder": str(tmp_path)}, training=own)


def test_an_optimizer_of_the_user_s_own_is_in_the_script(own_optimizer: Job, tmp_path: Path) -> None:
    text = script_of(own_optimizer)
    assert f'sys.path.insert(0, "{tmp_path}")' in text
    assert 'optimizer = own_optimizer.Copies, {"copies": 5}' in text


@pytest.mark.slow
def test_an_optimizer_of_the_user_s_own_is_stepped(own_optimizer: Job) -> None:
    traced = estimate(own_optimizer, method="traced")
    weights = 4 * traced.model.parameters
    assert traced.peak.components.optimizer == pytest.approx(5 * weights, rel=0.001)
    counted = estimate(own_optimizer, method="exact").peak  # which does not step it
    assert counted.low_bytes <= traced.peak.device_bytes <= counted.high_bytes


SFT, DPO = {"loss": "chunked"}, {"loss": "chunked", "sequences_per_example": 2, "reference_pass": True}
GRPO = {"loss": "chunked", "loss_length": 8, "micro_batch": 4, "precision": "bf16-mixed"}
REFERENCE = [{"role": "reference"}]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"training": SFT}, ["SFTTrainer(", "bf16=False,", "gradient_checkpointing=False,", "max_length=128,"]),
        ({"training": SFT, "lora": {"rank": 8}}, ["peft_config=adapters,", 'item = {"input_ids": tokens}']),
        ({"training": DPO, "other_models": REFERENCE}, ["DPOTrainer(", "reference = AutoModel", "    reference,"]),
        ({"training": DPO, "lora": {"rank": 8}}, ["peft_config=adapters,", '"chosen": answer']),
        ({"training": {**DPO, "reference_pass": False}}, ["precompute_ref_log_probs=True,"]),
        (
            {"training": GRPO, "rollout": {"micro_batches": 3}},
            ["GRPOTrainer(", "max_completion_length=8,", "bf16=True,"],
        ),
        ({"training": GRPO, "rollout": {"micro_batches": 3}}, ["num_generations=6,", "steps_per_generation=3,"]),
        ({"training": GRPO, "rollout": {}, "parallel": FSDP}, ["fsdp_config=", "num_generations=8,", "tokens[:120]"]),
    ],
)
def test_a_job_of_trl_s_has_its_trainer_and_arguments(tables: dict[str, Any], words: list[str]) -> None:
    text = script_of(job_of(**tables))
    compile(text, "train.py", "exec")
    assert [word for word in words if word not in text] == []
    assert "get_peft_model" not in text
    assert "from trl import " in text


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"training": {**DPO, "loss": "log-probs"}}, "the loss log-probs is not DPOTrainer's"),
        ({"training": {**SFT, "reference_pass": True}, "other_models": REFERENCE}, "other models"),
        ({"training": DPO, "other_models": REFERENCE, "lora": {"rank": 8}}, "none with adapters"),
        ({"training": DPO, "other_models": REFERENCE, "parallel": FSDP}, "shards its reference model"),
        ({"training": GRPO, "rollout": {"engine": "vllm"}}, "vLLM generates"),
        ({"training": {**GRPO, "micro_batch": 1}, "rollout": {}}, "training.micro_batch"),
        ({"training": {**GRPO, "loss_length": None}, "rollout": {}}, "training.loss_length"),
        ({"training": GRPO, "rollout": {}, "other_models": [{"role": "reference"}]}, "--beta 0 leaves it out"),
        ({"training": {**GRPO, "optimizer": "sgd-momentum"}, "rollout": {}}, "takes no class of an optimizer"),
    ],
)
def test_a_job_that_trl_s_trainers_do_otherwise_is_refused(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(CannotTellError, match=said):
        script_of(job_of(**tables))


@pytest.mark.parametrize("tables", [{"training": SFT}, {"training": DPO, "lora": {"rank": 8}}])
def test_trl_s_script_allocates_what_the_closed_form_says(tables: dict[str, Any], in_folder: Path) -> None:
    pytest.importorskip("trl")
    job = job_of(**{**tables, "training": {**tables["training"], "precision": "bf16-mixed", "sequence_length": 512}})
    Path("train.py").write_text(script_of(job), encoding="utf-8")
    rehearsed = rehearse([sys.executable, "train.py"], gpu=find_gpu("h100-80gb")).budget.peak
    formula = estimate(job, method="formula").peak
    assert rehearsed.allocated_bytes == pytest.approx(formula.allocated_bytes, rel=0.03)


def test_a_config_without_a_first_token_of_the_decoder_gets_one() -> None:
    model = {"task": "seq2seq-lm", "config": {**LLAMA, "model_type": "t5", "d_model": 64}}
    assert "    decoder_start_token_id=0," in script_of(job_of(model=model))
    assert "decoder_start_token_id" not in script_of(job_of())


T5 = {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 512}
BERT = {**{key: LLAMA[key] for key in LLAMA if key != "num_key_value_heads"}, "model_type": "bert"}


def test_a_head_of_its_own_is_untied_as_the_checkpoint_s_is() -> None:
    """transformers 5 ties T5's whatever the config says, and unties it when it loads the weights."""
    job = job_of(model={"task": "seq2seq-lm", "config": {**T5, "tie_word_embeddings": False}})
    traced, formula = (estimate(job, method=method).model for method in ("traced", "formula"))
    assert traced.parameters == formula.parameters


def test_embeddings_of_encoders_are_no_unit_of_their_own() -> None:
    """accelerate wraps the blocks that the model names, BERT's embeddings among them, and the embeddings again."""
    model = {"task": "sequence-classification", "config": BERT}
    job = job_of(model=model, parallel={"strategy": "fsdp2", "data_shard": 2})
    assert estimate(job, method="traced").method == "traced"


def test_a_program_that_fails_is_a_warning() -> None:
    job = job_of(model={"task": "seq2seq-lm", "config": T5}, parallel={"strategy": "fsdp2", "data_shard": 2})
    budget = estimate(job, method="auto")
    assert budget.method != "traced"
    (said,) = [each for each in budget.warnings if each.startswith("A run may fail before it trains")]
    assert "shared.weight" in said


@pytest.mark.parametrize(("version", "name"), [("4.52.4", "torch_dtype"), ("4.56", "dtype"), (None, "dtype")])
def test_the_argument_of_the_dtype_is_the_versions(version: str | None, name: str) -> None:
    job = job_from_mapping(
        {"model": {"id": "gpt2"}, "software": {"transformers": version} if version else {}}, where=""
    )
    assert f"    {name}=torch." in script_of(job)
    assert "    torch_dtype=torch." in script_of(job, transformers="4.45.2")  # of the Python that runs it


@pytest.mark.parametrize(("version", "home"), [("4.57", "integrations.bitsandbytes"), ("5.0", "quantizers.base")])
def test_what_bitsandbytes_keeps_is_asked_where_the_version_has_it(version: str, home: str) -> None:
    adapters = {"rank": 8, "quantization": "nf4"}
    fields = {"model": {"id": "gpt2"}, "lora": adapters, "software": {"transformers": version}}
    assert f"from transformers.{home} import get_keys_to_not_convert" in script_of(job_from_mapping(fields, where=""))
