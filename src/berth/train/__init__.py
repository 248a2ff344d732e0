"""Training: sparse tables, the servers that hold them, and the stages that use them.

Importing this package is cheap; torch is loaded with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.callbacks import Callback
    from berth.train.data import BatchSource, ClickStream
    from berth.train.embedding import Embedding, slot_keys, with_sparse_tables
    from berth.train.evaluate import Evaluation
    from berth.train.inference import load_for_inference
    from berth.train.interruption import Stopped
    from berth.train.local import LocalStore
    from berth.train.options import Checkpoints, TrainOptions
    from berth.train.pooling import EmbeddingBag
    from berth.train.result import Result
    from berth.train.serving.export import export_for_serving
    from berth.train.session import Session, fit
    from berth.train.sparse import SparseStore, TableSpec
    from berth.train.tables import Admission, DecayPolicy, Initialiser, adagrad, adam, rowwise_adagrad, sgd
    from berth.train.trainer import Trainer

_HOMES = {
    "Admission": "tables",
    "Callback": "callbacks",
    "Checkpoints": "options",
    "ClickStream": "data",
    "Embedding": "embedding",
    "EmbeddingBag": "pooling",
    "Evaluation": "evaluate",
    "Initialiser": "tables",
    "DecayPolicy": "tables",
    "LocalStore": "local",
    "Result": "result",
    "Session": "session",
    "BatchSource": "data",
    "SparseStore": "sparse",
    "Stopped": "interruption",
    "TableSpec": "sparse",
    "TrainOptions": "options",
    "Trainer": "trainer",
    "adagrad": "tables",
    "adam": "tables",
    "export_for_serving": "serving.export",
    "fit": "session",
    "load_for_inference": "inference",
    "rowwise_adagrad": "tables",
    "sgd": "tables",
    "slot_keys": "embedding",
    "with_sparse_tables": "embedding",
}

__all__ = [
    "Admission",
    "BatchSource",
    "Callback",
    "Checkpoints",
    "ClickStream",
    "DecayPolicy",
    "Embedding",
    "EmbeddingBag",
    "Evaluation",
    "Initialiser",
    "LocalStore",
    "Result",
    "Session",
    "SparseStore",
    "Stopped",
    "TableSpec",
    "TrainOptions",
    "Trainer",
    "adagrad",
    "adam",
    "export_for_serving",
    "fit",
    "load_for_inference",
    "rowwise_adagrad",
    "sgd",
    "slot_keys",
    "with_sparse_tables",
]

__getattr__ = exports(__name__, _HOMES)
