"""How `berth train` divides its work among processes: servers for rows, lanes for examples, stages for layers."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import typer

from berth.cli.quantities import read, read_positive

if TYPE_CHECKING:
    from berth.train.member import Division
    from berth.train.recipes import Recipe
    from berth.train.rendezvous import Seat
    from berth.train.servers import Codec, Mode
    from berth.train.stages.cut import StageCut


_COLD = "BERTH_TRAIN_COLD"  # folder of rows beyond the budget


@dataclass(frozen=True)
class Wish:
    """What was asked for on the command line."""

    servers: int | None
    workers: int
    stages: int | None
    plan: str | None
    micro: int
    emulate: list[str]
    mode: str
    staleness: int
    geo_every: int
    compress: str
    memory: str | None
    restarts: int
    grace: str
    checkpoint: str | None

    @property
    def is_divided(self) -> bool:
        """Whether more than one process is wanted."""
        return bool(self.servers or self.workers > 1 or self.plan or (self.stages or 1) > 1)


def seat_or_launch(wish: Wish, recipe: Recipe) -> tuple[Seat | None, Division | None]:
    """This process's seat; where nobody has given it one and several are needed, starts them and ends with them."""
    from berth.train.rendezvous import Seat, seat_of

    _check(wish)
    seat = seat_of()
    if seat is None and not wish.is_divided:
        return None, None
    division = division_of(wish, recipe, seat)
    if seat is not None or division.layout.world + division.servers == 1:
        return seat or Seat(), division
    tell(division, recipe)
    raise typer.Exit(_launched(wish, division, recipe))


def division_of(wish: Wish, recipe: Recipe, seat: Seat | None) -> Division:
    """The wish, checked against the model; lanes fill what the environment has given."""
    from dataclasses import replace

    from berth.errors import InputError
    from berth.train.member import Division, table_users
    from berth.train.servers import Settings
    from berth.units import size_bytes

    cuts = _cuts(wish, recipe)
    stages = max(1, len(cuts))
    lanes = wish.workers
    if seat is not None and wish.workers == 1 and seat.world > stages:
        if seat.world % stages:
            raise InputError(f"{seat.world} processes are no multiple of {stages} stages")
        lanes = seat.world // stages
    alone = lanes == 1 and stages == 1
    servers = wish.servers if wish.servers is not None else (0 if alone else 1)
    memory = size_bytes(wish.memory) if wish.memory is not None else None
    settings = Settings(
        servers=max(1, servers),
        mode=cast("Mode", wish.mode),
        staleness=wish.staleness,
        memory_bytes=memory // max(1, servers) if memory is not None else None,
        folder=_folder(seat) if memory is not None else None,
    )
    codec = cast("Codec", wish.compress)
    division = Division(lanes, tuple(cuts), wish.micro, servers, settings, codec, wish.geo_every)
    users = len(table_users(recipe.model, division))
    if not servers and users > 1:
        raise InputError("rows that several processes use need a server", hint="--servers 1, or more")
    return replace(division, settings=replace(settings, workers=users))


def _cuts(wish: Wish, recipe: Recipe) -> list[Any]:
    from berth.errors import InputError
    from berth.train.stages.cut import cuts_of_plan, even_cuts
    from berth.zoo import LayeredModel

    if wish.plan is None and (wish.stages or 1) == 1:
        return []
    if wish.plan is not None and wish.stages is not None:
        raise InputError("--plan and --stages both say where to cut", hint="give one of them")
    model = recipe.model
    if not isinstance(model, LayeredModel):
        raise InputError(
            f"{recipe.name} is no chain of layers, so it can't be cut",
            hint="return an nn.Sequential (with an example_batch in its file) or a LayeredModel;"
            " or leave out --plan and --stages",
        )
    if wish.plan is not None:
        cuts = cuts_of_plan(wish.plan, recipe.name, model.names, _slow_downs(wish.emulate))
    else:
        cuts = even_cuts(len(model), wish.stages or 1)
    if len(cuts) == 1 and wish.plan is not None and "RANK" not in os.environ:
        text = f"the plan has one stage, so the model is not cut; {running(cuts[0], wish.workers)}"
        typer.echo(text, err=True)
    return cuts if len(cuts) > 1 else []


def _slow_downs(texts: list[str]) -> dict[str, float]:
    """`T4=1.5`: an emulated T4 takes one and a half times as long as this machine's core."""
    from berth.errors import InputError

    found = {}
    for text in texts:
        kind, equals, factor = text.partition("=")
        try:
            found[kind] = float(factor)
        except ValueError:
            found[kind] = float("nan")
        if not equals or not found[kind] >= 1.0:
            raise InputError(
                f"--emulate {text}: not a slow-down of at least 1", hint="for example --emulate T4=1.5"
            )
    return found


def _check(wish: Wish) -> None:
    """What is wrong is said at once, even where nobody would ever have looked at it."""
    from berth.errors import InputError, UnknownNameError
    from berth.train.servers.codec import CODECS
    from berth.train.servers.order import MODES
    from berth.units import seconds, size_bytes

    if wish.mode not in MODES:
        raise UnknownNameError("mode", wish.mode, MODES)
    if wish.compress not in CODECS:
        raise UnknownNameError("compression", wish.compress, CODECS)
    if wish.staleness and wish.mode != "half-async":
        raise InputError("--staleness is of mode half-async", hint="give --mode half-async too")
    if _slow_downs(wish.emulate) and wish.plan is None:
        raise InputError("--emulate is of the devices of a plan", hint="give --plan FILE too")
    read("--grace", seconds, wish.grace)
    if wish.memory is not None:
        read_positive("--memory", size_bytes, wish.memory)


def _folder(seat: Seat | None) -> str | None:
    """Where rows beyond the budget go: made once, by the process that has them or starts those that do."""
    import tempfile

    if _COLD not in os.environ and (seat is None or seat.rank == 0):
        os.environ[_COLD] = tempfile.mkdtemp(prefix="berth-cold-")
        typer.echo(f"rows beyond --memory go to {os.environ[_COLD]}, removed at the end", err=True)
    return os.environ.get(_COLD)


def _launched(wish: Wish, division: Division, recipe: Recipe) -> int:
    import shutil

    from berth.train.launch import Lineup, launch
    from berth.units import seconds

    lineup = Lineup(
        workers=division.layout.world,
        servers=division.servers,
        settings=division.settings,
        restarts=wish.restarts,
        grace_s=seconds(wish.grace),
        resumes=wish.checkpoint is not None,
    )
    try:
        return launch(sys.argv[2:], lineup, lambda text: typer.echo(text, err=True))
    finally:
        if division.settings.folder is not None:
            shutil.rmtree(division.settings.folder, ignore_errors=True)


def tell(division: Division, recipe: Recipe) -> None:
    """Prints which processes run; devices that are not here are said to be emulated."""
    from berth.units import format_count

    layout, names = division.layout, getattr(recipe.model, "names", ())
    servers = format_count(division.servers, "server")
    text = f"{servers} ({division.settings.mode}), {layout.lanes} x {layout.stages} workers"
    typer.echo(text, err=True)
    for number, cut in enumerate(division.cuts):
        layers = names[cut.first] if cut.first == cut.last else f"{names[cut.first]} .. {names[cut.last]}"
        typer.echo(f"  stage {number + 1}: {layers}; {running(cut, layout.lanes)}", err=True)


def running(cut: StageCut, lanes: int) -> str:
    """What is planned for a stage, where there is a plan, and what really runs."""
    here = f"running {lanes} process{'' if lanes == 1 else 'es'} here"
    if cut.planned is None:
        return here
    slower = f", {cut.slow_down:g} times slower" if cut.slow_down > 1 else ""
    emulated = "" if cut.kind.startswith("cpu") else f", emulated on a core{slower}"
    return f"planned {cut.planned} x {cut.kind}; {here}{emulated}"
