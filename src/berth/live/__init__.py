"""The same scheduler over a real engine: a journal, a controller, and back ends that run what was decided.

Importing this package costs nothing; each name is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.live.client import Client as Client
    from berth.live.home import Endpoint as Endpoint
    from berth.live.home import find_endpoint as find_endpoint

_HOME = {
    "Client": "client",
    "Endpoint": "home",
    "find_endpoint": "home",
}

__all__ = list(_HOME)

__getattr__ = exports(__name__, _HOME)
