"""Servers of models: programs that hold GPU memory to answer requests. Add a server here, as one row."""

from .known_program import KnownProgram

SERVERS = (
    KnownProgram(
        kind="server", name="vLLM", executables=("vllm",), modules=("vllm",), titles=("VLLM::", "vllm::"),
    ),
    KnownProgram(
        kind="server", name="SGLang", executables=("sglang",), modules=("sglang",), titles=("sglang::", "sglang_"),
    ),
    KnownProgram(
        kind="server", name="TGI", modules=("text_generation_server",),
        executables=("text-generation-launcher", "text-generation-server", "text-generation-router"),
    ),
    KnownProgram(kind="server", name="Triton", executables=("tritonserver", "triton_python_backend_stub")),
    KnownProgram(kind="server", name="Ollama", executables=("ollama", "ollama_llama_server")),
    KnownProgram(
        kind="server", name="llama.cpp", executables=("llama-server",), modules=("llama_cpp.server",),
    ),
    KnownProgram(kind="server", name="TensorRT-LLM", executables=("trtllm-serve",), modules=("tensorrt_llm",)),
    KnownProgram(kind="server", name="LMDeploy", executables=("lmdeploy",), modules=("lmdeploy",)),
    KnownProgram(kind="server", name="Ray Serve", titles=("ray::ServeReplica",)),
    KnownProgram(kind="server", name="ComfyUI", scripts=("ComfyUI/main.py",)),
)  # fmt: skip
