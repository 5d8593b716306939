"""Runs every script of the corpus on tiny models and records what trained; ``python record_corpus.py`` writes it.

Needs torch, transformers, accelerate and peft. Each script runs in a process of its own, whose optimizers are watched:
at the first step, the models that exist are counted.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from corpus_scripts import FOLDER, TINY, examples, write_models

WATCH = """
import gc, json, os, runpy, sys
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

def look(optimizer):
    from transformers import PreTrainedModel
    gc.collect()
    given = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    roots = [each for each in gc.get_objects() if isinstance(each, PreTrainedModel)]
    inner = {id(child) for each in roots for child in each.modules() if child is not each}
    found, counted = [], set()
    for each in roots:
        if id(each) in inner:
            continue
        parameters = list({id(p): p for p in each.parameters()}.values())
        adapters = sum(p.numel() for n, p in each.named_parameters() if "lora_" in n)
        counted |= {id(p) for p in parameters}
        found.append(dict(
            kind=type(each).__name__, total=sum(p.numel() for p in parameters) - adapters,
            trainable=sum(p.numel() for p in parameters if p.requires_grad),
            adapters=adapters, optimized=sum(p.numel() for p in parameters if id(p) in given),
            dtype=str(parameters[0].dtype).removeprefix("torch."),
        ))
    beside = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    beside = [p for p in beside if id(p) not in counted]
    return dict(models=found, optimizer=type(optimizer).__module__ + "." + type(optimizer).__name__,
                beside=sum(p.numel() for p in beside))

seen = {}

def watch(optimizer, args, kwargs):
    now = look(optimizer)
    if not seen or sum(m["optimized"] for m in now["models"]) > sum(m["optimized"] for m in seen["models"]):
        seen.clear()
        seen.update(now)

register_optimizer_step_pre_hook(watch)
import accelerate, peft, transformers
import transformers.models.bert.modeling_bert, transformers.models.gpt2.modeling_gpt2
import transformers.models.llama.modeling_llama, transformers.models.t5.modeling_t5, transformers.trainer
from torch import _dynamo
for line in sys.stdin:
    task = json.loads(line)
    if os.fork() == 0:
        sys.argv = ["train.py", *task["arguments"]]
        try:
            runpy.run_path("train.py", run_name="__main__")
        except SystemExit:
            pass
        json.dump(seen, open(task["out"], "w"))
        os._exit(0)
    os.wait()
    sys.stdout.write("done" + chr(10))
    sys.stdout.flush()
"""


def main() -> None:
    truth = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        make = (
            "import sys\nfrom transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM\n"
            "for name in sys.argv[1:]:\n    config = AutoConfig.from_pretrained(name)\n"
            "    kind = {'bert': AutoModel, 't5': AutoModelForSeq2SeqLM}.get(config.model_type, AutoModelForCausalLM)\n"
            "    kind.from_config(config).save_pretrained(name)\n"
        )
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, "-c", make, *TINY], cwd=folder, check=True, env=environ)
        (folder / "watch.py").write_text(WATCH)
        worker = subprocess.Popen(
            [sys.executable, "watch.py"],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        for number, example in enumerate(examples()):
            (folder / "train.py").write_text(example.text)
            worker.stdin.write(json.dumps({"arguments": example.arguments, "out": f"{number}.json"}) + "\n")
            worker.stdin.flush()
            while worker.stdout.readline() not in ("done\n", ""):
                pass
            if not (folder / f"{number}.json").exists():
                raise SystemExit(f"{example.name} failed")
            truth[example.name] = json.loads((folder / f"{number}.json").read_text())
            sys.stderr.write(f"{example.name}: {truth[example.name]}\n")
        worker.stdin.close()
    (FOLDER / "truth.json").write_text(json.dumps(truth, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
