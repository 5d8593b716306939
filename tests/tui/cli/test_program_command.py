"""``vramtop program``: the script on the screen, in a file and as JSON."""

from pathlib import Path

import pytest
from command_line import vramtop
from json_schemas import valid_json


def test_the_script_is_printed_written_or_json(in_folder: Path) -> None:
    words = ["program", "llama-3.2-1b", "--lora", "8", "--ddp", "2"]
    script = vramtop(*words, code=0).out
    assert "    r=8,\n" in script
    assert "per_device_train_batch_size=1,  # not set" in script

    out = vramtop(*words, "--out", "t.py", code=0).out
    assert out == "t.py is written; start it with: torchrun --nproc-per-node 2 t.py\n"
    written = Path("t.py").read_text(encoding="utf-8")
    assert written == script.replace("train.py", "t.py")
    assert "t.py already exists" in vramtop("program", "gpt2", "--out", "t.py", code=2).err
    assert Path("t.py").read_text(encoding="utf-8") == written
    vramtop("program", "gpt2", "--out", "t.py", "--overwrite", code=0)
    assert "gpt2" in Path("t.py").read_text(encoding="utf-8")

    found = valid_json("program", vramtop(*words, "--json", code=0).out)
    assert found == {"schema": 1, "command": "torchrun --nproc-per-node 2 train.py", "script": script}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["gpt2", "--framework", "torchtitan"], 3, "it trains with torchtitan"),
        (["--", "python", "-c", "pass"], 2, ""),
        (["gpt2", "--out", "absent/t.py"], 2, "absent/t.py: cannot be written: No such file or directory"),
    ],
)
def test_what_has_no_script_is_a_sentence(words, code, said, in_folder) -> None:
    assert said in vramtop("program", *words, code=code).err
