"""Rehearsals of programs whose models are on the hub and not on this machine."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rehearsed import rehearse
from slow_cases import quick_every

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.trace.stand_in_models import cache_with, stand_in_for

NAMED = """
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer
name = "prajjwal1/bert-tiny"
tokenizer = AutoTokenizer.from_pretrained(name)
assert len(tokenizer) == AutoConfig.from_pretrained(name).vocab_size == 30522
model = AutoModelForMaskedLM.from_pretrained(name).cuda()
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(3):
    batch = tokenizer(["one two three"] * 4, padding="max_length", max_length=128, return_tensors="pt").to("cuda")
    assert batch["input_ids"].shape == (4, 128) and int(batch["attention_mask"].sum()) == 20  # with two marks
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask"}
    model(**batch, labels=batch["input_ids"]).loss.backward()
    optimizer.step()
"""
PARAMETERS = 4_416_698  # of huggingface.co's model, with its head


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def test_the_known_config_of_a_model_stands_in_for_it(program, own_cache: Path, monkeypatch) -> None:
    monkeypatch.setenv("VRAMTOP_TESTS_ANEW", "transformers")  # whose functions are replaced while it is imported
    model = "/of/another/machine/bert-tiny/"
    name = program(NAMED.replace("(name)", "(name, cache_dir='of_my_own')").replace("prajjwal1/bert-tiny", model))
    found = rehearse([sys.executable, name])
    assert found.answer.parameters == PARAMETERS
    assert f"{model} is not on this machine: vramtop's" in found.warnings[0]
    assert not own_cache.exists()


OFFLINE = """
from huggingface_hub import is_offline_mode, try_to_load_from_cache
from transformers import AutoTokenizer
AutoTokenizer.from_pretrained("prajjwal1/bert-tiny")
assert not is_offline_mode(), "the user did not ask for that"

class Slow:  # goes on without its files until it needs one, as slow tokenizers of transformers 4 do
    @staticmethod
    def from_pretrained(pretrained_model_name_or_path):
        assert try_to_load_from_cache(pretrained_model_name_or_path, "vocab.json"), "no file"

Slow.from_pretrained("gpt2")
raise SystemExit(3)
"""


@pytest.mark.usefixtures("own_cache")
def test_a_second_model_has_a_stand_in_where_only_its_loader_fails(program) -> None:
    with pytest.raises(CannotTellError, match="exit code 3"):
        rehearse([sys.executable, program(OFFLINE)])


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("name", "kind"),
    quick_every(2, [("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2ForCausalLM"), ("openai-community/gpt2", "GPT2LMHeadModel")]),
)
def test_each_word_is_a_token_of_every_family_and_the_config_names_the_class(program, name: str, kind: str) -> None:
    text = NAMED.partition("assert len")[0].replace("prajjwal1/bert-tiny", name)
    text += f"assert AutoConfig.from_pretrained(name).architectures == ['{kind}']\n"
    text += "assert tokenizer('<|im_start|>').input_ids == [tokenizer.get_vocab()['<|im_start|>']]\n"
    with pytest.raises(CannotTellError, match="exit code 3"):
        rehearse([sys.executable, program(f"{text}raise SystemExit(len(tokenizer('one two three').input_ids))")])


def test_a_model_of_the_cache_is_still_found_beside_a_stand_in(program, own_cache: Path) -> None:
    text = "from transformers import AutoConfig, GPT2Config\nassert AutoConfig.from_pretrained('me/own').n_layer == 2\n"
    own = own_cache / "models--me--own"
    (own / "snapshots" / "1").mkdir(parents=True)
    (own / "refs").mkdir()
    (own / "refs" / "main").write_text("1")
    (own / "snapshots" / "1" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    found = rehearse([sys.executable, program(text + NAMED)])
    assert found.answer.parameters == PARAMETERS
    assert "prajjwal1/bert-tiny is not on this machine, and the hub did not give it: vramtop's" in found.warnings[0]


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_t5_whose_checkpoint_has_a_head_of_its_own_is_not_tied(program) -> None:
    text = """
import torch
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained("google/flan-t5-small").cuda()
ids = torch.ones(1, 8, dtype=torch.long, device="cuda")
model(ids, labels=ids).loss.backward()
torch.optim.SGD(model.parameters(), 1e-3).step()
"""
    assert rehearse([sys.executable, program(text)]).answer.parameters == 76_961_152


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("me/nothing", "needs me/nothing, which is not on this machine, and the hub did not"),
        ("/of/another/nothing", r"needs the folder /of/another/nothing, .* \(at train.py:\d\); copy it first"),
    ],
)
def test_a_model_that_is_not_known_is_named(program, model: str, told: str) -> None:
    name = program(NAMED.replace("prajjwal1/bert-tiny", model))
    with pytest.raises(CannotTellError, match=told):
        rehearse([sys.executable, name])


def test_a_hub_that_cannot_be_reached_is_asked_again_once(program, own_cache: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    name = program("""
import logging, time
from huggingface_hub import hf_hub_download
waits = []
time.sleep = waits.append
try:
    hf_hub_download("me/nothing", "config.json")
except Exception as error:
    print("asked:", len(waits), flush=True)
    raise
""")
    with pytest.raises(CannotTellError) as caught:
        rehearse([sys.executable, name])
    assert "asked: 1" in caught.value.output


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_hub_that_cannot_be_reached_is_asked_for_nothing_beside_a_stand_in(program, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    asks = "import huggingface_hub, os\nif 'HF_HUB_OFFLINE' not in os.environ:\n    huggingface_hub.model_info(name)\n"
    name = program(NAMED.replace("tokenizer = ", f"{asks}tokenizer = "))
    assert rehearse([sys.executable, name]).answer.parameters == PARAMETERS


@pytest.mark.parametrize(("name", "size"), [("Qwen/Qwen2.5-0.5B", 896), ("BAAI/bge-m3", 1024)])
def test_a_tokenizer_gives_a_model_what_it_takes_alone(tmp_path: Path, name: str, size: int) -> None:
    assert stand_in_for(name) == name
    made = Path(cache_with([name], tmp_path, {"HF_HOME": str(tmp_path / "hf")})["HF_HUB_CACHE"])
    (settings,) = made.glob("models--*/snapshots/*/tokenizer_config.json")
    assert json.loads(settings.read_bytes())["model_input_names"] == ["input_ids", "attention_mask"]
    assert json.loads(settings.with_name("generation_config.json").read_bytes())["eos_token_id"] == 3
    assert json.loads(settings.with_name("config.json").read_bytes())["hidden_size"] == size


@pytest.mark.parametrize(
    ("name", "longest", "marks"),
    [("bert-base-cased", 512, (2, 3)), ("roberta-base", 512, (2, 4)), ("google-t5/t5-small", 512, (1, 2)),
     ("gpt2", 1024, (0, 0))],
)  # fmt: skip
def test_texts_get_the_marks_of_their_model(tmp_path: Path, name: str, longest: int, marks: tuple[int, int]) -> None:
    made = Path(cache_with([name], tmp_path, {"HF_HOME": str(tmp_path / "hf")})["HF_HUB_CACHE"])
    (file,) = made.glob("models--*/snapshots/*/tokenizer.json")
    assert json.loads(file.with_name("tokenizer_config.json").read_bytes())["model_max_length"] == longest
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(file))
    assert tuple(map(tokenizer.num_special_tokens_to_add, (False, True))) == marks
    assert len(tokenizer.encode("one two", "three").ids) == 3 + marks[1]
    assert (tokenizer.normalizer is not None) == name.startswith("bert")  # whose class asks it for its settings


def test_slow_tokenizers_read_a_file_of_sentencepiece(tmp_path: Path) -> None:
    pieces = pytest.importorskip("sentencepiece")
    made = Path(cache_with(["google-t5/t5-small"], tmp_path, {"HF_HOME": str(tmp_path / "hf")})["HF_HUB_CACHE"])
    (file,) = made.glob("models--*/snapshots/*/spiece.model")
    tokenizer = pieces.SentencePieceProcessor(model_file=str(file))
    assert tokenizer.get_piece_size() == 32_128
    assert [tokenizer.id_to_piece(each) for each in tokenizer.encode("the of")] == ["\u2581the", "\u2581of"]
    assert len(tokenizer.encode("rarer words")) == 4


IMAGES = """
import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification
name = "google/vit-base-patch16-224-in21k"
processor = AutoImageProcessor.from_pretrained(name)
assert processor.size == {"height": 224, "width": 224}
model = AutoModelForImageClassification.from_pretrained(name, num_labels=3).cuda()
labels = torch.zeros(2, dtype=torch.long, device="cuda")
model(torch.zeros(2, 3, 224, 224, device="cuda"), labels=labels).loss.backward()
torch.optim.SGD(model.parameters(), 1e-3).step()
"""


@pytest.mark.usefixtures("own_cache")
def test_a_named_model_has_a_stand_in_with_a_processor(program) -> None:
    found = rehearse([sys.executable, program(IMAGES)])
    assert found.answer.parameters == 85_800_963
    assert "google/vit-base-patch16-224-in21k is not on this machine" in found.warnings[0]


@pytest.mark.parametrize(
    ("name", "token", "number", "side"),
    [("llava-hf/llava-1.5-7b-hf", "<image>", 32000, 336), ("Qwen/Qwen2-VL-2B-Instruct", "<|image_pad|>", 151655, None)],
)
def test_a_model_of_images_and_texts_has_a_mark_for_an_image(tmp_path, name, token, number, side) -> None:
    made = Path(cache_with([name], tmp_path, {"HF_HOME": str(tmp_path / "hf")})["HF_HUB_CACHE"])
    (folder,) = made.glob("models--*/snapshots/*")
    assert json.loads((folder / "vocab.json").read_bytes())[token] == number
    config = json.loads((folder / "config.json").read_bytes())
    assert (config["model_type"] == "qwen2_vl") == ("text_config" not in config)
    assert token in json.loads((folder / "chat_template.json").read_bytes())["chat_template"]
    sizes = json.loads((folder / "preprocessor_config.json").read_bytes())
    assert sizes.get("size") == (side and {"shortest_edge": side})


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("runwayml/stable-diffusion-v1-5", ("CLIPTextModel", "CLIPTokenizer", "UNet2DConditionModel", "DDIMScheduler")),
        ("black-forest-labs/FLUX.1-dev", ("T5EncoderModel", "T5TokenizerFast", "FluxTransformer2DModel")),
    ],
)
def test_a_diffusion_model_has_a_stand_in_of_all_its_parts(tmp_path: Path, name: str, kinds: tuple[str, ...]) -> None:
    made = Path(cache_with([name], tmp_path, {"HF_HOME": str(tmp_path / "hf")})["HF_HUB_CACHE"])
    (index,) = made.glob("models--*/snapshots/*/model_index.json")
    parts = {folder: part for folder, part in json.loads(index.read_bytes()).items() if isinstance(part, list)}
    assert {kind for _, kind in parts.values()} >= {*kinds, "AutoencoderKL"}
    assert all(list((index.parent / folder).glob("*config.json")) for folder in parts)


def test_a_token_that_a_program_adds_to_qwens_has_a_row_of_the_embedding(tmp_path: Path) -> None:
    name = "Qwen/Qwen2.5-0.5B"
    made = Path(cache_with([name], tmp_path, {"HF_HOME": str(tmp_path / "hf")})["HF_HUB_CACHE"])
    folder = next(made.glob("models--Qwen*/snapshots/*"))
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    assert len(json.loads((folder / "vocab.json").read_text())) == 151_665 < rows
