"""What a launch line says of where its ranks run, beside the job."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.readers.program.accelerate_env import yaml_layer
from vramtop.estimator.readers.program.launchers import Launch
from vramtop.estimator.readers.program.ranks import read_world_size
from vramtop.estimator.readers.source.data_files import read_table
from vramtop.estimator.readers.source.settings import LayeredSettings, SettingsLayer, as_int
from vramtop.estimator.readers.tools.registry import parse_launch, split_launch_line

_ADDRESS = ("master_addr", "main_process_ip", "rdzv_endpoint")
_PORT = ("master_port", "main_process_port")


def job_environment(environ: Mapping[str, str], launch: Sequence[str] | None) -> dict[str, str]:
    """The environment that a job will have: ours, what stands before its command, and what its launcher is told."""
    found = dict(environ)
    if launch is None:
        return found
    parsed = parse_launch(split_launch_line(launch))
    found.update(parsed.assignments)
    options = LayeredSettings(parsed.options)
    address, port = options.find(*_ADDRESS), options.find(*_PORT)
    if address is not None:
        host, _, own_port = str(address.value).rpartition(":") if ":" in str(address.value) else (address.value, "", "")
        found["MASTER_ADDR"] = str(host).strip("[]")
        if own_port:
            found["MASTER_PORT"] = own_port
    if port is not None:
        found["MASTER_PORT"] = str(port.value)
    return found


def count_local_ranks(job: Job, launch: Sequence[str] | None, environ: Mapping[str, str], folder: Path) -> int | None:
    """How many of the job's ranks run on one machine; None: nobody says.

    Args:
        job: the job, with all of its ranks.
        launch: its launch line; None: there is none.
        environ: the job's environment: inside a Slurm allocation it tells how many machines there are.
        folder: against which paths in the launch line are read.
    """
    world = job.parallel.world_size
    if launch is not None:
        parsed = parse_launch(split_launch_line(launch))
        said = read_world_size(parsed, LayeredSettings(parsed.options, _accelerate_file(parsed, folder)), environ)
        if as_int(said.ranks) == world and said.per_node is not None:
            return said.per_node
    nodes = environ.get("SLURM_NNODES", "")
    if nodes.isdecimal() and int(nodes) > 1 and world % int(nodes) == 0:
        return world // int(nodes)
    return None


def _accelerate_file(launch: Launch, folder: Path) -> SettingsLayer:
    named = launch.options.get("config_file")
    if named is None:
        return {}
    path = folder / str(named.value)
    try:
        return yaml_layer(read_table(path), source=path.name)
    except InputError:  # said where the job is read
        return {}
