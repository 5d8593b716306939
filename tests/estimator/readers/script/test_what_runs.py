"""What a script really runs: where it goes on, and how many sequences an example puts into a batch."""

from pathlib import Path

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

HEAD = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
"""
LOAD = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', dtype=torch.bfloat16)\n"
ARGUMENTS = "TrainingArguments('x', per_device_train_batch_size=3, bf16=True)"
TRAIN = f"Trainer(model=model, args={ARGUMENTS}, data_collator=collate).train()\n"
SEQUENCES = "training.sequences_per_example"


def read(folder: Path, text: str, *arguments: str, **given: object) -> JobReading:
    (folder / "train.py").write_text(text)
    words = ["python", "train.py", *arguments]
    return read_launch(
        words, environ={}, cwd=folder, given={key.replace("__", "."): value for key, value in given.items()}
    )


def unsure(reading: JobReading) -> set[str]:
    return {each.component for each in reading.uncertainties if each.unless is None}


def warned(reading: JobReading, words: str) -> bool:
    return any(words in sentence for sentence in reading.warnings)


LOOKS = """
PEAKS = {'a100': 312, 'h100': 989}
def look(name):
    for key in PEAKS:
        if key in name:
            return PEAKS[key]
    raise ValueError(name)
peak = look(torch.cuda.get_device_name(0).lower())
"""


def test_an_error_after_a_return_that_may_have_happened_ends_no_script(tmp_path: Path) -> None:
    rest = "torch.optim.SGD(model.parameters(), lr=0.1).step()\n"
    reading = read(tmp_path, HEAD + LOAD + LOOKS + rest)
    assert reading.value("training.optimizer") == "sgd"
    assert not warned(reading, "ends in an error")


def test_a_script_that_ends_before_it_trains_says_so(tmp_path: Path) -> None:
    bad = "raise NotImplementedError\n"
    reading = read(tmp_path, HEAD + LOAD + bad + TRAIN)
    assert warned(reading, "train.py line 5: the script ends in an error before it trains")
    assert unsure(reading) >= {"weights", "gradients", "optimizer", "activations", "logits"}
    assert not warned(read(tmp_path, HEAD + LOAD + TRAIN.replace("collate", "None") + bad), "ends in an error")


COLLATOR = """
class Collator:
    def __call__(self, features):
        {body}
        return tokenizer.pad(flat)
collate = Collator()
"""
EXTENDS = "flat = []\n        for f in features:\n            flat.extend(f[1])"
NESTS = """flat = []
        for f in features:
            for i in range(n):
                flat.append({k: f[k][i] for k in f})"""
SUMS = "flat = [f[1] for f in features]\n        flat = sum(flat, [])"
COMPREHENDS = "flat = [text for f in features for text in f['texts']]"
TOKENS = "flat = {'input_ids': []}\n        for f in features:\n            flat['input_ids'].extend(f['input_ids'])"
BY_KEY = "flat = {}\n        for f in features:\n            for k, v in f.items():\n                flat[k].append(v)"


@pytest.mark.parametrize("body", [EXTENDS, NESTS, SUMS, COMPREHENDS])
def test_several_sequences_of_an_example_are_asked_for(tmp_path: Path, body: str) -> None:
    text = HEAD + LOAD + COLLATOR.format(body=body) + TRAIN
    reading = read(tmp_path, text)
    assert SEQUENCES in reading.missing
    assert warned(reading, "Collator puts several sequences of each example into a batch")
    told = read(tmp_path, text, training__sequences_per_example=4)
    assert not warned(told, "Collator")


@pytest.mark.parametrize("body", [TOKENS, BY_KEY])
def test_tokens_that_a_collator_joins_are_no_sequences(tmp_path: Path, body: str) -> None:
    reading = read(tmp_path, HEAD + LOAD + COLLATOR.format(body=body) + TRAIN)
    assert SEQUENCES not in reading.missing
    assert not warned(reading, "Collator")


@pytest.mark.parametrize(
    ("option", "sequences"), [("--train_group_size=8", 9), ("--num_negatives=6", 8), ("--eval_steps=6", None)]
)
def test_an_option_on_groups_tells_how_many(tmp_path: Path, option: str, sequences: int | None) -> None:
    reading = read(tmp_path, HEAD + LOAD + COLLATOR.format(body=EXTENDS) + TRAIN, option)
    assert reading.value(SEQUENCES) == sequences
    assert (SEQUENCES in reading.missing) is (sequences is None)
    if sequences is not None:
        assert warned(reading, f"{sequences} of full length are counted")
        assert any(each.component == "activations" and each.unless == SEQUENCES for each in reading.uncertainties)
