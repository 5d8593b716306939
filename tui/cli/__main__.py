"""``python -m vramtop.tui.cli``: the ``vramtop`` command of this interpreter."""

import sys

from . import main

sys.exit(main())
