"""What a process is, by its command line: real ones of each kind, and a made-up row."""

import pytest

from vramtop.monitor.host.known_programs import identify, kind_label


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
        ("python -m torch.distributed.run train.py", "helper", "launcher"),
        (
            "python /venv/lib/python3.12/site-packages/torch/_inductor/compile_worker/__main__.py",
            "helper",
            "compile worker",
        ),
        ("python -c from multiprocessing.resource_tracker import main;main(5)", "helper", "multiprocessing"),
        ("python -c from multiprocessing.spawn import spawn_main; spawn_main()", "training", None),
        ("ray::RayTrainWorker.execute", "training", "Ray Train"),
        ("ray::ServeReplica:default:Model", "server", "Ray Serve"),
        ("ray::Actor.run", "other", "Ray worker"),
        ("text-generation-launcher --model-id x", "server", "TGI server"),
        ("/opt/conda/bin/python /opt/conda/bin/text-generation-server serve x", "server", "TGI server"),
        ("/usr/local/bin/ollama runner --model x", "server", "Ollama server"),
        ("python -m vllmtools.train", "training", None),
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
    assert identify("pt_data_worker", "python train.py").kind == "helper"  # as torch renames itself
    assert kind_label("desktop", identify(None, None, ("graphics",)).name) == "graphics"
    assert identify("blob", "blob --x", ("compute", "graphics")).kind == "other"


def test_only_some_kinds_may_have_a_job() -> None:
    commands = ("python train.py", None, "VLLM::EngineCore", "python -m ipykernel_launcher", "tritonserver", "Xorg")
    assert [identify(None, command).may_have_job for command in commands] == [True, True, True, False, False, False]
