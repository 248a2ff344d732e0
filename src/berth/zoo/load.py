"""Loads a model: one of the zoo, or the result of a function in a user's file, `path.py:make_model`.

The function returns an nn.Module whose children run one after the other (such as nn.Sequential), or a LayeredModel.
Example batches come from `example_batch(batch, seed)` in the same file, which returns inputs or (inputs, labels), or
from the shape of one input. The loss is `loss(output, labels)` of the file if it has one; else the mean square of the
output without labels, cross-entropy for integer labels, and mean squared error for others.
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
    """Return the model that `reference` names; its weights depend only on the seed."""
    if reference.strip().lower() in zoo():
        return make_model(reference, seed)
    path, _, function = reference.partition(":")
    if not path.endswith(".py"):
        error = UnknownNameError("model", reference, zoo())
        error.hint = f"{error.hint}\n  or give a file: path.py:{_MAKER}"
        raise error
    require("torch", "a model of your own")
    return _own_model(path, function or _MAKER, seed, input_shape)


def load_module(reference: str, seed: int = 0) -> nn.Module:
    """Return a model like `load_model`, but a user's module as it is, with its own `forward`.

    An nn.Sequential in a file with an `example_batch` becomes a chain that can be cut into stages.
    """
    path, _, function = reference.partition(":")
    if not path.endswith(".py"):
        return load_model(reference, seed)
    require("torch", "a model of your own")
    made, module, where = _made(path, function or _MAKER, seed)
    from torch import nn

    from berth.zoo.user_model import layered

    if not isinstance(made, nn.Module):
        raise InputError(f"returns a {type(made).__name__}, not a torch nn.Module", where=where)
    if type(made).forward is nn.Sequential.forward and hasattr(module, "example_batch"):
        return layered(made, Path(path).stem, module, where, None)
    return made


def _own_model(path: str, function: str, seed: int, input_shape: tuple[int, ...] | None) -> LayeredModel:
    from berth.zoo.layered import LayeredModel
    from berth.zoo.user_model import layered

    made, module, where = _made(path, function, seed)
    if isinstance(made, LayeredModel):
        return made
    return layered(made, Path(path).stem, module, where, input_shape)


def _made(path: str, function: str, seed: int) -> tuple[Any, ModuleType, str]:
    """Return the result of a function in a file, the file as a module, and the position of the function."""
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
    sys.path.insert(0, str(Path(path).resolve().parent))  # it may import its neighbours
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(f"is not valid Python: {error.msg}", where=f"{path}:{error.lineno or 1}") from None
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
    """Call the function; it may take a seed."""
    takes_seed = "seed" in inspect.signature(make).parameters
    try:
        return make(seed=seed) if takes_seed else make()
    except Exception as error:
        raise _failure(f"{getattr(make, '__name__', 'the function')} fails", error, path, where) from error


def _failure(what: str, error: BaseException, path: str, where: str) -> InputError:
    return InputError(f"{what}: {type(error).__name__}: {error}", where=own_line(error, path) or where)


def own_line(error: BaseException, path: str) -> str | None:
    """Return the last line of the user's file in the error's traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{path}:{frames[-1].lineno}" if frames else None
