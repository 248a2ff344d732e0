"""Run one sparse server: `python -m berth.train.servers --index 0 --of 2`."""

from __future__ import annotations

from berth.train.servers.process import main

if __name__ == "__main__":
    main()
