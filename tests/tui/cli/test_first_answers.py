"""The first lines that people type: each answer is judged by arithmetic, and a pasted fix gives what it promised.

The bounds are what anybody in the field reckons: parameters x bytes of weights, gradients and states as the newest
transformers, peft and TRL have them where nothing is set, a few per cent of slack, and activations by the batch.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import vramtop
from slow_cases import quick_every

ANSWERS: list[tuple[str, float, float]] = [
    # full fine-tuning: bf16 weights, gradients and both states of a fused AdamW, 8 bytes a parameter
    ("llama-3.1-8b", 62, 72),
    ("llama-3.1-8b --gradient-checkpointing", 60, 65),
    ("llama-3.1-8b --ctx 8192", 95, 120),
    ("llama-3.1-8b -b 4 --seq 4k --gc", 75, 95),  # 23 GiB of it are the logits' 10 bytes
    ("llama-3.1-8b --gc --liger --8bit-adam", 48, 55),  # 6 bytes a parameter, embeddings' states in fp32
    ("llama-3.1-8b --optim sgd", 35, 46),
    ("llama-3.1-8b --fp32", 128, 145),  # 16 bytes
    ("llama-3.1-8b --dtype float32 --bf16", 130, 150),
    ("llama-3.1-8b --set software.transformers=4.57 --bf16", 150, 180),  # which loads fp32, and copies by foreach
    ("llama-2-7b --fp16", 105, 135),  # fp32 weights: gradients in fp16 cannot be unscaled
    ("qwen3-0.6b", 10, 13),  # 4.5 GiB of states, the rest its 152,000 words
    ("gpt2", 3, 4.5),  # its checkpoint is fp32, and no sequence is longer than 1024
    ("bert-base-uncased -b 32", 15, 20),
    ("t5-large", 11.5, 14),
    # over several GPUs
    ("llama-3.1-8b --fsdp 8", 24, 35),
    ("llama-3.1-8b --fsdp 8 --bf16", 32, 44),  # accelerate keeps fp32 weights, 16 bytes over 8
    ("llama-3.1-8b --zero3 --gpus 8 --bf16", 30, 54),  # with weights that the GPU has not used yet
    ("llama-3.1-8b --framework torchtitan --fsdp 8", 28, 40),  # 16 bytes over 8, and bf16 activations
    # adapters over bf16 weights
    ("llama-3.1-8b --lora", 26, 33),
    ("llama-3.1-8b --lora --gc", 18, 22),
    ("llama-3-70b --lora", 175, 205),
    ("gpt2 --lora --bf16", 1.5, 3.5),
    # adapters over 4-bit weights: checkpointed, embeddings in fp32, as peft prepares them
    ("llama-3.1-8b --qlora", 13, 17),
    ("llama-3.1-8b --load-in-4bit --lora", 13, 17),
    ("llama-3.1-8b --int4", 13, 17),
    ("unsloth/llama-3-8b-bnb-4bit --lora", 12.5, 16.5),
    ("llama-3.1-70b --qlora", 48, 60),
    ("llama-2-7b --lora --load-in-8bit", 9, 18),
    # TRL's own defaults: fp32 weights under autocast, checkpointed, no logits all at once
    ("llama-3.2-1b --sft", 19, 26),  # 16 bytes
    ("llama-3.2-1b --dpo", 23, 30),  # and its reference, 4 bytes
    ("llama-3.2-1b --dpo --dtype bfloat16", 11, 17),
    ("llama-3.1-8b --dpo --qlora", 11, 16),
    ("llama-3.1-8b --sft --lora", 31, 36),
    # text that is generated: weights as stored, a cache, one token's logits
    ("llama-3.1-8b --inference", 15.5, 17.5),
    ("llama-3.1-8b --inference --4bit", 6.5, 8),
    ("llama-3.1-8b --inference --fp8", 9, 11),
    ("llama-3.1-8b --inference -b 8 --ctx 8k", 24, 37),  # 8 GiB of cache, and the prompts' activations
    ("llama-3.1-70b --inference --tp 4", 33, 38),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ --inference", 5.5, 8),
    ("Qwen/Qwen3-8B-FP8 --inference", 9, 12),
    ("mixtral-8x7b --inference", 87, 91),
    ("gpt-oss-20b --inference", 13, 18),
    ("gpt-oss-20b --lora --gc", 40, 56),  # unpacked to bf16
    ("deepseek-v3 --inference", 625, 700),  # 671 GB in fp8
]
"""A command line, and the least and the most GiB that its answer may be."""
CARDS = [
    ("llama-3.1-8b --inference --bf16 --gpu-type 4090", "fits"),
    ("llama-3.1-8b --qlora --vram 24", "fits"),
    ("llama-3.1-8b --lora --vram 24", "does_not_fit"),
    ("llama-3.1-8b --gpu-type h100", "fits"),
    ("llama-3.1-8b --engine vllm --gpu-type l4", "does_not_fit"),  # its cache holds fewer than the model's 131,072
    ("llama-3.1-8b --engine vllm --gpu-type l4 --max-model-len 8192", "fits"),
    ("llama-3.1-70b --inference --gpu 2xa100-80gb", "fits"),
    ("llama-3.1-70b --inference --gpu a100-80gb", "does_not_fit"),
    ("deepseek-r1 --vllm --gpu 8xh200", "fits"),
    ("deepseek-v3 --qlora --gradient-checkpointing --fsdp 64 --gpu-type b300", "unknown"),
]


def answer(line: str) -> Any:
    """Return the JSON of ``vramtop LINE`` by the closed form."""
    code, out, err = vramtop("fit", *line.split(), "--json", "--method", "formula")
    assert code in (0, 1, 3, 4), f"{line}: {err}"
    return json.loads(out)


@pytest.mark.parametrize(("line", "least", "most"), quick_every(4, ANSWERS), ids=[line for line, *_ in ANSWERS])
def test_an_answer_is_what_arithmetic_says(line: str, least: float, most: float) -> None:
    out = vramtop("estimate", *line.split(), "--json", "--method", "formula", code=0).out  # that of fit, without advice
    assert least <= json.loads(out)["peak"]["device_bytes"] / 2**30 <= most


@pytest.mark.parametrize(("line", "verdict"), quick_every(3, CARDS, start=2), ids=[line for line, _ in CARDS])
def test_a_verdict_is_what_the_field_knows(line: str, verdict: str) -> None:
    assert answer(line)["verdict"] == verdict


@pytest.mark.parametrize(
    "line",
    quick_every(
        10,
        [
            "llama-3.1-8b --gpu-type 4090",
            "llama-3.1-70b --vllm --gpu 4x4090",
            "llama-3.1-70b --inference --4bit --gpu 2x3090",
            "qwen2.5-7b --dpo --gpu 4090",
            "llama-3.1-8b --fsdp full_shard --gpu 2x4090 --bf16",
            "llama-3.1-8b --full --fp32 -b 8 --vram 140",
            "llama-3.1-8b --zero3 --gpus 4 --vram 24",
        ],
    ),
)
def test_a_pasted_fix_gives_the_figure_and_the_range_that_it_promised(line: str) -> None:
    suggestions = answer(line)["suggestions"]
    assert suggestions
    for each in suggestions:
        words = " ".join(edit["words"] for edit in each["edits"])
        found = answer(f"{line} {words}")
        peak = found["budget"]["peak"]
        promised = [each[name] for name in ("device_bytes", "low_bytes", "high_bytes")]
        assert [peak[name] for name in ("device_bytes", "low_bytes", "high_bytes")] == promised, words
        assert found["verdict"] == each["verdict"]


def test_the_second_line_says_what_was_assumed_and_what_changes_it() -> None:
    def lines(*words: str) -> str:
        out = vramtop("fit", *words, "--gpu-type", "h100", "--method", "formula").out
        return " ".join(out.split("\n\n")[0].split())

    assert lines("llama-3.1-8b").endswith(
        "assuming full fine-tuning (--lora, --inference), bf16 weights (--precision), 1 x 2,048 tokens (--batch-size, "
        "--seq-len), adamw-fused (--optimizer), no checkpointing (--gradient-checkpointing)"
    )
    assert lines("llama-3.1-8b", "--bf16", "-b", "2", "--gc", "--lora", "--seq", "512").endswith(
        "assuming LoRA rank 16 on q_proj, v_proj (--lora-targets)"
    )
    assert "bf16 weights, fp32 copy (--precision)" in lines("llama-3.1-8b", "--zero3", "--gpus", "8")
    stated = ("--full", "--precision", "bf16", "-b", "1", "--seq", "64", "--optim", "sgd", "--gc")
    assert "assuming" not in lines("llama-3.1-8b", *stated)


def lines_of(tmp_path: Path, arguments: str, command: str, *words: str, python: str = "python") -> str:
    """Return what a command says of a script of transformers, on one line."""
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
        f"Trainer(model, TrainingArguments('x', per_device_train_batch_size=2{arguments})).train()\n"
    )
    words = (*words, "--gpu-type", "h100", "--ctx", "64", "--method", "formula", "--", python, str(script))
    return " ".join(vramtop(command, *words).out.split())


def test_a_version_that_a_script_speaks_for_is_an_assumption(tmp_path: Path) -> None:
    old = ", evaluation_strategy='no'"
    said = "transformers 4.50 (the last that takes TrainingArguments(evaluation_strategy=) at train.py line 3)"
    assert said in lines_of(tmp_path, old, "fit")
    assert said in lines_of(tmp_path, old, "estimate")
    assert "assuming full fine-tuning" not in lines_of(tmp_path, old, "fit"), "it was read"
    given = lines_of(tmp_path, old, "fit", "--set", "software.transformers=5.0")
    assert "the last that takes" not in given
    assert "bf16" in given


def test_the_versions_beside_the_python_of_a_line_are_those_of_the_job(tmp_path: Path) -> None:
    """By the names of the folders in its environment: the interpreter does not run."""
    python, packages = tmp_path / "bin" / "python", tmp_path / "lib" / "python3.11" / "site-packages"
    python.parent.mkdir()
    python.write_text("#!/bin/false\n")
    python.chmod(0o755)
    (packages / "transformers-4.49.0.dist-info").mkdir(parents=True)
    known = lines_of(tmp_path, "", "fit", python=str(python))
    assert "default of transformers 4.49.0" in known
    assert "the range allows for both" not in known
    assert "default of transformers 4.49.0" in lines_of(tmp_path, "", "fit", "--python", str(python))
    (packages / "transformers-4.49.0.dist-info").rename(packages / "transformers-5.2.0.dist-info")
    warned = lines_of(tmp_path, ", evaluation_strategy='no'", "fit", python=str(python))
    assert "The script is for transformers 4.50" in warned
    assert "the Python of the launch line has 5.2.0" in warned


def test_a_line_of_a_model_that_has_no_closed_form_is_rehearsed(tmp_path: Path) -> None:
    line = ["--model_name_or_path", "facebook/bart-base", "--per_device_train_batch_size", "2", "--max_length", "64"]
    (tmp_path / "train.py").touch()
    done = vramtop("estimate", "--json", "--", "python", str(tmp_path / "train.py"), *line)
    assert json.loads(done.out)["method"] == "traced"


def test_keys_are_named_where_a_file_was_read(tmp_path: Any) -> None:
    (tmp_path / "job.toml").write_text('[model]\nid = "gpt2"\n[training]\nmicro_batch = 2\n')
    said = " ".join(vramtop("estimate", str(tmp_path / "job.toml"), "--method", "formula").out.split())
    assert "fp32 weights and computation (training.precision), 2 x 1,024 tokens (training.sequence_length)" in said


def test_a_range_that_says_nothing_is_no_verdict() -> None:
    unknown_class = ("--set", 'parallel.fsdp_wrap_classes=["LlamaSomething"]')
    words = ["llama-3.1-405b", "--fsdp", "512", *unknown_class, "--method", "formula"]
    first = vramtop("fit", *words, "--gpu-type", "b300", code=3).out.splitlines()[0]
    assert "CANNOT TELL" in first
    assert "GiB on each GPU; the warnings below name the reason" in first


@pytest.mark.slow
def test_what_decides_the_verdict_follows_it() -> None:
    words = ["fit", "mixtral-8x7b", "--qlora", "--gpus", "1xA6000", "--method", "formula"]
    first, second, third, *_ = vramtop(*words, code=3).out.splitlines()
    assert "CANNOT TELL" in first
    assert second.startswith("  The version of transformers is not stated, so the newest is assumed; with 4.")
    assert "software.transformers=4." in f"{second} {third}"
    assert "is not stated" not in vramtop(*words, "--set", "software.transformers=4.45").out.splitlines()[1]


@pytest.mark.slow
def test_what_does_not_fit_on_any_card_is_not_told_to_do_what_it_does() -> None:
    for adapters, way in (("--lora", "try --qlora, or a shorter --seq-len"), ("--qlora", "try a shorter --seq-len")):
        assert way in " ".join(vramtop("fit", "deepseek-v3", adapters, "--method", "formula").out.split())


def test_what_a_card_or_a_model_cannot_do_is_said() -> None:
    said = answer("qwen3-0.6b --gpu-type t4 --flash")
    assert any("T4 has no bf16 arithmetic" in each for each in said["budget"]["warnings"])
    assert any("does not run on T4" in each for each in said["budget"]["warnings"])
    assert not any("bf16" in each for each in answer("qwen3-0.6b --gpu-type 3090")["budget"]["warnings"])
    longer = answer("gpt2 --seq 2048 --gpu-type 3090")
    assert longer["verdict"] == "fits"
    assert longer["sentence"].endswith("but 2,048 tokens exceed the model's 1,024")
    assert "more than" not in answer("gpt2 --gpu-type 3090")["sentence"]


def test_an_engine_has_its_own_defaults() -> None:
    said = " ".join(vramtop("fit", "llama-3.1-8b", "--vllm", "--gpu-type", "h100", "--method", "formula").out.split())
    assert "vLLM takes 0.92 of each GPU" in said
    assert "up to 256 x 131,072 tokens (--max-num-seqs, --max-model-len)" in said
    asked = answer("llama-3.1-8b --max-model-len 8k --quantization fp8 --kv-cache-dtype fp8 --gpu-type 4090")
    job = asked["budget"]["job"]
    assert (job["inference"]["engine"], job["inference"]["weights"]) == ("vllm", "fp8")
    assert job["training"]["sequence_length"] == 8192
    assert any("--quantization" not in note and "is vllm's" in note for note in asked["notes"])
    trained = answer("llama-3.1-8b --lora --max-model-len 4096 --gpu-type 4090")["budget"]["job"]["training"]
    assert (trained.get("mode", "train"), trained["sequence_length"]) == ("train", 4096)


@pytest.mark.parametrize(
    ("flags", "stored"),
    [("--quantization int8 --lora-rank 4", "int8"), ("--quantization awq --lora-rank 4", "int4"),
     ("--quantization 4bit --gradient-checkpointing", "nf4")],
)  # fmt: skip
def test_an_engines_flag_beside_one_of_training_is_about_the_weights(flags: str, stored: str) -> None:
    asked = answer(f"llama-3.1-8b {flags} --seq-len 512 --gpu-type 4090")
    job = asked["budget"]["job"]
    assert (job["training"].get("mode", "train"), job["lora"]["quantization"]) == ("train", stored)
    assert not any("serves the model" in note for note in asked["notes"])


def test_a_model_that_generates_text_is_over_all_the_cards_that_are_named() -> None:
    served = answer("qwen3-32b --vllm --gpu 3x4090")["budget"]["job"]["parallel"]
    assert served["tensor"] == 2  # 64 heads
    placed = answer("llama-3.1-70b --inference --4bit --gpu 2x3090")
    parallel = placed["budget"]["job"]["parallel"]
    assert (parallel["device_map"], parallel["pipeline"]) == ("auto", 2)
    weights = placed["budget"]["peak"]["components"]["weights"]
    assert weights > 18 * 2**30  # none of the 40 GiB is left in CPU RAM
    alone = answer("llama-3.1-8b --inference --gpus 1 --gpu-type 3090")["budget"]["job"]["parallel"]
    assert (alone.get("device_map"), alone["pipeline"]) == (None, 1)


def test_prompts_and_completions_make_a_sequence() -> None:
    line = "llama-3.2-1b --grpo --max-prompt-length 512 --max-completion-length 1024 --num-generations 8"
    training = answer(line)["budget"]["job"]["training"]
    assert (training["sequence_length"], training["loss_length"], training["micro_batch"]) == (1536, 1024, 8)
    assert answer(f"{line} --batch 4")["budget"]["job"]["training"]["micro_batch"] == 4


def test_gigabytes_of_a_card_are_gib_and_gguf_is_refused_in_a_sentence() -> None:
    assert answer("llama-3.1-8b --inference --vram 24gb")["gpus"][0]["available_bytes"] == 24 * 2**30
    assert "GGUF files run in llama.cpp" in vramtop("fit", "llama-3.1-8b.Q4_K_M.gguf", code=2).err


def test_two_ways_to_offload_are_one_and_labels_make_a_classifier() -> None:
    line = "llama-3.2-1b --zero 3 --gpus 2 --offload-optimizer --offload-param"
    assert answer(line)["budget"]["job"]["parallel"]["cpu_offload"] == "all"
    found = answer("bert-base-uncased --num-labels 2")
    assert found["budget"]["job"]["model"]["task"] == "sequence-classification"
    alone = answer("llama-3.2-1b --grpo --max-completion-length 4096")
    assert alone["budget"]["job"]["training"]["sequence_length"] == 4096 + 512
    assert any("--max-prompt-length: 512 tokens are assumed" in note for note in alone["notes"])


def test_weights_of_few_bits_are_not_left_in_cpu_ram() -> None:
    found = answer("llama-3.1-70b --inference --load-in-4bit --gpu 2x4060")
    assert found["verdict"] == "does_not_fit"
    assert any("cannot be quantized" in warning for warning in found["budget"]["warnings"])
    assert not any("device_map" in str(each["changes"]) for each in found["suggestions"])


def test_an_engine_without_room_for_a_sequence_does_not_fit() -> None:
    found = answer("gpt-oss-20b --vllm --gpu 4080 --max-model-len 8192")
    assert found["verdict"] == "does_not_fit"


def test_a_card_named_by_its_size_and_a_script_that_is_not_there() -> None:
    for flags in ("--gpu 24GB", "--gpu-type 24g", "--gpus 1x24GiB", "--gpu-memory 24"):
        assert "24.0" in vramtop("fit", "qwen2.5-7b", "--qlora", "--method", "formula", *flags.split(), code=0).out
    err = vramtop("fit", "qwen2.5-7b", "--gpu", "mi300x", code=2).err
    assert err.endswith("AMD is not supported; vramtop predicts the memory of NVIDIA GPUs (CUDA)\n")
    assert vramtop("fit", "--", "python", "not_there.py", code=2).err.endswith("not_there.py: no such file\n")
    for words in (("not_there.py",), ("not_there.ipynb",), ("--", "bash", "not_there.sh")):
        assert vramtop("fit", *words, code=2).err.endswith(f"{words[-1]}: no such file\n")
