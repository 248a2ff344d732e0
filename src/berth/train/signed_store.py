"""A key-value store whose values are authenticated by the run's secret.

The store itself (torch's TCPStore) lets in every process that reaches its port. A value is accepted only with an HMAC
of key and value, so a process without the secret can publish nothing that the run reads. It can still delete or
overwrite values, which ends the run with an error.
"""

from __future__ import annotations

import hmac
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from berth.errors import ForeignValueError
from berth.train.servers.auth import Secret

_MAC_BYTES = 32


class SignedStore(Store):
    """A view of another store that signs what it sets and checks what it gets."""

    def __init__(self, inner: Any, secret: Secret, purpose: str) -> None:
        super().__init__()
        self._inner = inner
        self._key = secret.derive(f"store {purpose}")

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._inner.set(key, self._mac(key, data) + data)

    def get(self, key: str) -> bytes:
        """Return a value, waiting until it is set; raises if the secret of its writer differs."""
        signed = bytes(self._inner.get(key))
        mac, data = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(key, data)):
            raise ForeignValueError(f"{key} in the rendezvous store was not written with this run's secret")
        return data

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; counters are not signed, and torch uses them for barriers only."""
        return int(self._inner.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""
        return bool(self._inner.check(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        self._inner.wait(keys, timeout) if timeout is not None else self._inner.wait(keys)

    def delete_key(self, key: str) -> bool:
        """Delete a key."""
        return bool(self._inner.delete_key(key))

    def num_keys(self) -> int:
        """Return the number of keys."""
        return int(self._inner.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        """Limit how long `get` and `wait` wait."""
        self._inner.set_timeout(timeout)

    def _mac(self, key: str, data: bytes) -> bytes:
        name = key.encode()
        return hmac.digest(self._key, len(name).to_bytes(4, "little") + name + data, "sha256")
