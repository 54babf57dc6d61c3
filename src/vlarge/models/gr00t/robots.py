"""Which of the weights that GR00T has for each kind of robot belong to which robot."""

from __future__ import annotations

from collections.abc import Collection

from vlarge.contracts import InputError

# NVIDIA's tags: the released weights of these numbers are theirs. "new_embodiment" is what everybody fine-tunes.
TAGS = {"new_embodiment": 31, "agibot_genie1": 26, "gr1": 24, "oxe_droid": 17}


def free_number(num_embodiments: int, name: str, taken: Collection[int]) -> int:
    """A robot of NVIDIA's keeps its number; another has the highest that is free, NVIDIA's own robots' last.

    taken: numbers of the run's other robots. Raises InputError when none is left.
    """
    own = TAGS.get(name, -1)
    known = {number for tag, number in TAGS.items() if tag != "new_embodiment"}
    others = sorted(range(num_embodiments), key=lambda number: (number in known, -number))
    wishes = [own, *others] if 0 <= own < num_embodiments else others
    for number in wishes:
        if number not in taken:
            return number
    raise InputError(
        f"the model has weights for {num_embodiments} robots, and all are taken: {name!r} has none left;"
        " give datasets of the same robot the same embodiment in data.mixture"
    )
