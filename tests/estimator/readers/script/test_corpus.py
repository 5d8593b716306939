"""What is read from small scripts, compared with what trained when they were run (``record_corpus.py``)."""

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.estimator.readers.script.corpus_scripts import Example, examples, truths, write_models
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.job.rules.optimizers.by_name import optimizer_by_class
from vramtop.estimator.job.settings import Task
from vramtop.estimator.job.trainable import trainable_rules
from vramtop.estimator.model.adapters import adapter_elements
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.inventory import Inventory
from vramtop.estimator.model.read_architecture import read_architecture, usual_task
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

TRUTH = truths()
SMALL = 0.02
"""Share of a count that a head of a few labels may be off by."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def elements(shape: tuple[int, ...]) -> int:
    return prod(shape)


def shapes_of(config: Mapping[str, Any], task: Task) -> dict[str, tuple[int, ...]] | None:
    """Return the parameters of transformers' model for a config by name; None for a family that is not known."""
    try:
        inventory = count_parameters(read_architecture(config, task))
    except (VramtopError, ArithmeticError, TypeError, ValueError):
        return None
    if inventory.count != "exact":
        return None
    found: dict[str, tuple[int, ...]] = {}
    for group in inventory.groups:
        if group.name.count("*") > 2 or len(found) + group.repeat > 20_000:
            return None
        inner = _inner_numbers(group.name)
        for number in _layer_numbers(group.name, group.repeat // len(inner), inventory.layers):
            outer = group.name.replace("*", str(number), 1)
            found.update({outer.replace("*", str(each)): group.shape for each in inner})
    return found


def _layer_numbers(name: str, repeat: int, layers: int) -> Iterator[int | str]:
    """Yield the numbers of the layers that have a parameter: the first layers of a mixture of experts may be dense."""
    if "*" not in name:
        yield "*"
    elif repeat < layers and re.search(r"experts|router|\.gate\.", name):
        yield from range(layers - repeat, layers)
    else:
        yield from range(repeat)


def _inner_numbers(name: str) -> tuple[int, ...]:
    """Return the numbers of T5's layers in a block that have a parameter."""
    if name.count("*") < 2:
        return (0,)
    decoder = name.startswith("decoder")
    layers = {"SelfAttention": (0,), "EncDecAttention": (1,), "DenseReluDense": (2,) if decoder else (1,)}
    return next((found for part, found in layers.items() if f".{part}." in name), (0, 1, 2) if decoder else (0, 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("corpus")
    write_models(found)
    return found


def read(folder: Path, example: Example) -> JobReading:
    (folder / "train.py").write_text(example.text.replace("use_cpu=True, ", ""))  # which recording them needs
    versions = {"transformers": "5.23.0", "peft": "0.21.2", "torch": "2.13.0"}
    return read_launch(
        ["python", "train.py", *example.arguments],
        environ={},
        cwd=folder,
        versions=versions,
        given={"training.keep_outputs": True},
    )


def config_of(job: Job) -> Mapping[str, Any]:
    return job.model.config or resolve_model(job.model).config


def inventory(config: Mapping[str, Any] | None, name: str | None, task: str | None) -> Inventory:
    table = config or resolve_model(ModelSpec(id=name)).config
    return count_parameters(read_architecture(table, task or usual_task(table)))  # type: ignore[arg-type]


def near(found: float, truth: float) -> bool:
    return abs(found - truth) <= SMALL * max(truth, 2_000)


def doubted(reading: JobReading, *components: str) -> bool:
    """True if a warning says so and the range of one of the components is wider."""
    return bool(reading.warnings) and any(each.component in components for each in reading.uncertainties)


def trained_elements(job: Job, model: Inventory) -> int:
    if job.training.trainable_parameters is not None:
        return job.training.trainable_parameters
    count = adapter_elements(model, resolve_job(job))
    if job.training.trainable is None:
        return count if job.lora is not None else model.parameters
    rules = trainable_rules(job.training.trainable, adapters=job.lora is not None)
    shapes = shapes_of(config_of(job), job.model.task)
    assert shapes is not None
    return count + sum(elements(shape) for name, shape in shapes.items() if rules.trains(name))


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_a_script_is_read_as_it_trains_or_doubted(folder: Path, example: Example) -> None:
    truth = TRUTH[example.name]
    reading = read(folder, example)
    trained = max(truth["models"], key=lambda model: (model["optimized"] > 0, model["trainable"], model["optimized"]))
    assert bool(reading.warnings) is example.is_open
    if "model.id" in reading.missing:
        assert doubted(reading, "weights")
        return
    overrides = {key: 8 for key in ("training.micro_batch", "training.sequence_length") if key in reading.missing}
    job = reading.job(overrides)
    model = inventory(job.model.config, job.model.id, job.model.task)
    states = ("weights", "gradients", "optimizer")
    assert near(model.parameters, trained["total"]) or doubted(reading, *states)
    optimized = trained["optimized"] + truth["beside"]
    assert near(trained_elements(job, model), max(optimized, trained["trainable"])) or doubted(reading, *states)
    assert near(optimized, trained["trainable"]) or truth["beside"] or doubted(reading, "optimizer")
    weights = job.training.precision.removesuffix("-mixed") if "mixed" not in job.training.precision else "fp32"
    assert DTYPES[weights] == trained["dtype"] or doubted(reading, "weights")
    row = optimizer_by_class(truth["optimizer"]).name
    assert job.training.optimizer.startswith(row) or doubted(reading, "optimizer")
    others = [each for each in truth["models"] if each is not trained]
    said = [
        inventory(each.config, each.id or job.model.id, each.task or job.model.task)
        for each in job.other_models
        if each.id is not None or each.config is not None
    ]
    same = [model for each in job.other_models if each.id is None and each.config is None]
    counts = sorted(each.parameters for each in (*said, *same))
    expected = sorted(each["total"] for each in others)
    right = len(counts) == len(expected) and all(map(near, counts, expected))
    assert right or doubted(reading, "weights")
