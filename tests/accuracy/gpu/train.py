"""Trains a causal language model on random tokens with transformers' Trainer, as a usual training script does.

``--model_name_or_path`` is a folder with a ``config.json``: weights are random and nothing is downloaded.
"""

import itertools
import json
import resource
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

WARM_STEPS = 5
"""Steps at the start that are left out of the median."""


@dataclass
class ModelArguments:
    """What is trained."""

    model_name_or_path: str = field(metadata={"help": "folder with a config.json"})


@dataclass
class DataArguments:
    """What it is trained on."""

    max_length: int = field(default=1024, metadata={"help": "tokens per sequence"})


@dataclass
class MeasuringArguments:
    """What is measured, and what memory there is."""

    figures: str | None = field(default=None, metadata={"help": "file for steps and median seconds of a step (JSON)"})
    memory_limit_mib: int | None = field(
        default=None, metadata={"help": "MiB of address space that the training may take, beyond what it has before"}
    )


class StepTimes(TrainerCallback):
    """Measures the time between the ends of steps; writes the file after the first step and at the end."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Note the time; the Trainer has waited for the GPU, as it looks at the loss of every step."""
        self._ends.append(time.perf_counter())
        if len(self._ends) == 1:
            self._write()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Write the file for the last time."""
        self._write()

    def _write(self) -> None:
        ends = self._ends[WARM_STEPS:]
        seconds = [after - before for before, after in itertools.pairwise(ends)]
        figures = {"steps": len(self._ends), "step_seconds": statistics.median(seconds) if seconds else None}
        if self._path is not None:
            new = Path(f"{self._path}.new")
            new.write_text(json.dumps(figures))
            new.replace(self._path)


def limit_memory(mib: int) -> None:
    """Let this process have so much more address space than it has now."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + mib * 2**20, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> None:
    """Train."""
    parser = HfArgumentParser((ModelArguments, DataArguments, MeasuringArguments, TrainingArguments))
    model_args, data_args, measuring_args, training_args = parser.parse_args_into_dataclasses()
    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    tokens = torch.randint(config.vocab_size, (100, data_args.max_length))
    trainer = Trainer(
        model=AutoModelForCausalLM.from_config(config),
        args=training_args,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens] * 1000,
        callbacks=[StepTimes(measuring_args.figures)],
    )
    if measuring_args.memory_limit_mib is not None:
        limit_memory(measuring_args.memory_limit_mib)
    trainer.train()


if __name__ == "__main__":
    main()
