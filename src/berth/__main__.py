"""`python -m berth` is `berth`."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def run() -> None:
    """Run the command line; Ctrl-C while it is loaded ends it without a traceback."""
    try:
        from berth.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    run()
