"""Servers of models: programs that hold GPU memory to answer requests. Add a server here, as one row.

The names are those of their sources: the commands that they install, the modules that ``python -m`` runs, and the
titles that they give their processes (``setproctitle``).
"""

from .known_program import KnownProgram

SERVERS = (
    KnownProgram(
        kind="server", name="vLLM", executables=("vllm",), modules=("vllm",),
        titles=("VLLM::", "ray::RayWorkerWrapper"), has_job=True,
    ),
    KnownProgram(kind="server", name="TRL vLLM", executables=("trl",), with_word=("vllm-serve",)),
    KnownProgram(
        kind="server", name="SGLang", executables=("sglang",), modules=("sglang",), titles=("sglang::",), has_job=True,
    ),
    KnownProgram(
        kind="server", name="TGI", modules=("text_generation_server",),
        executables=("text-generation-launcher", "text-generation-server", "text-generation-router"),
    ),
    KnownProgram(
        kind="server", name="Triton", executables=("tritonserver", "triton_python_backend_stub", "perf_analyzer"),
    ),
    KnownProgram(kind="server", name="TensorRT-LLM", executables=("trtllm-*",), modules=("tensorrt_llm",)),
    KnownProgram(
        kind="server", name="llama.cpp", executables=("llama-server", "llama-cli", "llama-bench"),
        modules=("llama_cpp.server",),
    ),
    KnownProgram(kind="server", name="Ollama", executables=("ollama", "ollama_llama_server", "ollama_llama_se*")),
    KnownProgram(kind="server", name="LMDeploy", executables=("lmdeploy",), modules=("lmdeploy",)),
    KnownProgram(kind="server", name="TEI", executables=("text-embeddings-router", "python-text-embeddings-server")),
    KnownProgram(kind="server", name="Infinity", executables=("infinity_emb",), modules=("infinity_emb",)),
    KnownProgram(kind="server", name="TorchServe", executables=("torchserve",),
                 scripts=("ts/model_service_worker.py",)),
    KnownProgram(kind="server", name="DeepSpeed-MII", modules=("mii.launch",)),
    KnownProgram(kind="server", name="Aphrodite", executables=("aphrodite",), modules=("aphrodite",)),
    KnownProgram(kind="server", name="TabbyAPI", scripts=("tabbyAPI/main.py", "tabbyapi/main.py")),
    KnownProgram(kind="server", name="koboldcpp", executables=("koboldcpp*",), scripts=("koboldcpp.py",)),
    KnownProgram(kind="server", name="Xinference", executables=("xinference*",), modules=("xinference",)),
    KnownProgram(kind="server", name="FastChat", modules=("fastchat.serve",)),
    KnownProgram(kind="server", name="Ray Serve", titles=("ray::ServeReplica",)),
    KnownProgram(kind="server", name="BentoML", executables=("bentoml",), modules=("bentoml", "_bentoml_impl")),
    KnownProgram(kind="server", name="LitServe", executables=("litserve",)),
    KnownProgram(kind="server", name="TensorFlow Serving", executables=("tensorflow_model_server", "tensorflow_mode*")),
    KnownProgram(
        kind="server", name="ComfyUI", executables=("comfy", "comfyui"), modules=("comfyui",),
        scripts=("ComfyUI/main.py", "comfyui/main.py"),
    ),
    KnownProgram(
        kind="server", name="Stable Diffusion web UI", executables=("invokeai-web",),
        scripts=("stable-diffusion-webui/launch.py", "stable-diffusion-webui/webui.py", "webui-forge/launch.py"),
    ),
    KnownProgram(kind="server", name="text-generation-webui", scripts=("text-generation-webui/server.py",)),
)  # fmt: skip
