"""Shapes of jobs as records: written once for all jobs that offer the same alternatives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.cluster.gpus import usable_types
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.schedule.job_columns import JobRecords
from berth.schedule.records import MAX_TIERS, SHAPE, TIED, Array, EstimateKind
from berth.schedule.scarcity import TYPE_MARGIN
from berth.workload.binding import BoundShape, run_s
from berth.workload.shapes import Offer


class ShapeTable:
    """The records of all shapes, in arrays that grow; `bound` and `names` say what each is."""

    def __init__(self) -> None:
        self._shapes, self._tied = np.zeros(4, SHAPE), np.zeros(4, TIED)
        self._tied_count = 0
        self._first: dict[tuple[object, ...], int] = {}
        self.bound: list[BoundShape] = []

    @property
    def shapes(self) -> Array:
        """SHAPE, those of an offer side by side."""
        return self._shapes[: len(self.bound)]

    @property
    def tied(self) -> Array:
        """TIED."""
        return self._tied[: self._tied_count]

    @property
    def names(self) -> list[str]:
        """The name of each shape."""
        return [one.shape.name for one in self.bound]

    def add(self, offer: Offer, bound: Sequence[BoundShape], cluster: Cluster) -> int:
        """The index of the first of an offer's shapes, which are written if they are new."""
        key = (offer.work.unit, *bound)
        if key not in self._first:
            self._first[key] = len(self.bound)
            for shape in bound:
                self._append(offer, shape, cluster)
            _compare(self.shapes[self._first[key] :])
        return self._first[key]

    def add_gang(
        self, offer: Offer, bound: Sequence[BoundShape], cluster: Cluster, reference_s: float
    ) -> int:
        """The same for a gang on each type that it accepts; its record stays in seconds of a reference."""
        first = self.add(offer, bound, cluster)
        shapes = self.shapes[first : first + len(bound)]
        if not shapes["gang"][0]:
            shapes["slowdown"] *= (shapes["unit_s"] / reference_s)[:, None]
            shapes["gang"], shapes["unit_s"], shapes["least_share"] = 1, reference_s, 1.0
        return first

    def _append(self, offer: Offer, shape: BoundShape, cluster: Cluster) -> None:
        row, first_tied = len(self.bound), self._tied_count
        self._shapes = _with_room(self._shapes, row + 1)
        self._tied = _with_room(self._tied, first_tied + len(shape.tied))
        _write(self._shapes[row], offer, shape, cluster)
        self._shapes[row]["first_tied"] = first_tied
        for record, one in zip(self._tied[first_tied:], shape.tied, strict=False):
            record["tier"], record["part"] = one.tier, one.part
            record["need"][: len(one.need)] = one.need
        self._tied_count += len(shape.tied)
        self.bound.append(shape)


def _compare(shapes: Array) -> None:
    """Compares the shapes of an offer by the GPU-seconds and by the dollars of its work."""
    service, usd = shapes["unit_s"] * shapes["gpus"], shapes["unit_s"] * shapes["usd_per_hour"]
    shapes["least_share"] = service.min() / service
    if usd.min() > 0.0:
        shapes["usd_excess"] = usd / usd.min() - 1.0
        types = shapes["need"] > 0
        for shape, same in zip(shapes, (types[:, None] == types).all(2), strict=True):
            shape["type_excess"] = shapes["usd_excess"][same].min()
    refused = shapes["type_excess"] > TYPE_MARGIN
    shapes["refused_s"] = np.where(refused, shapes["unit_s"], np.inf).min()


def _with_room(array: Array, size: int) -> Array:
    """The array, or a copy of twice the length if it is shorter than `size`."""
    if size <= len(array):
        return array
    longer = np.zeros(max(size, 2 * len(array)), array.dtype)
    longer[: len(array)] = array
    return longer


def _write(record: Array, offer: Offer, bound: BoundShape, cluster: Cluster) -> None:
    record["need"][: len(bound.need)] = bound.need
    types = np.flatnonzero(bound.need)
    record["devices"], record["device_type"] = bound.size, types[0] if len(types) == 1 else -1
    usable = sum(bound.need[index] for index in usable_types(cluster))
    record["gpus"] = usable or bound.size
    record["vector"], record["tied_count"] = len(types) > 1 or bool(bound.tied), len(bound.tied)
    record["nearest_tier"], record["widest_tier"] = bound.nearest_tier, bound.widest_tier
    near_s = bound.step_s[bound.nearest_tier]
    record["slowdown"][: len(bound.step_s)] = np.array(bound.step_s) / near_s
    record["slowdown"][len(bound.step_s) : MAX_TIERS] = bound.step_s[-1] / near_s
    record["unit_s"] = run_s(offer, bound, bound.nearest_tier) / offer.work.amount
    record["usd_per_hour"] = bound.usd_per_hour or 0.0
    shape = bound.shape
    record["message_bytes"] = shape.between_bytes + sum(part.collective_bytes for part in shape.parts)
    record["traffic_row"] = -1


def write_offer(
    record: Array, table: ShapeTable, offer: Offer, bound: Sequence[BoundShape], cluster: Cluster
) -> None:
    """Describes a job by the first of its shapes; the pass chooses among them."""
    if not bound:
        raise InputError("an offer without a shape that fits can't be scheduled")
    first = table.add(offer, bound, cluster)
    shape = table.shapes[first]
    record["first_shape"] = record["shape"] = first
    record["shape_count"] = len(bound)
    for name in ("gpus", "device_type", "nearest_tier", "widest_tier", "slowdown", "message_bytes", "vector"):
        record[name] = shape[name]
    record["device_type_mask"] = sum(1 << int(index) for index in np.flatnonzero(shape["need"]))
    record["compute_share"] = 1.0
    record["shape_slowdown"] = 1.0
    for name in ("work_s", "true_remaining_s", "checkpointed_remaining_s"):
        record[name] = offer.work.amount * shape["unit_s"]
    record["estimate_kind"] = EstimateKind.TRACKED  # work and step times are stated
    record["estimated_remaining_s"] = record["index_s"] = record["work_s"] * record["estimate_error"]


def write_gang(
    record: Array, table: ShapeTable, offer: Offer, bound: Sequence[BoundShape], cluster: Cluster
) -> None:
    """Lets a gang choose among types; its work stays in seconds of the reference, whichever it takes."""
    first = table.add_gang(offer, bound, cluster, 1.0)
    record["first_shape"] = record["shape"] = first
    record["shape_count"] = len(bound)
    for name in ("device_type", "nearest_tier", "widest_tier", "slowdown"):
        record[name] = table.shapes[first][name]
    record["device_type_mask"] = sum(1 << int(index) for index in np.flatnonzero(table.shapes[first]["need"]))


def fewest_devices(jobs: JobRecords, shapes: Array) -> Array:
    """The smallest number of devices of all types with which each job can start."""
    return _fewest(jobs, shapes["devices"])


def fewest_gpus(jobs: JobRecords, shapes: Array) -> Array:
    """The smallest number of devices that each job is charged for."""
    return _fewest(jobs, shapes["gpus"])


def _fewest(jobs: JobRecords, of_shape: Array) -> Array:
    fewest = jobs["gpus"].copy()
    if not len(of_shape):
        return fewest
    for row in np.flatnonzero(jobs["shape_count"] > 0):
        first, count = int(jobs["first_shape"][row]), int(jobs["shape_count"][row])
        fewest[row] = of_shape[first : first + count].min()
    return fewest
