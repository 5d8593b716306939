"""What a process is, by its command line: real ones of each kind, and a made-up row."""

import pytest

from vramtop.monitor.host.kinds import kind_label
from vramtop.monitor.host.kinds.known_program import KnownProgram
from vramtop.monitor.host.kinds.process_kind import find_program, identify

MADE_UP = KnownProgram(kind="server", name="Gibbon", executables=("gibbon",), with_word=("serve",))


@pytest.mark.parametrize(
    ("command", "kind", "label"),
    [
        ("/usr/bin/python3 /usr/local/bin/vllm serve Qwen/Qwen3-8B --port 8000", "server", "vLLM server"),
        ("python -m vllm.entrypoints.openai.api_server --model x", "server", "vLLM server"),
        ("VLLM::EngineCore", "server", "vLLM server"),
        ("VLLM::Worker_TP0", "server", "vLLM server"),
        ("python3.12 -u -m sglang.launch_server --model-path x", "server", "SGLang server"),
        ("sglang::scheduler_TP0", "server", "SGLang server"),
        ("/opt/tritonserver/bin/tritonserver --model-repository=/models", "server", "Triton server"),
        ("python /srv/ComfyUI/main.py --listen", "server", "ComfyUI server"),
        ("/opt/venv/bin/python -m ipykernel_launcher -f /run/kernel-1.json", "notebook", "Jupyter kernel"),
        ("/usr/lib/xorg/Xorg :0 -core", "desktop", "desktop"),
        ("/opt/google/chrome/chrome --type=gpu-process --field-trial=1", "desktop", "desktop"),
        ("nvidia-cuda-mps-server", "helper", "MPS server"),
        ("python -u train.py --model vllm", "training", None),
        ("python -W ignore -X dev train.py", "training", None),
        ("python -m torch.distributed.run train.py", "training", None),
        ("./a.out --fast", "other", None),
        (None, "unknown", None),
    ],
)
def test_what_a_process_is(command: str | None, kind: str, label: str | None) -> None:
    program = identify(None, command)
    assert program.kind == kind
    assert kind_label(program.kind, program.name) == label


def test_a_process_known_only_by_its_name_or_type() -> None:
    assert identify("nvidia-cuda-mps-server", None).name == "MPS server"
    assert kind_label("desktop", identify(None, None, ("graphics",)).name) == "graphics"
    assert identify("blob", "blob --x", ("compute", "graphics")).kind == "other"


def test_a_program_is_added_by_one_row() -> None:
    assert find_program(None, "/opt/gibbon/bin/gibbon serve m.bin", [MADE_UP]) is MADE_UP
    assert find_program(None, "python /usr/bin/gibbon --debug serve", [MADE_UP]) is MADE_UP
    assert find_program(None, "gibbon tell", [MADE_UP]) is None
