"""The trainings that `plan_truth.py` predicts and measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from berth.testing.accelerator import NAME as STANDIN

HERE = Path(__file__).resolve().parent
MEDIAN_BAR, WORST_BAR = 0.15, 0.30
MODELS = {  # what is trained, and what is profiled for it
    "ctrdnn": f"{HERE / 'click_models.py'}:ctrdnn",
    "dlrm": f"{HERE / 'click_models.py'}:dlrm",
    "matchnet": "matchnet",
    "2emb": "2emb",
    "nce": "nce",
    "deepfm": f"{HERE / 'click_models.py'}:deepfm",
    "dcn-v2": f"{HERE / 'click_models.py'}:dcn_v2",
}
CLICKS = ("ctrdnn", "dlrm", "deepfm", "dcn-v2")  # what trains on drawn clicks
HELD_OUT_MODELS = ("deepfm", "dcn-v2")
SPEED_OF_STANDIN = 0.5
BATCHES = (256, 1024, 4096, 8192)  # examples of a worker
ROLES = ((1, 0), (1, 1), (1, 2), (2, 1), (2, 2))  # workers and servers
HELD_OUT_BATCHES = (600, 3000)
Case = tuple[str, str, int, int, int]  # model, device, workers, servers, batch of a worker
_DEVELOPED = tuple(model for model in MODELS if model not in HELD_OUT_MODELS)
# Each model with every number of processes, and each batch with all of them; on the stand-in device with two of these,
# and no batch of 256: its wrapper in Python costs more than the work of so few examples.
SAMPLE: tuple[Case, ...] = tuple(
    (model, "cpu", *roles, BATCHES[(number + place) % len(BATCHES)])
    for number, model in enumerate(_DEVELOPED)
    for place, roles in enumerate(ROLES)
) + tuple(
    (model, STANDIN, *ROLES[(number + 2 * place) % len(ROLES)], BATCHES[1 + (number + place) % 3])
    for number, model in enumerate(_DEVELOPED)
    for place in range(2)
)
# Other models at all numbers of processes, and the same models at other batches, each with two numbers of processes.
HELD_OUT: tuple[Case, ...] = tuple(
    (model, "cpu", *roles, BATCHES[(2 * number + place) % len(BATCHES)])
    for number, model in enumerate(HELD_OUT_MODELS)
    for place, roles in enumerate(ROLES)
) + tuple(
    (model, "cpu", *ROLES[(number + 3 * place) % len(ROLES)], batch)
    for number, model in enumerate(_DEVELOPED)
    for place, batch in enumerate(HELD_OUT_BATCHES)
)


@dataclass(frozen=True)
class Run:
    """One training, predicted and measured; seconds of one step, CPU seconds of one process of the role."""

    model: str
    device: str
    workers: int
    servers: int
    batch: int
    steps: int
    predicted_s: float
    measured_s: float
    judged: str  # wall or CPU
    waited: float  # share by which work beside the run took longer than its CPU time
    others: float  # share of the cores that other programs used
    speed: float  # of a core, relative to when the curves were measured
    wall_s: float
    worker_s: tuple[float, float]  # predicted, measured
    server_s: tuple[float, float]
    reader_s: tuple[float, float]
    # What the prediction knows of the run:
    drawing_s: float  # CPU seconds of drawing a worker's batch
    new_share: float  # of the distinct rows of a step
    fresh_byte_s: float  # CPU seconds of a byte of new memory

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def case(self) -> Case:
        """What was run."""
        return self.model, self.device, self.workers, self.servers, self.batch

    @property
    def examples_per_s(self) -> float:
        """Measured, of all workers."""
        return self.workers * self.batch / self.measured_s
