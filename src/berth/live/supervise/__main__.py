"""Run this folder, or an archive of it: nothing else of berth is needed, nor is berth on the path."""

import sys
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import_module("supervise").main(*sys.argv[1:5])
