"""A model by the name people give: one of the zoo, or a function of their own file, `path.py:make_model`.

The function returns an nn.Module whose children run one after the other (nn.Sequential is one), or a LayeredModel.
Example batches come from an `example_batch(batch, seed)` in the same file, which returns inputs or (inputs,
labels), or from the shape of one input. Without labels the loss is the mean square of the output, without a
`loss(output, labels)` it is cross-entropy for whole-number labels and mean squared error for others.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from berth.errors import InputError, UnknownNameError, nearest
from berth.extras import require
from berth.zoo.catalogue import make_model, zoo

if TYPE_CHECKING:
    from torch import nn

    from berth.zoo.layered import LayeredModel

_MAKER = "make_model"


def load_model(reference: str, seed: int = 0, *, input_shape: tuple[int, ...] | None = None) -> LayeredModel:
    """The model that `reference` names, with weights that depend on the seed alone."""
    if reference.strip().lower() in zoo():
        return make_model(reference, seed)
    path, _, function = reference.partition(":")
    if not path.endswith(".py"):
        error = UnknownNameError("model", reference, zoo())
        error.hint = f"{error.hint}\n  or name your own: path.py:{_MAKER}"
        raise error
    require("torch", "a model of your own")
    return _own_model(path, function or _MAKER, seed, input_shape)


def load_module(reference: str, seed: int = 0) -> nn.Module:
    """As `load_model`, but a module of one's own stays as it is: its `forward` says how its parts work together.

    An nn.Sequential has none of its own: beside an `example_batch` it is a chain that can be cut into stages.
    """
    path, _, function = reference.partition(":")
    if not path.endswith(".py"):
        return load_model(reference, seed)
    require("torch", "a model of your own")
    made, module, where = _made(path, function or _MAKER, seed)
    from torch import nn

    from berth.zoo.own import layered

    if not isinstance(made, nn.Module):
        raise InputError(f"returns a {type(made).__name__}, not a torch nn.Module", where=where)
    if type(made).forward is nn.Sequential.forward and hasattr(module, "example_batch"):
        return layered(made, Path(path).stem, module, where, None)
    return made


def _own_model(path: str, function: str, seed: int, input_shape: tuple[int, ...] | None) -> LayeredModel:
    from berth.zoo.layered import LayeredModel
    from berth.zoo.own import layered

    made, module, where = _made(path, function, seed)
    if isinstance(made, LayeredModel):
        return made
    return layered(made, Path(path).stem, module, where, input_shape)


def _made(path: str, function: str, seed: int) -> tuple[Any, ModuleType, str]:
    """What a function of a file returns, the file as a module, and where the function stands."""
    from berth.zoo.layered import seeded

    module = _imported(path)
    make = _function(module, path, function)
    where = f"{path}:{make.__code__.co_firstlineno}" if inspect.isfunction(make) else path
    with seeded(seed):
        return _called(make, seed, path, where), module, where


def _imported(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise InputError("no such file", where=path, hint=f"write it like models/mine.py:{_MAKER}")
    spec = importlib.util.spec_from_file_location(f"berth_own_{Path(path).stem}", path)
    assert spec is not None  # a path that ends in .py always has one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))  # its neighbours may be imported by it
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(f"is not Python: {error.msg}", where=f"{path}:{error.lineno or 1}") from None
    except Exception as error:
        raise _failure("can't be imported", error, path, path) from error
    finally:
        sys.path.pop(0)
    return module


def _function(module: ModuleType, path: str, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if found is None:
        own = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        near = nearest(name, own)
        hint = f"did you mean {near!r}?" if near else f"define `def {name}():` that returns the model"
        raise InputError(f"has no function {name!r}", where=path, hint=hint)
    if not callable(found):
        raise InputError(f"{name!r} is a {type(found).__name__}, not a function", where=path)
    made: Callable[..., Any] = found
    return made


def _called(make: Callable[..., Any], seed: int, path: str, where: str) -> Any:
    """The maker's result; it may take a seed or nothing."""
    takes_seed = "seed" in inspect.signature(make).parameters
    try:
        return make(seed=seed) if takes_seed else make()
    except Exception as error:
        raise _failure(f"{getattr(make, '__name__', 'the function')} fails", error, path, where) from error


def _failure(what: str, error: BaseException, path: str, where: str) -> InputError:
    return InputError(f"{what}: {type(error).__name__}: {error}", where=own_line(error, path) or where)


def own_line(error: BaseException, path: str) -> str | None:
    """The last line of the user's file that the error passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{path}:{frames[-1].lineno}" if frames else None
