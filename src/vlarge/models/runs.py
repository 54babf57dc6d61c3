"""Arithmetic on runs of rows that lie end to end: what index arrays of packed batches are made of."""

from __future__ import annotations

import numpy as np

Runs = tuple[np.ndarray, np.ndarray]  # starts and lengths


def starts(lengths: np.ndarray) -> np.ndarray:
    """Where each of the runs begins when they lie end to end."""
    return np.cumsum(lengths) - lengths


def runs(lengths: np.ndarray, after: int = 0) -> Runs:
    """Runs that lie end to end behind so many other rows."""
    return after + starts(lengths), lengths


def ranges(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """first, first+1, … for each run, end to end."""
    return np.repeat(first - starts(lengths), lengths) + np.arange(int(lengths.sum()))


def repeated(each: Runs, times: int) -> Runs:
    """Each run so many times in a row."""
    return np.repeat(each[0], times), np.repeat(each[1], times)


def interleave(*kinds: Runs) -> np.ndarray:
    """Rows of the first of each kind of run one after another, then of the second of each, …"""
    first, lengths = (np.stack(each, 1).ravel() for each in zip(*kinds, strict=True))
    return ranges(first, lengths)
