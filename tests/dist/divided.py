"""Run under torchrun: `divided.py layouts STEP JSON` is layouts.py, with spoilt actions in a step; else the command line.

Either way DeepSpeed divides every weight, also those of networks so small that it would keep them whole.
"""

import sys
from collections.abc import Callable

import layouts

from vlarge.cli.main import main
from vlarge.contracts import Sample
from vlarge.train.zero import start


def spoiling(make: Callable[[int], list[Sample]], spoilt: int) -> Callable[[int], list[Sample]]:
    def make_some(step: int) -> list[Sample]:
        samples = make(step)
        if step == spoilt:
            samples[0].actions_SA[:] = float("nan")
        return samples

    return make_some


if __name__ == "__main__":
    start.PERSISTENT = 0
    if sys.argv[1] != "layouts":
        sys.exit(main(sys.argv[1:]))
    step = int(sys.argv.pop(2))
    layouts.make_samples = spoiling(layouts.make_samples, step)
    del sys.argv[1]
    layouts.main()
