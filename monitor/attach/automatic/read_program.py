"""The program of the worker process: reads processes, and estimates their jobs, one request after another.

It is run by its path with vramtop's own interpreter, so that reading neither takes the interpreter from the screen nor
can hold up vramtop: a reading that takes too long is ended with its process.
"""

import contextlib
import importlib
import json
import os
import resource
import sys

_MAX_BYTES = 4 * 2**30
"""Address space for reading: a hostile script ends as a MemoryError."""
_ROOM = "vramtop.monitor.attach.automatic"


def main() -> None:
    """Answer requests, lines of JSON, until the input ends."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry not in ("", own)]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    client, read_job = (importlib.import_module(f"{_ROOM}.{name}") for name in ("worker_client", "read_job"))
    read_job.prepare_process()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    for line in sys.stdin:
        message = json.loads(line)
        request = client.decode(message)
        with contextlib.suppress(OSError):  # relative names mean the same as in vramtop itself
            os.chdir(request.folder or "/")
        answers.write(json.dumps({**client.encode(read_job.answer(request)), "id": message["id"]}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
