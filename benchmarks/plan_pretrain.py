"""Learns the weights that the learned scheduler is shipped with: by imitating exact plans of generated problems.

    python benchmarks/plan_pretrain.py --cell lstm        writes src/berth/plan/search/data/berth-lstm.npz

The problems are those of `plan_problems.generated`: 4 to 22 layers, 2 to 8 types, one in four with limits.
No profile of the zoo is among them. Seeds are fixed, but the exact method gets 0.05 s for a problem: with limits
it may stop before its proof, so a slower machine may learn from slightly other plans. About 3 minutes of CPU.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

import berth.plan.search
from berth.plan.search.learned_features import LAYER, PLACE, Features, features
from berth.plan.search.learned_policy import FORBIDDEN, Cell, Policy, PolicyInputs
from berth.plan.search.learned_weights import save
from berth.plan.search.method import Budget, get_method
from plan_problems import generated

LAYERS, KINDS = 22, 8
BATCH = 64
HIGH, LOW = 4e-3, 1e-4  # learning rate, falling as a cosine
HELD_OUT = 256


@dataclass(frozen=True, slots=True)
class Example:
    """What the policy sees of a problem, and the optimal plan."""

    seen: Features
    plan: NDArray[np.int64]


def examples(first: int, count: int) -> list[Example]:
    """Solved problems with the seeds from `first` on; infeasible ones are left out."""
    made = []
    for seed in range(first, first + count):
        draw = np.random.default_rng(seed)
        problem = generated(int(draw.integers(4, LAYERS + 1)), int(draw.integers(2, KINDS + 1)), seed)
        plan = get_method("exact")(problem, Budget(seconds=0.05), None).plan
        if plan is not None:
            made.append(Example(features(problem), np.array(plan.assignment)))
    return made


def batched(chosen: list[Example]) -> tuple[PolicyInputs, Tensor, Tensor]:
    """Problems of unlike sizes side by side, with their plans and the share of each layer in the loss."""
    count = len(chosen)
    place = np.zeros((LAYERS, count, KINDS, PLACE), np.float32)
    layer = np.zeros((LAYERS, count, LAYER), np.float32)
    serial = np.zeros((LAYERS, count, KINDS, 2), np.float32)
    mask = np.full((LAYERS, count, KINDS), FORBIDDEN, np.float32)
    plans = np.zeros((count, LAYERS), np.int64)
    share = np.zeros((LAYERS, count), np.float32)
    mask[:, :, 0] = 0.0  # behind the last layer there is one choice only
    for row, one in enumerate(chosen):
        layers, kinds = one.seen.allowed.shape
        place[:layers, row, :kinds] = one.seen.place
        layer[:layers, row] = one.seen.layer
        serial[:layers, row, :kinds] = one.seen.serial
        mask[:layers, row, :kinds] = np.where(one.seen.allowed, 0.0, FORBIDDEN)
        plans[row, :layers] = one.plan
        share[:layers, row] = 1.0 / count
    inputs = PolicyInputs(*(torch.from_numpy(array) for array in (place, layer, serial, mask)))
    return inputs, torch.from_numpy(plans), torch.from_numpy(share)


def imitate(cell: Cell, known: list[Example], steps: int) -> Policy:
    """A policy that makes the exact plans likely."""
    generator = torch.Generator().manual_seed(0)
    policy = Policy(cell, generator)
    optimizer = torch.optim.Adam(policy.parameters(), lr=HIGH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, LOW)
    train, held_out = known[HELD_OUT:], batched(known[:HELD_OUT])
    began = time.process_time()
    for step in range(steps):
        rows = torch.randint(len(train), (BATCH,), generator=generator).tolist()
        inputs, plans, share = batched([train[row] for row in rows])
        logs, _ = policy(inputs, plans)
        loss = -(logs * share).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 249:
            spent = time.process_time() - began
            print(
                f"step {step + 1:5d}  loss {loss.item():.3f}  {held(policy, *held_out)}  {spent:.0f} s",
                flush=True,
            )
    return policy


@torch.no_grad()
def held(policy: Policy, inputs: PolicyInputs, plans: Tensor, share: Tensor) -> str:
    """How likely the exact plans of problems that were not trained on are."""
    logs, _ = policy(inputs, plans)
    whole = functional.relu((logs * (share > 0)).sum(dim=0).exp())
    return (
        f"held out: loss {-(logs * share).sum().item():.3f}, exact plan drawn with {whole.mean().item():.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", choices=["lstm", "rnn"], default="lstm")
    parser.add_argument("--problems", type=int, default=30000)
    parser.add_argument("--steps", type=int, default=6000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cell = cast(Cell, given.cell)
    policy = imitate(cell, examples(0, given.problems), given.steps)
    save(policy, Path(berth.plan.search.__path__[0]) / "data" / f"berth-{cell}.npz")


if __name__ == "__main__":
    main()
