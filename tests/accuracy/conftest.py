"""Make this folder importable: its modules also run as programs, so they import one another by plain name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
