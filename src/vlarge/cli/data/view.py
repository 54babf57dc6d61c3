from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """x"""


def view(a):
    return 0
