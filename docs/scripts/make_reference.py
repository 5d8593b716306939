"""Write the reference pages from the code (``make reference``); with ``--check``, only say which are out of date."""

import sys

from reference.pages import FOLDER, written_pages


def main() -> int:
    """Write the pages; return 1 if there is only a check, and it finds one out of date."""
    stale = [
        (path, text)
        for path, text in written_pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        print(path.relative_to(FOLDER.parents[1]))
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
    return int(bool(stale) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
