"""Records of jobs as columns, for traces too long to keep a whole record of every job.

A field that is the same in all jobs is kept once, one that depends on a job's class once per class. `write` makes
the records of a range of jobs from them. It is filled as an array of records is: `jobs["gpus"] = ...`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from berth.schedule.records import JOB, Array

Classified = tuple[Array, Array]  # the values of each class, and the class of each job


class JobColumns:
    """The fields of `count` jobs that are alike but for what was set."""

    def __init__(self, alike: Array, count: int) -> None:
        self._alike, self._count = alike.copy(), count  # `alike`: one record
        self._columns: dict[str, Array | Classified] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> Array:
        """The column of a field; what is written into it counts."""
        column = self._columns.get(name)
        if column is None:
            column = np.repeat(self._alike[name], self._count, axis=0)
        elif isinstance(column, tuple):
            column = column[0][column[1]]
        self._columns[name] = column
        return column

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets a field of all jobs, to one value or to one for each."""
        field, values = JOB[name], np.asarray(value)
        if values.ndim <= len(field.shape):
            self._columns.pop(name, None)
            self._alike[name] = value
        elif values is not self._columns.get(name):
            self._columns[name] = values.astype(field.base)

    def classify(self, name: str, values: Array, classes: Array) -> None:
        """Sets a field to the value of each job's class."""
        self._columns[name] = values, classes

    def highest(self, name: str) -> int:
        """The largest value of a field, at least 0."""
        column = self._columns.get(name)
        values = self._alike[name] if column is None else self[name]
        return int(values.max(initial=0))

    def write(self, records: Array, start: int, stop: int) -> None:
        """Writes the records of jobs start:stop."""
        part = records[start:stop]
        part[...] = self._alike[0]
        part["id"] = np.arange(start, stop)
        for name, column in self._columns.items():
            if isinstance(column, tuple):
                part[name] = column[0][column[1][start:stop]]
            else:
                part[name] = column[start:stop]


JobRecords = Array | JobColumns


def set_by_class(jobs: JobRecords, name: str, values: Array, classes: Array) -> None:
    """Sets a field of jobs to the value of each one's class."""
    if isinstance(jobs, JobColumns):
        jobs.classify(name, values, classes)
    else:
        jobs[name] = values[classes]


def highest(jobs: JobRecords, name: str) -> int:
    """The largest value of a field of jobs, at least 0."""
    return jobs.highest(name) if isinstance(jobs, JobColumns) else int(jobs[name].max(initial=0))
