"""Rehearsals of programs whose data is not on this machine."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from rehearsed import trains
from slow_cases import first_quick

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program
from vramtop.estimator.trace.rehearsal import rehearse_job

pytest.importorskip("torch")

LIBRARY = {
    "__init__.py": """
from types import SimpleNamespace
from . import arrow_dataset
from .load import load_dataset, load_from_disk
class Dataset(list):
    info = SimpleNamespace(description=None)
    @classmethod
    def from_dict(cls, columns):
        return cls(dict(zip(columns, row)) for row in zip(*columns.values()))
    def cast_column(self, name, feature):
        return self
DatasetDict = dict
class IterableDataset: ...
class ClassLabel:
    def __init__(self, num_classes): ...
class Audio:
    def __init__(self, sampling_rate): ...
Sequence = list
""",
    "arrow_dataset.py": "class Dataset:  # of an old version: it skips nothing\n    def filter(self): ...\n",
    "config.py": "HF_HUB_OFFLINE = False",
    "load.py": """
from . import config
def load_dataset(path, name=None, data_files=None, split=None, streaming=False, **options):
    import datasets
    if options:
        raise TypeError(f"unexpected arguments: {options}")
    if data_files:
        return datasets.Dataset({"text": "a b"} for _ in open(data_files))
    raise ConnectionError(f"no network, offline: {config.HF_HUB_OFFLINE}")
def load_from_disk(dataset_path):
    raise FileNotFoundError(dataset_path)
def load_metric(path, name=None):
    raise ConnectionError(path)
""",
}
"""A package with the interface of Hugging Face's datasets, as tests have no network and do without pyarrow."""
PROGRAM = """
import torch
from datasets import load_dataset
rows = load_dataset({})
net = torch.nn.Embedding(100, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for row in rows{}[:4]:
    ids = torch.tensor([len(word) for word in row["text"].split()]).cuda()
    net(ids).square().sum().backward()
    optimizer.step()
"""


def steps_after(text: str) -> str:
    return trains("net(torch.ones(1, 2).to(dev)).sum().backward()", "nn.Linear(2, 2)", text)


def rehearsed(file: str, data: str | None):
    program = Program(command=f"{sys.executable} {file}", folder=str(Path.cwd()), data=data)
    return rehearse_job(Job(program=program), may_run=True, kept=False)


@pytest.fixture
def library(tmp_path):
    """Write the package beside the program."""
    for name, text in LIBRARY.items():
        file = tmp_path / "datasets" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("library")
def test_a_data_set_that_is_not_there_is_named_with_the_two_ways_out(program):
    with pytest.raises(CannotTellError) as failed:
        rehearsed(program(PROGRAM.format("'stanfordnlp/imdb', split='train'", "")), None)
    sentence = str(failed.value)
    assert "did not find its data (stanfordnlp/imdb, at train.py:4)" in sentence
    assert sentence.endswith("download it first, or let synthetic items stand in for it: --data synthetic")
    with pytest.raises(CannotTellError, match=r"the program failed during the rehearsal, at .*old_argument"):
        rehearsed(program(PROGRAM.format("'stanfordnlp/imdb', old_argument=True", "")), None)
    program(PROGRAM.format("'stanfordnlp/imdb', split='train'", ""))
    Path("stanfordnlp/imdb").mkdir(parents=True)
    with pytest.raises(CannotTellError, match="the program failed during the rehearsal, at "):  # it is there
        rehearsed("train.py", None)


@pytest.mark.usefixtures("library")
def test_synthetic_items_have_the_columns_and_sizes_that_are_asked_for(program):
    file = program(PROGRAM.format("'stanfordnlp/imdb', split='train'", ""))
    short, long = (rehearsed(file, f"synthetic,items=20,words={words}") for words in (100, 1000))
    assert f"{file}:4 finds no data (stanfordnlp/imdb): 20 items with text (texts of 100 words) stand in for it." in (
        short.warnings
    )
    assert long.allocated_bytes - short.allocated_bytes >= 900 * 64 * 4  # at least the embeddings of the longer text
    rehearsed(program(PROGRAM.format("'stanfordnlp/imdb'", "['validation']")), "synthetic,columns=text")


@pytest.mark.usefixtures("library")
def test_synthetic_texts_have_what_the_program_divides_them_at(program):
    text = (
        PROGRAM.format("'openai/gsm8k', split='train'", "")
        .replace(
            "net = ",
            """turn = "Assistant:"
assert rows[0]["answer"].rfind(turn) > 0
found = int(rows[0]["answer"].split("####")[1].split()[0])
net = """,
        )
        .replace('row["text"]', 'row["answer"]')
    )
    assert rehearsed(program(text), "synthetic,words=50").allocated_bytes
    for wrong in ("assert rows[0]['id']", "' '.join(rows)"):
        with pytest.raises(CannotTellError, match=r"; synthetic items may lack what it looks for: name their columns,"):
            rehearsed(program(text.replace("net = ", f"{wrong}\nnet = ", 1)), "synthetic")


@pytest.mark.usefixtures("library")
def test_preferred_texts_have_the_turns_that_the_program_looks_for(program):
    turns = """import re
_, human, asked, assistant, said, *_ = re.split(r"\\n\\n(Human:|Assistant:) ", rows[0]["chosen"])
assert min(len(asked.split()), len(said.split())) == 25
net = """
    text = PROGRAM.format("'Anthropic/hh-rlhf', split='train'", "").replace("net = ", turns)
    assert rehearsed(program(text.replace('row["text"]', 'row["chosen"]')), "synthetic,words=50").allocated_bytes


@pytest.mark.usefixtures("library")
def test_a_batch_of_synthetic_items_is_full_and_sentences_of_pairs_are_short(program):
    batches = """batches = torch.utils.data.DataLoader([row["premise"] for row in rows], batch_size=64)
assert [len(batch) for batch in batches] == [64] and len(rows[0]["premise"].split()) == 13
pair = "hypothesis"
net = """
    text = PROGRAM.format("'nyu-mll/glue', split='train'", "").replace("net = ", batches)
    assert rehearsed(program(text.replace('row["text"]', 'row["premise"]')), "synthetic,items=20,words=100").warnings


@pytest.mark.usefixtures("library")
def test_items_of_a_classifier_have_the_label_that_its_trainer_looks_for(program):
    text = PROGRAM.format("'stanfordnlp/imdb', split='train'", "")
    assert "20 items with text, label" in " ".join(
        rehearsed(program(f"DistilBertForSequenceClassification = None\n{text}"), "synthetic,items=20").warnings
    )


@pytest.mark.usefixtures("library")
def test_recordings_are_as_many_as_the_host_has_room_for(program):
    file = program(PROGRAM.format("'a/b', split='train'", "").replace('row["text"].split()', '["word"]'))
    found = rehearsed(file, "synthetic,seconds=2000,columns=audio")
    assert any("(a/b): 4 items with audio stand in for it" in each for each in found.warnings), found.warnings


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", first_quick(["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"]))
def test_data_that_is_there_is_the_data(program, name: str):
    Path("datasets/config.py").write_text(f"{name} = False")
    Path("rows.txt").write_text("a\n" * 10, encoding="utf-8")
    found = rehearsed(program(PROGRAM.format("'text', data_files='rows.txt'", "")), "synthetic")
    assert not any("stand in" in each for each in found.warnings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("real", "'real' is unknown"),
        ("synthetic,word=3", "'word=3' is unknown"),
        ("synthetic,image=512", "'image=512' is unknown"),
        ("synthetic,words=0", "words=0: the size must be a whole number from 1"),
    ],
)
def test_sizes_that_are_none_are_refused(program, text, said):
    with pytest.raises(InputError, match=said):
        rehearsed(program("import torch"), text)


def test_items_of_hugging_face_datasets(program):
    pytest.importorskip("datasets")
    text = """
from datasets import load_dataset
every = load_dataset("a/b")
assert set(every) == {"train", "validation", "test", "unsupervised"}, every
row = every["train"][0]
assert row["image"].size == row["conditioning_image"].size == (64, 32), row
assert row["messages"][1]["role"] == "assistant", row
assert every["train"].features["label"].num_classes == 10 and isinstance(row["score"], float) and row["idx"] == 0
assert next(iter(load_dataset("a/b", split="train", streaming=True)))["answers"]["answer_start"] == [0]
assert len({row["question"] for row in every["train"]}) == 10  # samplers may put none into a batch twice
del every["unsupervised"]
assert every["train"].map(lambda row: {"length": len(row["question"].split())})[0]["length"] == 50
"""
    assert rehearsed(program(steps_after(text)), "synthetic,items=10,words=50,image=64x32").answer.steps


def test_synthetic_items_take_what_a_program_makes_of_its_own_columns(program):
    pytest.importorskip("datasets")
    text = """
import os
from datasets import load_dataset
rows = load_dataset("a/b", split="train")
assert set(rows.column_names) == {"text", "sentence", "question", "input"}, rows
assert "text" not in rows.rename_column("text", "sentence").column_names
assert rows.rename_column("transcript", "sentence").column_names == rows.column_names
swapped = rows.rename_columns({"question": "input", "input": "question"})
assert set(swapped.column_names) == set(rows.column_names)
rows = rows.add_column("input", [1] * len(rows)).remove_columns(["text", "url"])
here = os.getpid()
rows = rows.map(lambda row: {**row, "here": os.getpid() == here}, remove_columns=["id"], num_proc=10)
assert rows[0]["here"] and rows[0]["input"] == 1 and "text" not in rows.column_names
assert len(rows.skip(10_000)) == len(rows) == 10 and len(rows.skip(4)) == 6 and len(rows.select(range(20))) == 20
assert len(rows.train_test_split(test_size=2000)["train"]) == 5
streamed = load_dataset("a/b", split="train", streaming=True)
assert next(iter(streamed.skip(10_000).rename_column("text", "sentence")))["sentence"]
"""
    assert rehearsed(program(steps_after(text)), "synthetic,items=10,words=50").budget.model.parameters == 6


@pytest.mark.usefixtures("library")
def test_labels_of_a_kto_trainer_are_true_and_false(program):
    text = """
from datasets import load_dataset
def train(): KTOTrainer
rows = load_dataset("a/b", split="train")
assert set(rows[0]) == {"prompt", "completion", "label"} and [row["label"] for row in rows[:2]] == [True, False], rows
"""
    assert rehearsed(program(steps_after(text)), "synthetic,items=10,words=50").budget.model.parameters == 6


@pytest.mark.usefixtures("library")
def test_columns_are_also_those_that_the_command_line_and_its_configuration_name(program):
    text = """
import trl
from datasets import load_dataset
row = load_dataset("a/b", split="train")[0]
assert {*"question response summary title".split()} <= {*row} and not {*"prompt output images".split()} & {*row}, row
"""
    Path("trl.py").write_text("COLUMNS = ('prompt', 'images')")  # a library that lies beside the program is none of it
    Path("sft.yaml").write_text("fields: # text\n- question\nanswer_field: 'response'\nnote: prompt and output\n")
    rehearsed(f"{program(steps_after(text))} --config=sft.yaml --columns title+summary", "synthetic")


@pytest.mark.usefixtures("library")
def test_a_program_that_drops_all_synthetic_items_is_told_to_ask_for_shorter_ones(program):
    file = program("""
from datasets import load_dataset
from torch.utils.data import RandomSampler
RandomSampler([row for row in load_dataset("a/b", split="train") if len(row["text"].split()) < 512])
""")
    with pytest.raises(CannotTellError, match=r"num_samples=0; it dropped all synthetic items.*words=256"):
        rehearsed(file, "synthetic")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("load", first_quick(["evaluate.load", "datasets.load.load_metric"]))
def test_a_metric_that_would_be_downloaded_is_zero(program, load: str):
    package = Path("evaluate")
    package.mkdir()
    (package / "__init__.py").write_text("from .loading import load\n")
    (package / "loading.py").write_text("def load(path, *args):\n    raise ConnectionError(path)\n")
    text = """
net(torch.ones(1, 64).to(dev)).sum().backward()
metric.add_batch(predictions=[1], references=[0])
assert metric.compute()["f1"] == 0
"""
    file = program(trains(text, before=f"import datasets, evaluate\nmetric = {load}('glue', 'mrpc')"))
    assert any("the metric glue): zeros stand in for it" in each for each in rehearsed(file, "synthetic").warnings)
    with pytest.raises(CannotTellError, match=r"its data \(the metric glue, at train\.py:4\)"):
        rehearsed(file, None)


@pytest.mark.slow
def test_sets_of_torchvision(program):
    if find_spec("torchvision") is None:  # torch for CPUs cannot import it outside of a rehearsal
        pytest.skip("torchvision is not installed")
    text = """
import torch, torchvision, torchvision.transforms as T
from torch.utils.data import DataLoader, random_split
every = torchvision.datasets.{}
train, _ = random_split(every, [len(every) - 10, 10])
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(len(every.classes))).cuda()
optimizer = None
for x, y in DataLoader(train, batch_size=8, num_workers={}):
    assert x.std() > 0
    loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1)
    loss.backward()
    optimizer.step()
"""
    cifar = program(text.format('CIFAR10("data", train=True, download=True, transform=T.ToTensor())', 2))
    assert rehearsed(cifar, "synthetic").budget.model.parameters == 32 * 32 * 3 * 10 + 10
    cifar = program(text.format('CIFAR100("data", download=True, transform=T.ToTensor())', 0))
    assert rehearsed(cifar, "synthetic").budget.model.parameters == 32 * 32 * 3 * 100 + 100
    mnist = program(text.format('MNIST("data", train=True, download=True, transform=T.ToTensor())', 0))
    assert rehearsed(mnist, "synthetic").budget.model.parameters == 28 * 28 * 10 + 10
    folder = program(text.format('ImageFolder("train", T.Compose([T.Resize((16, 16)), T.ToTensor()]))', 0))
    assert rehearsed(folder, "synthetic").budget.model.parameters == 16 * 16 * 3 * 1000 + 1000
    with pytest.raises(CannotTellError, match=r"torchvision's ImageFolder in train, at train\.py:4"):
        rehearsed(folder, None)
    text = """
import torch, torchvision
from torchvision.datasets import CIFAR10, MNIST, SVHN
digits, pictures, numbers = MNIST("data"), CIFAR10("data", train=False), SVHN("data", split="test")
assert digits.data.shape == (60_000, 28, 28) and digits.targets.dtype == torch.int64
assert pictures.data.shape == (10_000, 32, 32, 3) and len(pictures.targets) == 10_000
assert numbers.data.shape == (26_032, 3, 32, 32) and numbers.labels.shape == (26_032,)
net = torch.nn.LazyConv2d(10, 28).cuda()
for step in range(3):
    net(digits.data[:8, None].cuda().float()).sum().backward()
    optimizer = optimizer if step else torch.optim.SGD(net.parameters(), 0.1)
    optimizer.step()
"""
    assert rehearsed(program(text), "synthetic").budget.model.parameters == 28 * 28 * 10 + 10


@pytest.mark.usefixtures("library")
def test_a_task_of_glue_has_its_own_columns(program) -> None:
    text = PROGRAM.format("'nyu-mll/glue', 'mrpc'", "['train']").replace('row["text"]', 'row["sentence1"]')
    names = "print('premise')\nassert set(rows['train'][0]) == {'sentence1', 'sentence2', 'label', 'idx'}\n"
    text = text.replace("net = ", f"{names}net = ", 1)
    found = rehearsed(program(text), "synthetic,words=80")
    assert any("(texts of 10 words)" in each for each in found.warnings)  # a pair of them
    alone = PROGRAM.format("'nyu-mll/glue', 'cola'", "['train']").replace('row["text"]', 'row["sentence"]')
    assert any("(texts of 80 words)" in each for each in rehearsed(program(alone), "synthetic,words=80").warnings)


@pytest.mark.usefixtures("library")
def test_arguments_that_a_library_does_not_take_are_no_missing_data(program) -> None:
    with pytest.raises(CannotTellError, match="TypeError: unexpected arguments"):
        rehearsed(program(PROGRAM.format("'mine', use_auth_token=None", "")), "synthetic")
