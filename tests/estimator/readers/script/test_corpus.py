"""What is read from small scripts, compared with what trained when they were run (``record_corpus.py``)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.estimator.readers.script.corpus_scripts import Example, examples, truths, write_models
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.job.rules.optimizers.by_name import optimizer_by_class
from vramtop.estimator.job.trainable import trainable_rules
from vramtop.estimator.model.architecture import Inventory
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.read_architecture import count_parameters, read_architecture, usual_task
from vramtop.estimator.model.trained_parameters import adapter_elements
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.script.models.model import elements, shapes_of
from vramtop.estimator.readers.source.evidence import JobReading

TRUTH = truths()
SMALL = 0.02
"""Share of a count that a head of a few labels may be off by."""
OPEN = {
    "a choice that only the run knows",
    "a fallback by exception",
    "a head of another size",
    "an optimizer of its own",
    "an optimizer of the head alone",
    "layers drawn at random",
    "prompt tuning",
    "shadow weights in a dictionary",
    "two towers, both trained",
}
"""Scripts that leave something open, or do what a job file cannot say; all others must be right."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("corpus")
    write_models(found)
    return found


def read(folder: Path, example: Example) -> JobReading:
    (folder / "train.py").write_text(example.text)
    versions = {"transformers": "5.23.0", "peft": "0.21.2", "torch": "2.13.0"}
    return read_launch(["python", "train.py", *example.arguments], environ={}, cwd=folder, versions=versions)


def config_of(job: Job) -> Mapping[str, Any]:
    return job.model.config or resolve_model(job.model).config


def inventory(config: Mapping[str, Any] | None, name: str | None, task: str | None) -> Inventory:
    table = config or resolve_model(ModelSpec(id=name)).config
    return count_parameters(read_architecture(table, task or usual_task(table)))  # type: ignore[arg-type]


def near(found: float, truth: float) -> bool:
    return abs(found - truth) <= SMALL * max(truth, 2_000)


def doubted(reading: JobReading, *components: str) -> bool:
    """True if the range holds another side, or if a warning says so and that of one of the components is wider."""
    named = bool(reading.warnings) and any(each.component in components for each in reading.uncertainties)
    return named or bool(reading.others)


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
    assert bool(reading.warnings or reading.others) is (example.name in OPEN)
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
