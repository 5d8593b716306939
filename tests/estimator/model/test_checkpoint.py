"""How a checkpoint stores its weights, and what of a job follows from that."""

from typing import Any

import msgspec
import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate, quick_estimator
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Inference, Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.settings import Lora, ModelSpec, Training
from vramtop.estimator.model.checkpoint import job_of_model, stored_dtype, stored_format
from vramtop.estimator.model.families.registry import FAMILIES
from vramtop.estimator.model.find_config import built_in_models, other_kind, resolve_model

LLAMA = dict(resolve_model(ModelSpec(id="llama-3.1-8b")).config)
LINEAR = 32 * (4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336)
BESIDE = 2 * 128256 * 4096 + 65 * 4096
"""Elements of linear layers, and of embedding, head and norms."""


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"dtype": "torch.float16", "torch_dtype": "float32"}, "fp16"),
        ({"text_config": {"dtype": "float32"}}, "fp32"),
        ({"torch_dtype": "float8_e4m3fn"}, None),
        ({}, None),
    ],
)
def test_the_type_of_the_weights(config: dict[str, Any], kind: str | None) -> None:
    assert stored_dtype(config) == kind


@pytest.mark.parametrize(
    ("stated", "kind"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4-double"),
        ({"load_in_8bit": True, "load_in_4bit": False}, "int8"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "of next year"}, None),
        ("4 bits", None),
    ],
)
def test_the_format_of_quantized_weights(stated: object, kind: str | None) -> None:
    assert stored_format({"quantization_config": stated}) == kind


def weights(model: ModelSpec, lora: Lora | None = None) -> int:
    """Return the bytes of the weights of a model that generates text, or that adapters train."""
    training = Training(mode="inference", sequence_length=128) if lora is None else Training(sequence_length=128)
    return estimate(Job(model=model, training=training, lora=lora)).phases[0].components.weights


@pytest.mark.parametrize(
    ("stated", "per_weight"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0),
        ({"quant_method": "awq", "bits": 4}, 0.5 + 2.5 / 128),
        ({"quant_method": "fp8"}, 1.0),
        (None, 2.0),
    ],
)
def test_the_weights_of_a_quantized_checkpoint_take_what_it_stores(stated: object, per_weight: float) -> None:
    found = weights(ModelSpec(config=LLAMA | {"quantization_config": stated}))
    assert found == pytest.approx(per_weight * LINEAR + 2 * BESIDE, rel=0.001)


def test_a_copy_in_four_bits_is_known_by_its_name() -> None:
    model = ModelSpec(id="unsloth/llama-3-8b-bnb-4bit")
    adapted = weights(model, Lora(rank=8))
    assert adapted == pytest.approx(weights(model), rel=0.01)
    assert adapted < 6 * GIB
    job = job_of_model(Job(model=model, lora=Lora()), resolve_model(model))
    assert job.lora.quantization == "nf4-double"
    with pytest.raises(InputError, match="stored in nf4-double and cannot be trained"):
        estimate(Job(model=model))
    awq = ModelSpec(id="Qwen/Qwen2.5-7B-Instruct-AWQ")
    served = job_of_model(Job(model=awq, training=Training(mode="inference")), resolve_model(awq))
    assert served.inference == Inference(weights="int4")


def test_weights_that_are_unpacked_for_training_are_counted_in_16_bits() -> None:
    trained = estimate(Job(model=ModelSpec(id="Qwen/Qwen3-8B-FP8"), training=Training(sequence_length=128)))
    plain = estimate(Job(model=ModelSpec(id="Qwen/Qwen3-8B"), training=Training(sequence_length=128)))
    assert trained.peak == plain.peak
    assert any("unpacked to 16 bits" in each for each in trained.assumptions)


def test_gpt_oss_is_served_as_it_is_stored() -> None:
    """Its experts have 19.1 of 20.9 thousand million parameters, in 4.25 bits (the checkpoint has 13.8 GB)."""
    tables = {"model": {"id": "gpt-oss-20b"}, "training": {"mode": "inference", "sequence_length": 128}}
    job = job_from_mapping(tables, where="test")
    budget = estimate(job)
    assert budget.peak.components.weights == pytest.approx(13.8e9, rel=0.02)
    assert any("Without the packages kernels and Triton" in warning for warning in budget.warnings)
    stated = estimate(job_from_mapping(tables | {"inference": {"weights": "mxfp4"}}, where="test"))
    assert stated.peak == budget.peak
    assert not any("kernels" in warning for warning in stated.warnings)
    unpacked = estimate(job, gpu=find_gpu("v100-32gb"))  # whose capability of 7.0 is below 7.5
    assert unpacked.peak.components.weights == pytest.approx(2 * 20.9e9, rel=0.02)


def test_fp8_weights_are_unpacked_on_a_gpu_that_cannot_compute_in_them() -> None:
    job = Job(model=ModelSpec(id="Qwen/Qwen3-8B-FP8"), training=Training(mode="inference"))
    packed, unpacked, unknown = (estimate(job, gpu=gpu) for gpu in (find_gpu("rtx-4090"), find_gpu("a100"), None))
    assert unpacked.peak.components.weights > 1.7 * packed.peak.components.weights
    assert any("unpacked to 16 bits, because A100" in each for each in unpacked.assumptions)
    assert packed.peak.high_bytes < unpacked.peak.low_bytes
    assert unknown.peak.device_bytes < unpacked.peak.device_bytes < unknown.peak.high_bytes
    assert any("name the GPU to narrow it" in each for each in unknown.warnings)
    served = estimate(msgspec.structs.replace(job, inference=Inference(engine="vllm")), gpu=find_gpu("a100"))
    assert served.peak.components.weights == packed.peak.components.weights


def test_a_budget_says_what_its_model_settled() -> None:
    budget = estimate(Job(model=ModelSpec(id="llama-3.1-8b")))
    assert (budget.job.training.precision, budget.job.training.optimizer) == ("bf16", "adamw-fused")
    assert budget.assumptions[0].startswith("The precision is bf16, transformers' default")
    assert budget.assumptions[1].startswith("The optimizer is adamw-fused")
    stated = estimate(Job(model=ModelSpec(id="llama-3.1-8b"), training=budget.job.training))
    assert stated.peak == budget.peak
    assert "transformers' default" not in " ".join(stated.assumptions)


def test_fsdp_gathers_a_model_as_one_unit_if_transformers_names_none_of_its_blocks() -> None:
    transformers = pytest.importorskip("transformers")
    model_types = transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES
    classes = {name: model_types[name] for name in FAMILIES if name in model_types}
    unnamed = {
        name
        for name, kind in classes.items()
        if not getattr(transformers, kind if isinstance(kind, str) else kind[0])._no_split_modules
    }
    job = job_from_mapping({"parallel": {"strategy": "fsdp2", "data_shard": 4}}, where="test")
    for name in classes:
        model = msgspec.structs.replace(resolve_model(ModelSpec(id="gpt2")), config={"model_type": name})
        assert (job_of_model(job, model).parallel.fsdp_units == "model") == (name in unnamed)
    budget = estimate(msgspec.structs.replace(job, model=ModelSpec(id="distilbert-base", task="masked-lm")))
    assert any("as one unit: transformers names none of its blocks" in each for each in budget.assumptions)


def test_a_quick_estimate_settles_each_changed_job() -> None:
    job = Job(model=ModelSpec(id="gpt2"))  # whose config states no type: it is older than the field, so fp32
    quick = quick_estimator(job)
    assert quick(job).job.training.precision == "fp32"
    assert quick(job).peak.components.weights == estimate(job).peak.components.weights


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("openai/whisper-large-v3", "speech"),
        ("black-forest-labs/FLUX.1-dev", "diffusion"),
        ("resnet50", "vision"),
        ("llava-hf/llava-1.5-7b-hf", "vision-language"),
    ],
)
def test_a_model_that_is_no_text_model_gets_a_sentence_of_what_to_do(name: str, kind: str) -> None:
    with pytest.raises(InputError, match=f"{name} is a {kind} model.* vramtop rehearse -- python train.py"):
        resolve_model(ModelSpec(id=name), environ={"HF_HOME": "/nonexistent"})


def test_no_built_in_model_is_taken_for_another_kind() -> None:
    names = [name for model in built_in_models() for name in (*model.names, model.id)]
    assert not [name for name in names if other_kind(name)]
