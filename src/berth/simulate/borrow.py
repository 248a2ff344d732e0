"""Views of arrays without their reference counts.

Compiled code counts references whenever an array is fetched from a tuple, atomically: in a loop that does so
a hundred times per event this is half of the running time. The caller keeps the arrays alive; the loop
works on views that own nothing.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.extending import intrinsic

from berth.network._sharing_kernels import ShareArrays
from berth.network.fabric import FabricArrays
from berth.schedule.view import World
from berth.simulate.view import Course, Net


@intrinsic
def _view(typing_context: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()

    return array(array), generate


def _borrower(kind: type) -> Any:
    """A compiled function from a named tuple of arrays to the same tuple of views."""
    fields = ", ".join(f"_view(t.{name})" for name in kind._fields)  # type: ignore[attr-defined]
    scope: dict[str, Any] = {"_view": _view, "kind": kind}
    exec(f"def borrow(t):\n    return kind({fields})", scope)
    return njit(scope["borrow"])


borrow_world = _borrower(World)
borrow_course = _borrower(Course)
_borrow_fabric = _borrower(FabricArrays)
_borrow_shares = _borrower(ShareArrays)


def _borrow_net(net: Net) -> Net:
    """The network's arrays, borrowed."""
    return Net(_borrow_fabric(net.fabric), _borrow_shares(net.shares))


borrow_net: Any = njit(_borrow_net)
