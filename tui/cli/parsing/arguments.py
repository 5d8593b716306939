"""The arguments of each command, added to its parser by the function of its name.

Nothing here imports what a command needs to run, so that ``--help`` is quick.
"""

import argparse

from .parser import Parser
from .shared_arguments import (
    JOB_USAGE,
    add_described_job_arguments,
    add_estimate_arguments,
    add_host_memory_argument,
    add_method_argument,
    add_name_argument,
    add_reading_arguments,
    add_rehearse_argument,
    add_run_arguments,
    add_verbose_argument,
    flag,
    positive_seconds,
    process_id,
    size_in_gib,
    step_count,
)


def report(parser: "Parser") -> None:
    """Add the arguments of ``vramtop report``."""
    parser.usage = "vramtop report RECORDING [FLAG ...]"
    parser.examples = """\
  vramtop report run.jsonl.gz                 writes run.html
  vramtop report run.jsonl.gz --out night.html
"""
    parser.epilog = (
        "The file is self-contained: it loads nothing and runs no script. Budgets come from the closed form."
    )
    flag(parser, "source RECORDING", "A recording made by vramtop record.")
    flag(parser, "--out FILE", "The HTML file; -: standard output (default: the recording's name with .html).")
    flag(parser, "--overwrite", "Replace an existing file.")


def serve(parser: "Parser") -> None:
    """Add the arguments of ``vramtop serve``."""
    parser.usage = "vramtop serve [FLAG ...] [-- DASHBOARD FLAG ...]"
    parser.examples = """\
  vramtop serve                     prints an address to open; Ctrl-C stops
  vramtop serve --listen 8000       then: ssh -L 8000:127.0.0.1:8000 HOST
  vramtop serve -- --demo           with flags of the dashboard
"""
    parser.epilog = (
        "Anyone who knows the address sees the dashboard; the address contains a random token that changes with each "
        "start. The browser cannot change anything (vramtop --view-only) unless you give --allow-actions. The server "
        "refuses requests under names other than this machine's, and requests from other servers' pages. It needs "
        "textual-serve: pip install 'vramtop-budget[serve]'."
    )
    text = "Address to serve on: HOST:PORT, PORT, or :PORT for all addresses (default: 127.0.0.1 and a free port)."
    flag(parser, "--listen HOST:PORT", text)
    add_name_argument(parser)
    flag(parser, "--allow-actions", "Allow all actions in the browser: end processes, check and save jobs, record.")


def export(parser: "Parser") -> None:
    """Add the arguments of ``vramtop export``: where the metrics go, who may read them, and what is read."""
    parser.examples = """\
  vramtop export                              on 127.0.0.1:10440
  vramtop export --listen :10440              on all addresses
  vramtop export --print-rules > vramtop_rules.yml
"""
    parser.epilog = (
        "It runs until it is interrupted. A line that begins with # HELP above each metric explains it. It has no TLS "
        "and no passwords: put a proxy in front of it for other machines that you do not trust."
    )
    text = "Address to serve on: HOST:PORT, PORT, or :PORT for all addresses (default: 127.0.0.1:10440)."
    flag(parser, "--listen HOST:PORT", text)
    add_name_argument(parser)
    text = "Job file of a pending job, or another tool's configuration; exports its verdict (repeatable)."
    flag(parser, "--job FILE", text, action="append", default=argparse.SUPPRESS)
    add_reading_arguments(parser, interval=argparse.SUPPRESS)
    printing = parser.add_mutually_exclusive_group()
    for name, text in (("rules", "alerting rules for Prometheus"), ("dashboard", "Grafana dashboard")):
        printing.add_argument(
            f"--print-{name}", dest="print_file", action="store_const", const=name, help=f"Print the {text} and exit."
        )


def fit(parser: "Parser") -> None:
    """Add the arguments of ``vramtop fit``."""
    parser.examples = """\
  vramtop fit llama-3.1-8b --qlora --gpu-type 4090
  vramtop fit qwen2.5-7b --batch-size 4 --seq-len 4k --bf16 --gpu-memory 24GiB
  vramtop fit llama-3.1-70b --fsdp 16 --pure-bf16 --gpu-type h100
  vramtop fit job.toml                        on this machine, now
  vramtop fit axolotl.yml --gpu-type a100-80gb
  vramtop fit job.toml --slurm > head.sbatch   the #SBATCH lines that it needs
  vramtop fit -- torchrun --nproc-per-node 8 train.py --bf16 --output_dir out
"""
    _add_judging_arguments(parser)
    text = "Print what the job needs from a scheduler, instead of checking this machine."
    places = parser.add_argument_group("elsewhere", text).add_mutually_exclusive_group()
    flag(places, "--slurm", "Print the #SBATCH lines that ask for it.")
    flag(places, "--kubernetes --k8s", "Print the limits and node affinity of a pod, as YAML.")


def wait(parser: "Parser") -> None:
    """Add the arguments of ``vramtop wait``."""
    parser.examples = """\
  vramtop wait llama-3.1-8b --lora --pure-bf16 && ./train.sh
  vramtop wait --exec -- torchrun --nproc-per-node 2 train.py --bf16
  vramtop wait job.toml --timeout 3600 --exec python train.py
"""
    _add_judging_arguments(parser)
    group = parser.add_argument_group("waiting")
    text = "Give up after this time, with the exit code of the verdict."
    flag(group, "--timeout SECONDS", text, type=positive_seconds)
    flag(group, "--interval SECONDS", "Time between readings (default: 2).", type=positive_seconds, default=2.0)
    text = "Then run this command (the rest of the line; default: the launch line) on the GPUs found."
    flag(group, "--exec COMMAND", text, nargs=argparse.REMAINDER)


def _add_judging_arguments(parser: "Parser") -> None:
    """Add the job, the machine, and how the verdict is made and shown."""
    add_estimate_arguments(parser)
    add_host_memory_argument(parser)
    add_verbose_argument(parser)


SHELLS = ("bash", "zsh", "fish", "man")


def estimate(parser: "Parser") -> None:
    """Add the arguments of ``vramtop estimate``."""
    parser.examples = """\
  vramtop estimate llama-3.1-8b --seq-len 4096 --lora 16 --bf16
  vramtop estimate job.toml --json
  vramtop estimate gpt2 --method traced
"""
    add_estimate_arguments(parser)
    add_verbose_argument(parser)


def program(parser: "Parser") -> None:
    """Add the arguments of ``vramtop program``."""
    parser.examples = """\
  vramtop program llama-3.1-8b --lora --bf16
  vramtop program job.toml --out train.py
  vramtop rehearse -- python train.py
"""
    parser.epilog = (
        "The script uses the real libraries (transformers, peft, bitsandbytes), with random weights and batches, so "
        "nothing is downloaded. Comments mark the settings that the job leaves open."
    )
    add_described_job_arguments(parser)
    flag(parser, "--out FILE", "Write the script into this file instead.")
    flag(parser, "--overwrite", "Replace an existing file.")


def preflight(parser: "Parser") -> None:
    """Add the arguments of ``vramtop preflight``."""
    parser.examples = """\
  vramtop preflight job.toml
  vramtop preflight -- accelerate launch train.py --bf16 --output_dir out
"""
    parser.epilog = """\
A check that fails to run or runs out of time is a warning; for the driver, the memory or the model's files, the exit
code is then 3.
--python names the interpreter that will run the job; the default is that of the launch line, of the active
environment, or vramtop's own. Settings only for preflight are in the job file's [run] table: output_dir,
save_total_limit, logging_dir, report_to, inference_endpoint, inference_key, required_environment.
"""
    add_estimate_arguments(parser)
    add_host_memory_argument(parser)
    text = "Time limit of each check (default: its own limit, 30 to 120 s)."
    flag(parser, "--timeout SECONDS", text, type=positive_seconds, default=None)


def models(parser: "Parser") -> None:
    """Add the arguments of ``vramtop models``."""
    parser.usage = "vramtop models [WORD] [FLAG ...]"
    parser.examples = """\
  vramtop models qwen3
  vramtop models --json
"""
    parser.epilog = (
        "Sizes are for the dtype in the model's config; quantized checkpoints, such as DeepSeek-V3's and gpt-oss', "
        "are smaller. Name other models by their folder, or by their hub id after a download."
    )
    flag(parser, "word WORD", "Only models with this word in their name, id or another name.", nargs="?")


def attach(parser: "Parser") -> None:
    """Add the arguments of ``vramtop attach``."""
    from ...job.flags.job_flags import TRUST_KEY

    flag(parser, "process PID", "Any process of the run: a rank or its launcher.", type=process_id)
    text = "Fill in or correct a setting, such as training.sequence_length=2048."
    flag(parser, "--set KEY=VALUE", text, action="append", default=[])
    parser.add_argument(
        "--trust-remote-code",
        action="append_const",
        dest="set",
        const=f"{TRUST_KEY}=true",
        help="Run the Python code in the model's folder, in the worker.",
    )
    add_method_argument(parser)
    flag(parser, "--rehearse", "Rehearse your program at the lowest priority, and compare with that.")
    add_verbose_argument(parser)


def explain(parser: "Parser") -> None:
    """Add the arguments of ``vramtop explain``."""
    parser.usage = "vramtop explain [FLAG ...] FILE|- [-- LAUNCH LINE]"
    parser.examples = """\
  vramtop explain slurm-4711.out
  vramtop explain slurm-4711.out --job job.toml
  vramtop explain dump.pickle --job job.toml --set training.micro_batch=4
  kubectl logs trainer-0 | vramtop explain - -- torchrun train.py --bf16
"""
    parser.epilog = (
        "Logs: out-of-memory messages of every torch version, host out-of-memory kills, ranks of torchrun, Slurm, "
        "mpirun and Ray. Snapshots: torch.cuda.memory._dump_snapshot(FILE), or the same as JSON; vramtop never "
        "executes their contents."
    )
    parser.set_defaults(flags=[], model_flag=None, gpus=None)
    flag(parser, "file FILE", "A job's log, a file with torch's message, or a memory snapshot; -: standard input.")
    text = "The job that failed, as vramtop fit takes it; also searches for changes that would have fit."
    flag(parser, "--job JOB", text)
    text = "Fill in or correct a setting, such as training.sequence_length=2048."
    flag(parser, "--set KEY=VALUE", text, action="append", default=[])
    flag(parser, "--rank N", "Explain the error of this rank (default: the first one).", type=int)
    gpu = parser.add_mutually_exclusive_group()
    flag(gpu, "--gpu-type NAME", "The GPU that ran out of memory, if the file does not say it: h100, 4090.")
    flag(gpu, "--gpu-memory GIB", "Its size instead, such as 24 or 80GiB.", type=size_in_gib)
    flag(parser, "--device N", "In a snapshot: this GPU (default: the one that ran out of memory).", type=int)
    add_method_argument(parser)
    add_verbose_argument(parser)


def snapshot(parser: "Parser") -> None:
    """Add the arguments of ``vramtop snapshot``."""
    parser.epilog = (
        "The process needs the probe: start it with vramtop run, or call vramtop.monitor.report() in it. The "
        "snapshot has stacks only if the process records them: vramtop run --snapshot-on-oom, or "
        "report(snapshot_on_oom=True)."
    )
    flag(parser, "process PID", "The process that holds GPU memory: a rank, not its launcher.", type=process_id)
    flag(parser, "--timeout SECONDS", "Give up after this time (default: 60).", type=positive_seconds, default=60.0)


def run(parser: "Parser") -> None:
    """Add the arguments of ``vramtop run``."""
    parser.usage = "vramtop run [FLAG ...] -- COMMAND [ARGUMENT ...]"
    parser.examples = """\
  vramtop run -- python train.py
  vramtop run --fit -- torchrun --nproc-per-node 2 train.py --bf16
  vramtop run --fit --set training.sequence_length=4096 -- python train.py
"""
    parser.epilog = """\
With --fit, a job that is tight or unknown still starts, and standard error says so; with --strict it does not start.
If the job fits only on some of the visible GPUs, vramtop sets CUDA_VISIBLE_DEVICES to those.
"""
    parser.set_defaults(flags=[], model_flag=None, job=None, gpus=None, host_memory=None)
    text = "Record allocations, and write a memory snapshot to this folder (default: .) when GPU memory runs out."
    flag(parser, "--snapshot-on-oom FOLDER", text, nargs="?", const=".")
    flag(parser, "--fit", "First check whether the job fits; if not, suggest changes and do not start it.")
    flag(parser, "--strict", "With --fit: do not start it if it is tight or unknown.")
    flag(parser, "--gpu INDEX[,INDEX]", "With --fit: only these GPUs of this machine.")
    flag(parser, "--set KEY=VALUE", "With --fit: fill in or correct a setting.", action="append", default=[])
    add_rehearse_argument(parser, "With --fit: ")
    add_method_argument(parser)
    add_verbose_argument(parser)


def history(parser: "Parser") -> None:
    """Add the arguments of ``vramtop history``."""
    parser.usage = "vramtop history [RUN] [FLAG ...]"
    parser.examples = """\
  vramtop history --json > runs.json
  vramtop history 3f2a --forget
  vramtop history --forget --all
"""
    flag(parser, "run RUN", "One run: the first digits in the column RUN.", nargs="?")
    flag(parser, "--forget", "Remove it for good.")
    flag(parser, "--all", "With --forget: every run.")


def rehearse(parser: "Parser") -> None:
    """Add the arguments of ``vramtop rehearse``."""
    from ...job.flags.gpu_flags import GPU_TYPE_FLAGS, GpuTypeAction

    parser.usage = "vramtop rehearse [FLAG ...] (JOB | -- COMMAND [ARGUMENT ...])"
    parser.examples = """\
  vramtop rehearse -- python train.py --batch-size 8
  vramtop rehearse --gpu-type 4090 -- accelerate launch train.py
  vramtop rehearse train.ipynb
  vramtop rehearse --offline --json -- .venv/bin/python -m mypackage.train
"""
    parser.epilog = (
        "The program runs in its own interpreter until each optimizer has stepped. Its CPU tensors are real; its GPU "
        "tensors have only shapes. All files that it or its child processes write are discarded. Uploads and loggers "
        "are stand-ins. A rehearsal is one process: rank 0 of several. vramtop does not run another user's program."
    )
    parser.set_defaults(rehearse=True, flags=[], model_flag=None, gpus=None, method="auto")
    flag(parser, "job JOB", "A job file with the command in [program], or a notebook.", nargs="?")
    text = "The GPU that the program finds (default: an H100)."
    gpu = parser.add_mutually_exclusive_group()
    gpu.add_argument(*GPU_TYPE_FLAGS, "--gpu", action=GpuTypeAction, metavar="NAME", help=text)
    flag(gpu, "--gpu-memory --vram --gpu-mem GIB", "A GPU of this size instead, such as 24 or 80GiB.", type=size_in_gib)
    text = "Set a key of [program] or [software], such as program.steps=2."
    flag(parser, "--set KEY=VALUE", text, action="append", default=[])
    text = "Steps of each optimizer, the first included (default: 3)."
    flag(parser, "--steps N", text, action="append", dest="set", type="program.steps={}".format)
    text = "Give up after this time (default: 600)."
    parser.add_argument(
        *("--timeout",), action="append", dest="set", type="program.timeout={}".format, metavar="SECONDS", help=text
    )
    add_run_arguments(parser)
    flag(parser, "--out FILE", "Also write the JSON to a file.")
    add_verbose_argument(parser)


def measure(parser: "Parser") -> None:
    """Add the arguments of ``vramtop measure``."""
    from ...job.flags.gpu_flags import gpu_count
    from ...job.flags.job_flags import add_job_arguments

    parser.usage = JOB_USAGE.format("measure")
    parser.examples = """\
  vramtop measure job.toml                    on the free GPUs of this machine
  vramtop measure llama-3.2-1b --lora 16
  vramtop measure gpt2 --cpu                  a tiny GPT-2 on the CPU
"""
    parser.epilog = """\
The steps run in their own process, with random weights and full sequences of random tokens; torchrun starts several
ranks. On a GPU that other programs use, vramtop limits torch, so that some free memory is left for them.
"""
    add_job_arguments(parser)
    add_method_argument(parser)
    group = parser.add_argument_group("measurement")
    flag(group, "--gpu INDEX[,INDEX]", "Only these GPUs of this machine (default: one per rank, free ones first).")
    flag(group, "--gpus N", "Number of GPUs for --fsdp, --ddp and --strategy (default: one per rank).", type=gpu_count)
    flag(group, "--memory GIB", "Limit torch to this memory on each GPU, such as 24GiB.", type=size_in_gib)
    flag(group, "--steps N", "Optimizer steps (default: 3).", type=step_count, default=3)
    flag(group, "--timeout SECONDS", "Time limit of each run (default: 600).", type=positive_seconds, default=600.0)
    flag(group, "--cpu", "Run a tiny model of the same kind on the CPU.")


def stream(parser: "Parser") -> None:
    """Add the arguments of ``vramtop stream``."""
    parser.epilog = (
        "The first field of each line is its schema version; vramtop --host reads versions that differ by one. The "
        "command ends when standard input or output closes, so a broken connection leaves nothing running."
    )
    add_reading_arguments(parser)


def record(parser: "Parser") -> None:
    """Add the arguments of ``vramtop record``."""
    flag(parser, "file FILE", "The recording: run.jsonl.gz is compressed, run.jsonl is plain text.")
    flag(parser, "--seconds SECONDS", "Stop after this time.", type=positive_seconds, default=None)
    flag(parser, "--overwrite", "Replace an existing file.")
    add_reading_arguments(parser)


def doctor(parser: "Parser") -> None:
    """Add the arguments of ``vramtop doctor``."""
    parser.epilog = "Names of users and hosts, command lines and secrets are left out."


def config(parser: "Parser") -> None:
    """Add the arguments of ``vramtop config``."""
    parser.usage = "vramtop config [SETTING [NEW]] [FLAG ...]"
    parser.examples = """\
  vramtop config                              all settings and their origins
  vramtop config dashboard.interval           one of them
  vramtop config dashboard.interval 2         change it
  vramtop config --unset dashboard.interval   back to its default
"""
    parser.epilog = (
        "Precedence: flag, environment variable, settings file, default. vramtop reads the file at start, so restart "
        "open dashboards after a change."
    )
    text = "A setting such as dashboard.sort, or a table of settings, such as dashboard."
    flag(parser, "setting SETTING", text, nargs="?")
    flag(parser, "value NEW", "Its new value; separate lists with commas: PID,USER.", nargs="?")
    flag(parser, "--unset SETTING", "Remove this setting from the settings file.")


def completion(parser: "Parser") -> None:
    """Add the arguments of ``vramtop completion``."""
    parser.examples = """\
  source <(vramtop completion bash)
  vramtop completion zsh > ~/.zfunc/_vramtop        a folder in fpath
  vramtop completion fish | source
  vramtop completion man | man -l -
"""
    flag(parser, "shell SHELL", "bash, zsh or fish; man: the manual page.", choices=SHELLS)
