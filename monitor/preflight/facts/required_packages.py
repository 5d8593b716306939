"""Python packages that a job needs: distributions by its settings, and modules by its reporting targets."""

from collections.abc import Iterator
from dataclasses import dataclass

from vramtop.estimator.job import Job
from vramtop.estimator.job.rules import FRAMEWORKS, OPTIMIZERS, STRATEGIES

_ATTENTION_LIBRARIES = {
    "flash_attention_2": ("flash-attn", "kernels"),
    "flash_attention_3": ("flash-attn-3", "kernels"),
}
"""Distributions by ``model.attention``, of which one is enough."""
_SETTING_LIBRARIES = ("peft", "bitsandbytes", "liger-kernel", "unsloth", "vllm", "sglang")
"""Distributions that single settings need."""
DISTRIBUTIONS = tuple(
    dict.fromkeys(
        (
            *(name for row in FRAMEWORKS.values() for name in (*row.libraries, *row.training_libraries)),
            *(name for row in STRATEGIES.values() for name in row.libraries),
            *(name for names in _ATTENTION_LIBRARIES.values() for name in names),
            *(
                name
                for row in OPTIMIZERS.values()
                for name in (*row.libraries, *row.trainer_libraries, *row.other_libraries)
            ),
            *_SETTING_LIBRARIES,
        )
    )
)
"""All distributions that ``required_libraries`` may name."""
REPORTING_MODULES: dict[str, tuple[tuple[str, ...], ...]] = {
    **{name: ((name,),) for name in ("wandb", "mlflow", "comet_ml", "neptune", "clearml", "codecarbon", "dvclive")},
    **{name: ((name,),) for name in ("swanlab", "trackio")},
    "tensorboard": (("tensorboard", "tensorboardX"),),
    "flyte": (("flytekit",),),
    "azure_ml": (("azureml",),),
    "dagshub": (("dagshub",), ("mlflow",)),
    "kubeflow": (),
}
"""Groups of modules by reporting target; one of each group is enough.

Names of the targets as in transformers (integrations/integration_utils.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredLibrary:
    """A library that the job needs."""

    alternatives: tuple[str, ...]
    """Distributions, of which one is enough; the first is the usual one."""
    reason: str


def required_libraries(job: Job) -> Iterator[RequiredLibrary]:
    """Yield the libraries that a job needs, each with the setting that needs it."""
    training, framework = job.training, FRAMEWORKS[job.training.framework]
    strategy, optimizer = STRATEGIES[job.parallel.strategy], OPTIMIZERS.get(job.training.optimizer)
    if job.is_served:
        engine = job.inference.engine if job.inference else ""
        for library in ("torch", engine):
            yield RequiredLibrary(alternatives=(library,), reason=f"engine = {engine}")
        return
    trains, uses_trainer = training.mode == "train", framework.name == "transformers"
    for name in (*framework.libraries, *(framework.training_libraries if trains else ())):
        yield RequiredLibrary(alternatives=(name,), reason=f"framework = {framework.name}")
    if job.lora and uses_trainer:
        yield RequiredLibrary(alternatives=("peft",), reason="LoRA adapters")
    if job.lora and job.lora.quantization != "none":
        yield RequiredLibrary(alternatives=("bitsandbytes",), reason=f"quantization = {job.lora.quantization}")
    if trains and optimizer is not None:
        for name in (*optimizer.libraries, *(optimizer.trainer_libraries if uses_trainer else ())):
            alternatives = (name, *optimizer.other_libraries)
            yield RequiredLibrary(alternatives=alternatives, reason=f"optimizer = {optimizer.name}")
    if trains and job.rollout is not None and job.rollout.engine == "vllm":
        yield RequiredLibrary(alternatives=("vllm",), reason="rollout.engine = vllm")
    if job.model.attention in _ATTENTION_LIBRARIES:
        alternatives = _ATTENTION_LIBRARIES[job.model.attention]
        yield RequiredLibrary(alternatives=alternatives, reason=f"attention = {job.model.attention}")
    if strategy.libraries and framework.name != "megatron":  # Megatron-LM brings its own
        yield RequiredLibrary(alternatives=strategy.libraries, reason=f"strategy = {strategy.name}")
    if trains and training.fused_kernels:
        kernels = ", ".join(training.fused_kernels)
        yield RequiredLibrary(alternatives=("liger-kernel", "unsloth"), reason=f"fused_kernels = {kernels}")
    elif training.loss in ("fused-linear", "fused-log-probs") and uses_trainer:
        yield RequiredLibrary(alternatives=("liger-kernel",), reason=f"loss = {training.loss}")
