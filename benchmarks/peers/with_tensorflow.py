"""TensorFlow: a compiled step with gather, and AdaGrad on the distinct rows of a batch."""

from __future__ import annotations

import itertools
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from turns import DENSE, DIM, HIDDEN, ROWS, SLOTS, Array, Step, take_turns


def make() -> Step:
    """Raw operations: Keras' own optimisers would make dense gradients of the table."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.random.set_seed(0)
    table = tf.Variable(tf.random.uniform((ROWS, DIM), -0.01, 0.01))
    squares = tf.Variable(tf.zeros((ROWS, DIM)))
    weights = _tower()
    moments = [(tf.Variable(tf.zeros_like(w)), tf.Variable(tf.zeros_like(w))) for w in weights]
    powers = [tf.Variable(1.0), tf.Variable(1.0)]

    def step(ids: Any, dense: Any, labels: Any) -> Any:
        rows = tf.gather(table, tf.reshape(ids, [-1]))
        with tf.GradientTape() as tape:
            tape.watch(rows)
            output = _forward(weights, tf.concat([tf.reshape(rows, (-1, SLOTS * DIM)), dense], 1))
            wanted = tf.cast(labels, tf.float32)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(wanted, output))
        slopes, *dense_slopes = tape.gradient(loss, [rows, *weights])
        _adagrad(table, squares, tf.reshape(ids, [-1]), slopes)
        _adam(weights, moments, powers, dense_slopes)
        return output

    compiled = tf.function(step)

    def run(ids: Array, dense: Array, labels: Array) -> Array:
        scores: Array = compiled(tf.constant(ids), tf.constant(dense), tf.constant(labels)).numpy()
        return scores

    return run


def _tower() -> list[Any]:
    found = []
    for inputs, outputs in itertools.pairwise((SLOTS * DIM + DENSE, *HIDDEN, 1)):
        bound = inputs**-0.5
        found += [tf.Variable(tf.random.uniform((inputs, outputs), -bound, bound))]
        found += [tf.Variable(tf.random.uniform((outputs,), -bound, bound))]
    return found


def _forward(weights: list[Any], state: Any) -> Any:
    for number in range(0, len(weights), 2):
        state = tf.linalg.matmul(state, weights[number]) + weights[number + 1]
        if number + 2 < len(weights):
            state = tf.nn.relu(state)
    return tf.reshape(state, [-1])


def _adagrad(table: Any, squares: Any, ids: Any, slopes: Any) -> None:
    unique, which = tf.unique(ids)
    summed = tf.math.unsorted_segment_sum(slopes, which, tf.size(unique))
    tf.raw_ops.ResourceSparseApplyAdagradV2(
        var=table.handle, accum=squares.handle, lr=0.05, epsilon=1e-10, grad=summed, indices=unique
    )


def _adam(weights: list[Any], moments: list[Any], powers: list[Any], slopes: list[Any]) -> None:
    powers[0].assign(powers[0] * 0.9)
    powers[1].assign(powers[1] * 0.999)
    for weight, (first, second), slope in zip(weights, moments, slopes, strict=True):
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=first.handle,
            v=second.handle,
            beta1_power=powers[0],
            beta2_power=powers[1],
            lr=1e-3,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-8,
            grad=slope,
        )


if __name__ == "__main__":
    take_turns(make)
