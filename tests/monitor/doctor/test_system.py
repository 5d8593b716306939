"""Facts about the system."""

from vramtop.monitor.doctor.system import collect_system_facts


def test_only_settings_of_a_known_shape_are_shown():
    shown = collect_system_facts({
        "TERM": "xterm-256color",
        "TERM_PROGRAM": "token with blanks",
        "CUDA_VISIBLE_DEVICES": "0, GPU-12345678-aaaa-bbbb-cccc-1234567890ab,-1",
        "NVIDIA_VISIBLE_DEVICES": "hunter2",
        "LD_LIBRARY_PATH": "/secret/place",
        "WANDB_API_KEY": "hunter2",
        "HF_TOKEN": "hf_hunter2",
    }).environment  # fmt: skip
    assert shown == {
        "TERM": "xterm-256color",
        "TERM_PROGRAM": "set",
        "CUDA_VISIBLE_DEVICES": "0,GPU-12345678...,-1",
        "NVIDIA_VISIBLE_DEVICES": "set to something that names no device",
        "LD_LIBRARY_PATH": "set",
    }


def test_container_limits_and_wsl_are_read(tmp_path, monkeypatch):
    for name, text in {
        "sys/fs/cgroup/memory.max": "8589934592\n",
        "etc/os-release": 'NAME="x"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n',
        "proc/self/cgroup": "0::/kubepods/besteffort/pod12\n",
        "run/.containerenv": "",
        "dev/dxg": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = collect_system_facts({"TMUX": "/run/x,1,0", "SSH_CONNECTION": "10.1.2.3 4 5 6"}, root=tmp_path)
    assert facts.memory_limit_bytes == 8 * 2**30
    assert facts.distribution == "Ubuntu 22.04.4 LTS"
    assert facts.container == ("Podman", "Kubernetes")
    assert facts.wsl
    assert {"tmux", "ssh"} <= set(facts.session)
    assert "10.1.2.3" not in str(facts)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert collect_system_facts({}, root=tmp_path).memory_limit_bytes is None
