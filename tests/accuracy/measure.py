"""Measure the memory of real training steps on this machine's GPU and record it next to the prediction.

    python measure.py --predict predictions.jsonl          where vramtop is installed (no GPU needed)
    python measure.py --predictions predictions.jsonl --out results.jsonl      on the machine with the GPU
    python measure.py --cpu --only gpt2                    a trial run on the CPU with tiny models; figures are null

Needs torch and transformers (and peft for adapters). vramtop is needed only to predict; without ``--predictions`` and
without vramtop, results have no prediction. Every configuration runs three steps in its own process and adds one JSON
line with the job, the prediction, the figures of torch's allocator and of NVML (through nvidia-smi), and the versions.
No other program should use the GPU meanwhile. Put results under ``tests/accuracy/measured/``,
where ``make accuracy`` finds them.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from configurations import Tables, find, tiny

STEPS = 3
MIB = 2**20
AUTO_CLASSES = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
}
PEFT_TASKS = {"causal-lm": "CAUSAL_LM", "seq2seq-lm": "SEQ_2_SEQ_LM", "sequence-classification": "SEQ_CLS"}


def main() -> int:
    """Run the requested configurations; return 1 if one failed other than by running out of memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="run only configurations whose name contains this text")
    parser.add_argument("--limit", type=int, help="maximum number of configurations to run")
    parser.add_argument("--out", type=Path, help="append results to this file (default: stdout)")
    parser.add_argument("--predict", type=Path, help="write predictions to this file and measure nothing")
    parser.add_argument("--predictions", type=Path, help="read predictions from this file")
    parser.add_argument("--method", default="formula", help="method of estimation: formula, exact, traced, auto")
    parser.add_argument("--gpu", help="GPU to predict for, as named in vramtop's GPU catalogue")
    parser.add_argument("--cpu", action="store_true", help="run tiny models on the CPU")
    parser.add_argument("--timeout", type=float, default=600, help="time limit for one configuration in seconds")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(json.load(sys.stdin), cpu=options.cpu)))
        return 0
    jobs = [tiny(job) if options.cpu else job for job in find(options.only)][: options.limit]
    if options.predict:
        _write(options.predict, ({"job": job, "predicted": predict(job, options)} for job in jobs))
        return 0
    predictions = _read_predictions(options.predictions)
    failed = False
    for job in jobs:
        predicted = predictions.get(job["name"]) if options.predictions else predict(job, options)
        result = {"job": job, "predicted": predicted, **_run_in_subprocess(job, options)}
        failed = failed or (bool(result["error"]) and "out of memory" not in result["error"])
        _write(options.out, [result])
    return int(failed)


def predict(job: Tables, options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the prediction for a job; None if vramtop is not installed."""
    try:
        from vramtop.estimator.estimation import estimate
        from vramtop.estimator.job.gpu_catalogue import find_gpu
        from vramtop.estimator.job.job_file import job_from_mapping
    except ImportError:
        return None
    gpu = find_gpu(options.gpu) if options.gpu else None
    budget = estimate(job_from_mapping(job, where=job["name"]), method=options.method, gpu=gpu)
    return {"method": budget.method, **budget.to_json()["peak"]}


def run_one(job: Tables, *, cpu: bool) -> dict[str, Any]:
    """Run three training steps in this process and return their memory."""
    idle = None if cpu else _device_used()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    device = torch.device("cpu" if cpu else "cuda")
    found: dict[str, Any] = {
        "card": None if cpu else torch.cuda.get_device_name(),
        "driver": None if cpu else _query("driver_version"),
        "versions": _versions(),
        "measured": None,
        "error": None,
    }
    try:
        context = None if cpu else _context_bytes(torch, idle)
        model = build_model(job, device)
        steps = train(job, model, device)
    except torch.cuda.OutOfMemoryError as error:
        return {**found, "error": f"out of memory: {str(error).splitlines()[0]}"}
    found["measured"] = {
        "max_allocated_bytes": None if cpu else max(step["allocated"] for step in steps),
        "max_reserved_bytes": None if cpu else torch.cuda.max_memory_reserved(),
        "process_bytes": None if cpu else _process_used(),
        "device_bytes": None if cpu else _difference(_device_used(), idle),
        "context_bytes": context,
        "allocated_by_step_bytes": [step["allocated"] for step in steps],
        "losses": [step["loss"] for step in steps],
    }
    return found


def build_model(job: Tables, device: Any) -> Any:
    """Return the model with random weights in the job's weight dtype, with adapters and checkpointing as configured."""
    import torch
    import transformers

    fields = dict(job["model"]["config"])
    training, task = job["training"], job["model"]["task"]
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.use_cache = False
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(training["precision"], torch.float32)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = getattr(transformers, AUTO_CLASSES[task]).from_config(
                config, attn_implementation=job["model"].get("attention", "sdpa")
            )
    finally:
        torch.set_default_dtype(before)
    model = model.to(device=device, dtype=dtype)
    if training.get("activation_checkpointing") == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if job.get("lora"):
        model = _with_adapters(model, job["lora"], task)
    return model.train()


def train(job: Tables, model: Any, device: Any) -> list[dict[str, Any]]:
    """Run the optimizer steps as Hugging Face's Trainer does; return peak allocated bytes and loss of each."""
    import torch

    training = job["training"]
    optimizer = make_optimizer(training.get("optimizer", "adamw"), model)
    low = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(training["precision"])
    scaler = torch.amp.GradScaler(device.type, enabled=low is torch.float16)
    accumulation = training.get("gradient_accumulation", 1)
    steps = []
    for _ in range(STEPS):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        total = 0.0
        for _ in range(accumulation):
            batch = make_batch(job, model, device)
            with torch.autocast(device.type, dtype=low or torch.bfloat16, enabled=low is not None):
                loss = compute_loss(job, model, batch)
            scaler.scale(loss / accumulation).backward()
            total += float(loss.detach())
            del loss, batch
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        allocated = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
        steps.append({"allocated": allocated, "loss": total})
    return steps


def make_optimizer(name: str, model: Any) -> Any:
    """Return the optimizer with this name in a job file, from torch or transformers."""
    import torch
    import transformers

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name in ("adamw", "adamw-fused"):
        kind = "fused" if name == "adamw-fused" else "foreach"
        return torch.optim.AdamW(trained, lr=1e-5, **{kind: True})
    if name in ("sgd", "sgd-momentum"):
        return torch.optim.SGD(trained, lr=1e-5, momentum=0.9 if name == "sgd-momentum" else 0.0)
    if name == "adafactor":
        return transformers.optimization.Adafactor(trained, lr=1e-5, scale_parameter=False, relative_step=False)
    raise ValueError(f"measure.py does not support the optimizer {name!r}")


def make_batch(job: Tables, model: Any, device: Any) -> dict[str, Any]:
    """Return random tokens of the full sequence length, and labels."""
    import torch

    training = job["training"]
    shape = (training["micro_batch"], training["sequence_length"])
    tokens = torch.randint(0, model.config.vocab_size, shape, device=device)
    labels = tokens[:, 0] % model.config.num_labels if job["model"]["task"] == "sequence-classification" else tokens
    return {"input_ids": tokens, "labels": labels}


def compute_loss(job: Tables, model: Any, batch: dict[str, Any]) -> Any:
    """Return the model's own loss, or the chunked loss over eighths of the sequence."""
    import torch

    if job["training"].get("loss", "full") == "full":
        return model(**batch).loss
    logits = model.get_output_embeddings()(model.base_model(input_ids=batch["input_ids"])[0])[:, :-1]
    labels = batch["labels"][:, 1:]
    chunks = zip(logits.chunk(8, dim=1), labels.chunk(8, dim=1), strict=True)
    total = sum(
        torch.nn.functional.cross_entropy(part.flatten(0, 1).float(), wanted.flatten(), reduction="sum")
        for part, wanted in chunks
    )
    return total / labels.numel()


def _with_adapters(model: Any, lora: Tables, task: str) -> Any:
    import peft

    targets = lora.get("targets", ["q_proj", "v_proj"])
    config = peft.LoraConfig(r=lora["rank"], target_modules=targets, task_type=PEFT_TASKS.get(task))
    if model.is_gradient_checkpointing:
        model.enable_input_require_grads()
    return peft.get_peft_model(model, config)


def _run_in_subprocess(job: Tables, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).resolve()), "--one", *(["--cpu"] if options.cpu else [])]
    try:
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, timeout=options.timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"measured": None, "error": f"no result within {options.timeout:g} s"}
    if done.returncode:
        return {
            "measured": None,
            "error": (done.stderr.strip().splitlines() or ["exited without an error message"])[-1],
        }
    return json.loads(done.stdout.strip().splitlines()[-1])


def _context_bytes(torch: Any, idle: int | None) -> int | None:
    """Return the size of the CUDA context by NVML: used memory with one small tensor, minus torch's reserved bytes."""
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    used = _difference(_device_used(), idle)
    return None if used is None else used - torch.cuda.memory_reserved()


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _device_used() -> int | None:
    text = _query("memory.used")
    return int(text) * MIB if text and text.isdigit() else None


def _process_used() -> int | None:
    """Return this process's GPU memory; None if nvidia-smi does not list it, as in a container with its own pids."""
    lines = _query_nvidia_smi("--query-compute-apps=pid,used_memory")
    found = [line.split(",")[1].strip() for line in lines if line.split(",")[0].strip() == str(os.getpid())]
    return int(found[0]) * MIB if found and found[0].isdigit() else None


def _query(field: str) -> str | None:
    return next(iter(_query_nvidia_smi(f"--query-gpu={field}")), None)


def _query_nvidia_smi(query: str) -> list[str]:
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    command = ["nvidia-smi", f"--id={gpu}", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _versions() -> dict[str, str | None]:
    import torch
    import transformers

    try:
        import peft
    except ImportError:
        peft_version = None
    else:
        peft_version = peft.__version__
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
        "peft": peft_version,
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
    }


def _read_predictions(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {line["job"]["name"]: line["predicted"] for line in lines}


def _write(path: Path | None, results: Iterable[dict[str, Any]]) -> None:
    for result in results:
        line = json.dumps(result)
        if path is None:
            print(line, flush=True)
        else:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
