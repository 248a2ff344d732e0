"""`python -m berth` is `berth`."""

from __future__ import annotations

from berth.cli.main import main

if __name__ == "__main__":
    main()
