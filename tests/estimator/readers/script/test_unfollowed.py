"""Parts of a script that are not followed: each is named and in doubt, and the plain form of it is not."""

from pathlib import Path

import pytest
from reading import read_script

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

HEAD = """
import elsewhere
import torch
import transformers
from dataclasses import dataclass
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, DataCollatorForSeq2Seq, HfArgumentParser, Trainer, TrainingArguments
@dataclass
class Options:
    max_seq_length: int = 512
    context_length: int = {context}
parser = HfArgumentParser((Options, TrainingArguments))
options, args = parser.parse_args_into_dataclasses()
texts = dict(max_length=options.max_seq_length)
"""
LOAD = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', dtype=torch.bfloat16)\n"
TRAIN = "Trainer(model=model, args=args{more}).train()\n"


def read(folder: Path, text: str, *arguments: str) -> JobReading:
    given = ("--output_dir", "x", "--bf16", "--per_device_train_batch_size", "2", *arguments)
    return read_script(folder, text, *given)


def script(*, before: str = "", more: str = "", after: str = "", context: int = 512) -> str:
    return HEAD.format(context=context) + before + LOAD + after + TRAIN.format(more=more)


def unsure(reading: JobReading) -> bool:
    return bool(reading.uncertainties)


def warned(reading: JobReading, words: str) -> int:
    return sum(words in sentence for sentence in reading.warnings)


COLLATOR = """
class Batches:
    def __call__(self, features):
        ids = {ids}
        return dict(input_ids=torch.nn.utils.rnn.pad_sequence(ids, batch_first=True))
"""
PLAIN = COLLATOR.format(ids="[each['input_ids'] for each in features]")

DERIVED = """
class Batches(DataCollatorWithPadding):
    def __call__(self, features):
        return super().__call__({ids})
"""


def test_functions_of_pythons_own_modules_are_no_doubt(tmp_path: Path) -> None:
    before = "import dataclasses\nfrom copy import copy\nshown = vars(copy(args)), dataclasses.asdict(options)\n"
    assert not unsure(read(tmp_path, script(before=before)))


@pytest.mark.parametrize(
    ("before", "value", "is_plain"),
    [
        ("", "DataCollatorForSeq2Seq(None)", True),
        (PLAIN, "Batches()", True),
        (COLLATOR.format(ids="[torch.cat([each, torch.full((4,), 0)]) for each in features]"), "Batches()", False),
        (DERIVED.format(ids="features"), "Batches(None)", True),
        (DERIVED.format(ids="sum(features, [])"), "Batches(None)", False),
        (COLLATOR.format(ids="[each['chosen'] for each in features] + [each['other'] for each in features]"),
         "Batches()", False),
        (COLLATOR.format(ids="list(chain(*[each['input_ids'] for each in features]))"), "Batches()", False),
    ],
)  # fmt: skip
def test_a_collator_that_is_no_librarys_is_understood_or_in_doubt(
    tmp_path: Path, before: str, value: str, is_plain: bool
) -> None:
    reading = read(tmp_path, script(before=before, more=f", data_collator={value}"))
    assert warned(reading, "vramtop does not follow how many sequences it puts into a batch") == (not is_plain)
    assert unsure(reading) is not is_plain


@pytest.mark.parametrize(
    "constructor",
    [
        "*args, kept=None, **kwargs):\n        super().__init__(*args, **kwargs)\n        self.kept = kept",
        "model, args):\n        super(Own, self).__init__(model=model, args=args)\n        self.kept = args.x",
    ],
)
def test_what_a_trainer_of_its_own_is_given_counts(tmp_path: Path, constructor: str) -> None:
    own = f"class Own(Trainer):\n    def __init__(self, {constructor}\n"
    reading = read(tmp_path, script(before=own).replace("\nTrainer(", "\nOwn("))
    assert not unsure(reading)
    assert reading.value("model.id") == "Qwen/Qwen2.5-0.5B"


def test_arguments_of_a_trainer_that_are_not_followed_are_in_doubt(tmp_path: Path) -> None:
    reading = read(tmp_path, script(after="args = elsewhere.make()\n"))
    assert warned(reading, "the arguments of Trainer(...) are not known")
    assert unsure(reading)
    assert not unsure(read(tmp_path, script()))


LLAMA = "transformers.models.llama.modeling_llama"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("transformers.Trainer.training_step = elsewhere.step", "replaces Trainer.training_step"),
        ("torch.nn.functional.cross_entropy = elsewhere.Loss", "replaces functional.cross_entropy"),
        (f"{LLAMA}.LlamaDecoderLayer.forward = torch.add", "LlamaDecoderLayer.forward; the library"),
        (f"{LLAMA}.LlamaModel._update_causal_mask = torch.add", None),
        ("transformers.Trainer.save_model = elsewhere.save", None),
        ("torch.backends.cuda.matmul.allow_tf32 = elsewhere.wanted", None),
        ("transformers.logging.verbosity = 3", None),
        ("elsewhere.apply_chat_template('x')", None),
    ],
)
def test_what_a_script_puts_into_libraries_is_in_doubt(tmp_path: Path, change: str, words: str | None) -> None:
    reading = read(tmp_path, script(before=f"{change}\n"))
    assert unsure(reading) is (words is not None)
    assert words is None or warned(reading, words) == 1


@pytest.mark.parametrize(
    ("call", "is_open"),
    [
        ("elsewhere.setup(model)", True),
        ("elsewhere.distribute_text_model(model)", True),
        ("elsewhere.Recipe().apply(model)", True),
        ("elsewhere.save(model)", False),
        ("transformers.set_seed(model)", False),
        ("def setup(model):\n    model.config.use_cache = False\nsetup(model)", False),
    ],
)
def test_a_function_that_is_not_followed_may_change_what_it_is_given(tmp_path: Path, call: str, is_open: bool) -> None:
    reading = read(tmp_path, script(after=f"{call}\n"))
    assert unsure(reading) is is_open
    assert warned(reading, "(...) is not known") == is_open


@pytest.mark.parametrize(
    "name", ["lora_dim", "max_text_len", "micro_batch", "param_dtype", "use_grad_checkpoint", "zero_kind"]
)
def test_a_flag_on_memory_that_nothing_uses_is_in_doubt(tmp_path: Path, name: str) -> None:
    assert warned(read(tmp_path, script(), f"--{name}", "4"), f"--{name} on the command line may change the memory")
    other = f"eval_{name}" if "max" in name or "batch" in name else f"save_{name}"
    assert not warned(read(tmp_path, script(), f"--{other}", "4"), f"--{other} on the command line may change")


def test_training_that_is_not_reached_is_in_doubt(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("class Work:\n    def run(self, loss):\n        loss.backward()\n")
    main = script().replace("Trainer(model=model, args=args).train()", "elsewhere.START[args.seed](Work)")
    reading = read(tmp_path, "from work import Work\n" + main)
    assert warned(reading, "vramtop did not reach the training itself")
    assert unsure(reading)


@pytest.mark.parametrize(
    ("call", "is_divided"),
    [("torch.distributed.new_group([0, 1])", True), ("torch.distributed.init_process_group('nccl')", False)],
)
def test_groups_of_the_scripts_own_may_divide_more_than_the_data(tmp_path: Path, call: str, is_divided: bool) -> None:
    reading = read(tmp_path, script(before=f"{call}\n"))
    assert {each.unless for each in reading.uncertainties} == ({"parallel.context"} if is_divided else set())


def test_one_of_several_lengths_is_in_doubt(tmp_path: Path) -> None:
    reading = read(tmp_path, script(context=2048))
    assert warned(reading, "several lengths (context_length=2048, max_seq_length=512)") == 1
    assert {each.unless for each in reading.uncertainties} == {"training.sequence_length"}
    assert not unsure(read(tmp_path, script()))


@pytest.mark.parametrize(("method", "is_known"), [("parse_args_into_dataclasses()", True), ("parse_dict({})", False)])
def test_options_that_come_from_elsewhere_are_in_doubt(tmp_path: Path, method: str, is_known: bool) -> None:
    reading = read(tmp_path, script().replace("parse_args_into_dataclasses()", method))
    assert warned(reading, "gets its options") == (not is_known)
    assert unsure(reading) is not is_known


@pytest.mark.parametrize(("field", "is_known"), [("pre_seq_len", False), ("apply_lora", False), ("use_cache", True)])
def test_a_field_of_a_config_that_only_the_models_own_code_reads_is_in_doubt(
    tmp_path: Path, field: str, is_known: bool
) -> None:
    config = f"config = transformers.AutoConfig.from_pretrained('Qwen/Qwen2.5-0.5B')\nconfig.{field} = 128\n"
    text = script(before=config).replace("0.5B', dtype", "0.5B', config=config, dtype")
    reading = read(tmp_path, text)
    assert warned(reading, "may add or change parts of the model") == (not is_known)
    assert unsure(reading) is not is_known


def test_a_module_that_cannot_be_read_is_a_doubt(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("def prepare(options): no Python")
    reading = read(tmp_path, script(before="from work import prepare\n" + 3 * "loaded = prepare(options)\n"))
    assert warned(reading, "work.prepare is not read, as it is missing, too large or no Python.") == 1
    assert unsure(reading)


def test_a_library_that_may_train_is_named_with_its_package(tmp_path: Path) -> None:
    reading = read(tmp_path, "import fire\nfrom own_recipes.training import main\nfire.Fire(main)\n")
    assert warned(reading, "train.py line 2: the training may be in own_recipes, which vramtop does not read")
    assert warned(reading, "(pip install own-recipes)")
    assert not warned(read(tmp_path, "import elsewhere\n" + script()), "the training may be in")


def test_loggers_are_no_doubt(tmp_path: Path) -> None:
    noted = "from elsewhere import get_logger\nlogger = get_logger()\nlogger.info('given: %s', options)\n"
    assert not unsure(read(tmp_path, script(after=noted)))


OWN_MODELS = """
import argparse, torch
from models import MODELS
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="small")
args = parser.parse_args()
model = MODELS[args.model]()
optimizer = torch.optim.AdamW(model.parameters())
"""


def test_a_name_that_only_the_script_knows_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("MODELS = {}\n")
    reading = read(tmp_path, OWN_MODELS, "--model", "Own-XL/2")
    assert "model.id" in reading.missing
    assert reading.left_open[0] == "train.py line 8: the model that the optimizer trains is not known."
    assert read(tmp_path, OWN_MODELS, "--model", "Qwen/Qwen2.5-0.5B").value("model.id") == "Qwen/Qwen2.5-0.5B"


def test_weights_of_another_16_bit_type_may_be_copied(tmp_path: Path) -> None:
    reading = read(tmp_path, script(), "--fp16", "true", "--bf16", "false")
    assert warned(reading, "--fp16 on the command line computes in fp16, and the weights are bf16")
    assert {each.component for each in reading.uncertainties} == {"weights"}


def test_a_length_that_a_tokenizer_is_given_is_a_doubt(tmp_path: Path) -> None:
    before = "tokenizer = AutoTokenizer.from_pretrained('gpt2')\ntokenizer.model_max_length = 128\n"
    reading = read(tmp_path, script(before=before))
    assert reading.value("training.sequence_length") == 512
    assert {each.unless for each in reading.uncertainties} == {"training.sequence_length"}


def test_an_object_that_prepares_examples_is_followed_as_a_function_is(tmp_path: Path) -> None:
    before = "class Prepare:\n    def __init__(self, model, length):\n        self.kind = model.config.model_type\n"
    before += "        self.model, self.length = model, length\n    def __call__(self, example):\n"
    before += "        return tokenizer(example, padding='max_length', max_length=self.length)\n"
    given = "data = load_dataset('x').map(Prepare(model, options.max_seq_length), num_proc=2)\n"
    reading = read(tmp_path, script(before=before, after=given))
    assert not unsure(reading)
    assert reading.value("training.sequence_length") == 512
    assert unsure(read(tmp_path, script(before=before, after="data = load_dataset('x').filled(Prepare(model, 8))\n")))


OF_ITEMS = """
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
class Data(Dataset):
    def __getitem__(self, at):
        return tokenizer(self.texts[at], max_length=256, padding="max_length"MORE)
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased").cuda()
print(sum(each.nelement() * each.element_size() for each in model.parameters()))
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(DATA, batch_size=8):
    model(**batch).loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("more", "length"), [("", 256), ("), tokenizer('a', max_length=64", 512)])
def test_the_one_length_that_tokenizers_cut_to_counts_and_is_in_doubt(tmp_path: Path, more: str, length: int) -> None:
    (tmp_path / "train.py").write_text(OF_ITEMS.replace("MORE", more).replace("DATA", "cached(Data)"))
    reading = read_launch(["python", "train.py"], environ={}, cwd=tmp_path)
    assert reading.value("training.sequence_length") == length  # of several: the most that the model takes
    assert warned(reading, "is taken for what cuts sequences") == (length == 256)
    assert not warned(reading, "may change the model")


@pytest.mark.parametrize("more", ["", "), tokenizer('a', max_length=64"])
def test_the_items_of_an_own_data_set_are_followed(tmp_path: Path, more: str) -> None:
    own = OF_ITEMS.replace("MORE", more).replace("DATA", "Data(tokenizer, 128)")
    kept = own.replace(
        "    def __getitem__", "    def __init__(self, t, n=9):\n        self.t, self.n = t, n\n    def __getitem__"
    )
    for text, length in (
        (own, 256),
        (kept.replace("return tokenizer", "return self.t").replace("=256", "=self.n"), 128),
    ):
        (tmp_path / "train.py").write_text(text)
        reading = read_launch(["python", "train.py"], environ={}, cwd=tmp_path)
        assert reading.value("training.sequence_length") == length
        assert not warned(reading, "what cuts sequences")


def test_a_training_without_a_backward_pass_is_in_doubt(tmp_path: Path) -> None:
    for text in (OF_ITEMS, OF_ITEMS.replace(".loss.backward()", "")):
        (tmp_path / "train.py").write_text(text.replace("MORE", "").replace("DATA", "Data()"))
        reading = read_launch(["python", "train.py"], environ={}, cwd=tmp_path)
        assert warned(reading, "no backward pass was found for AdamW") == ("backward" not in text)


ACCUMULATES = """import argparse
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--accumulation-steps", type=int, default=1)
options = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("gpt2").to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = iter(DataLoader(data, batch_size=4))
for step in range(100):
    for _ in range(options.accumulation_steps):
        batch = next(loader)
        model(**batch).loss.backward()
    optimizer.step()
"""


def test_a_loop_around_the_backward_pass_accumulates(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ACCUMULATES)
    for words, steps in (([], 1), (["--accumulation-steps", "16"], 16)):
        reading = read_launch(["python", "train.py", *words], environ={}, cwd=tmp_path)
        assert reading.value("training.gradient_accumulation") == steps


def test_a_length_that_the_user_gives_settles_flags_about_lengths(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script())
    line = ["python", "train.py", "--output_dir", "x", "--bf16", "--max_text_len", "64"]
    given = {"training.sequence_length": 512}
    assert warned(read_launch(line, environ={}, cwd=tmp_path), "--max_text_len")
    assert not warned(read_launch(line, environ={}, cwd=tmp_path, given=given), "--max_text_len")


def test_a_folder_of_data_in_a_package_holds_no_code(tmp_path: Path) -> None:
    (tmp_path / "work" / "names").mkdir(parents=True)
    (tmp_path / "work" / "paths.py").touch()
    (tmp_path / "work" / "names" / "animals.txt").touch()
    assert not unsure(read(tmp_path, script(before="import work.names as names\nfrom work.names import animals\n")))
    assert unsure(read(tmp_path, script(before="import work.others as others\n")))
