"""A stand-in for ssh, whose hosts are shell scripts."""

from pathlib import Path


class StandInSsh:
    """A program in place of ssh; what it does for a host is a shell script that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "ssh"
        self.program.write_text(
            f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nexport COMMAND="$3"\nexec sh {folder}/"$2".sh\n'
        )
        self.program.chmod(0o755)

    def does(self, host: str, script: str) -> None:
        """Have it do this for a host from the next connection on."""
        (self.folder / f"{host}.sh").write_text(script)

    def sends(self, host: str, *lines: bytes) -> None:
        """Have it send these lines for a host, and wait for the end of its input."""
        (self.folder / f"{host}.out").write_bytes(b"".join(lines))
        self.does(
            host, f"cat {self.folder}/{host}.out; cat >{self.folder}/{host}.in; echo end >{self.folder}/{host}.end"
        )
