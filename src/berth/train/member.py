"""One process of a training of several: its model, its store of rows and its part of every step."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from berth.errors import InputError
from berth.train.embedding import embeddings_of
from berth.train.launch import addresses_from
from berth.train.learner import Learner
from berth.train.local import LocalStore
from berth.train.recipes import Recipe
from berth.train.rendezvous import Seat
from berth.train.servers import Address, Codec, Secret, ServerProcess, Settings, connect
from berth.train.servers.secret import VARIABLE
from berth.train.session import Checkpoints
from berth.train.sparse import SparseStore
from berth.train.stages.cut import Layout, StageCut
from berth.train.stages.learner import StageLearner
from berth.train.team import Team, assemble
from berth.train.team_session import TeamSession
from berth.zoo import LayeredModel

_TOLD = "berth/servers"
_HERE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Division:
    """How a training is divided among processes."""

    lanes: int = 1
    cuts: tuple[StageCut, ...] = ()  # empty: the model is whole in every process
    micro: int = 4
    servers: int = 1
    settings: Settings = field(default_factory=Settings)
    codec: Codec = "fp32"
    geo_every: int = 10

    @property
    def layout(self) -> Layout:
        """Who runs what."""
        return Layout(self.lanes, max(1, len(self.cuts)))


def member(
    recipe: Recipe,
    division: Division,
    seat: Seat,
    *,
    seed: int = 0,
    checkpoints: Checkpoints | None = None,
    day_every: int | None = None,
    say: Callable[[str], None] = print,
) -> TeamSession:
    """This process's session; it has met the others and goes on where all of them do."""
    layout = division.layout
    if seat.world != layout.world:
        raise InputError(
            f"{seat.world} processes were started, and {layout.lanes} x {layout.stages} stages need {layout.world}"
        )
    least = recipe.batch // layout.lanes
    if division.cuts and least < division.micro:
        raise InputError(f"{least} examples can't make {division.micro} micro-batches")
    team = assemble(seat, layout)
    users = table_users(recipe.model, division)
    store = _store(team, users, division)

    def learner(rows: SparseStore) -> Learner:
        if division.cuts:
            assert isinstance(recipe.model, LayeredModel)
            return StageLearner(recipe.model, rows, team, division.cuts[team.stage], micro=division.micro)
        return Learner(recipe.model, rows, workers=layout.lanes, exchange=team.exchange)

    return TeamSession(
        recipe.model,
        recipe.data,
        team=team,
        store=store,
        learner=learner,
        checkpoints=checkpoints,
        day_every=day_every,
        batch=recipe.batch,
        seed=seed,
        streamed=division.settings.memory_bytes is not None,
        say=say,
    )


def table_users(model: nn.Module, division: Division) -> list[int]:
    """Ranks that talk to servers: those with rows in their layers, and the first stages, which save them."""
    layout = division.layout
    stages = {0}
    if division.cuts and isinstance(model, LayeredModel):
        for number, cut in enumerate(division.cuts):
            if embeddings_of(model.stage(cut.first, cut.last + 1)):
                stages.add(number)
    return [rank for rank in range(layout.world) if layout.stage(rank) in stages]


def _store(team: Team, users: Sequence[int], division: Division) -> SparseStore:
    """The servers as this rank sees them; who has no rows has nothing to ask."""
    addresses, secret = _servers(team, len(users), division)
    if team.seat.rank not in users:
        return cast("SparseStore", NoRows())
    if not addresses:
        if len(users) > 1:
            raise InputError("rows that several processes use need a server", hint="--servers 1, or more")
        return _local(team, division.settings)
    rank = users.index(team.seat.rank)
    more: dict[str, Any] = {"every": division.geo_every} if division.settings.mode == "geo" else {}
    return connect(addresses, secret, rank=rank, workers=len(users), codec=division.codec, **more)


def _local(team: Team, settings: Settings) -> LocalStore:
    _remove_at_the_end(team, settings)
    return LocalStore(memory_bytes=settings.memory_bytes, folder=settings.folder)


def _remove_at_the_end(team: Team, settings: Settings) -> None:
    if settings.folder is not None:
        team.keep.callback(shutil.rmtree, settings.folder, ignore_errors=True)


def _servers(team: Team, workers: int, division: Division) -> tuple[list[Address], Secret]:
    """The servers of the launcher; where there is none, the lead starts them and tells the others."""
    addresses = addresses_from()
    if addresses or not division.servers:
        return addresses, Secret.find() if addresses else Secret.random()
    if team.is_lead:
        return _started(team, workers, division)
    told = json.loads(team.store.get(_TOLD))
    return [Address.from_json(text) for text in told["servers"]], Secret.find(told["secret_file"])


def _started(team: Team, workers: int, division: Division) -> tuple[list[Address], Secret]:
    """Servers on the lead's machine. The secret is not told to the store, which anybody may ask."""
    host, file = team.seat.host, None
    if VARIABLE in os.environ:
        secret = Secret.find()
    elif host in _HERE:
        secret = Secret.random()
        file = team.keep.enter_context(secret_file(secret))
    else:
        raise InputError(
            "workers on several machines need a shared secret", hint=f"set {VARIABLE} for all of them"
        )
    settings = replace(division.settings, servers=division.servers, workers=workers, host=host)
    _remove_at_the_end(team, settings)  # after the servers have ended
    started = [ServerProcess(replace(settings, index=index), secret) for index in range(division.servers)]
    for server in started:
        team.keep.callback(server.stop)
    if team.store is not None:
        told = {"servers": [server.address.to_json() for server in started], "secret_file": file}
        team.store.set(_TOLD, json.dumps(told))
    return [server.address for server in started], secret


@contextmanager
def secret_file(secret: Secret) -> Iterator[str]:
    """A file that only this user can read, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="berth-secret-") as folder:
        path = Path(folder, "secret")
        path.touch(mode=0o600)
        path.write_text(secret.environment()[VARIABLE])
        yield str(path)


class NoRows:
    """The store of a stage that has no rows."""

    def open(self, tables: Sequence[Any]) -> None:
        """There are none."""
        assert not tables

    def end_step(self, step: int) -> None:
        """Nobody waits for it."""

    def end_day(self) -> None:
        """Nothing fades."""

    def statistics(self) -> dict[str, Any]:
        """Nothing."""
        return {"tables": {}}

    def close(self) -> None:
        """Nothing to let go of."""
