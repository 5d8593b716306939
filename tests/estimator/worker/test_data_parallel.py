"""DistributedDataParallel traced, compared with the real one on two CPU ranks (gloo)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
import transformers
from storage_counter import StorageCounter

AskWorker = Callable[[dict[str, Any]], dict[str, Any]]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
PHASES = ("forward", "backward", "optimizer step")


def run_rank(rank: int, folder: str, options: dict[str, Any], micro_batches: int) -> None:
    """Train three steps on one of two ranks, as accelerate accumulates, and write the last one's peaks."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    config = transformers.AutoConfig.for_model(**LLAMA, use_cache=False)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    peaks: dict[str, int] = {}
    with StorageCounter() as counter:
        for tensor in (*model.parameters(), *model.buffers()):
            counter.count(tensor)
        replica = torch.nn.parallel.DistributedDataParallel(model, **options)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(3):
            for micro_batch in range(micro_batches):
                replica.require_backward_grad_sync = micro_batch == micro_batches - 1  # no_sync
                counter.reset_peak()
                ids, labels = (torch.zeros(2, 256, dtype=torch.long) for _ in range(2))
                loss = replica(input_ids=ids, labels=labels).loss
                peaks["forward"] = counter.peak
                counter.reset_peak()
                loss.backward()
                del loss, ids, labels
                peaks["backward"] = counter.peak
            counter.reset_peak()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            peaks["optimizer step"] = counter.peak
            replica.zero_grad()
    if rank == 0:
        Path(folder, "peaks").write_text(" ".join(str(peaks[name]) for name in PHASES))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("static", [False, True])
def test_traced_buckets_hold_what_real_ones_hold(
    ask_worker: AskWorker, tmp_path: Path, views: bool, micro_batches: int, static: bool
) -> None:
    options = {"gradient_as_bucket_view": views, "static_graph": static and micro_batches == 1}
    torch.multiprocessing.spawn(run_rank, (str(tmp_path), options, micro_batches), nprocs=2)
    real = [int(peak) for peak in (tmp_path / "peaks").read_text().split()]
    answer = ask_worker(
        {
            "op": "trace",
            "config": LLAMA,
            "training": {
                "micro_batch": 2,
                "sequence_length": 256,
                "precision": "bf16",
                "gradient_accumulation": micro_batches,
            },
            "parallel": {"strategy": "ddp", "data_replicate": 2, "gradient_as_bucket_view": views},
            "optimizer": {"path": "torch.optim:AdamW", "options": {"foreach": True}},
            "cpu_kernels": True,
        }
    )
    traced = [answer["phases"][name]["allocated"] for name in PHASES]
    assert traced == pytest.approx(real, rel=2e-2)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("views", [False, True])
def test_other_arguments_of_ddp_take_no_bytes(tmp_path: Path, views: bool) -> None:
    """Readers pass over the size of buckets and the search for unused parameters: the gradients are all there is."""
    peaks = {}
    choices: dict[str, dict[str, Any]] = {"usual": {}, "large": {"bucket_cap_mb": 500}}
    choices["unused"] = {"find_unused_parameters": True}
    for name, options in choices.items():
        folder = tmp_path / name
        folder.mkdir()
        torch.multiprocessing.spawn(run_rank, (str(folder), {"gradient_as_bucket_view": views, **options}, 1), nprocs=2)
        peaks[name] = [int(peak) for peak in (folder / "peaks").read_text().split()]
    assert peaks["large"] == pytest.approx(peaks["usual"], rel=1e-2)
    assert peaks["unused"] == pytest.approx(peaks["usual"], rel=1e-2)
