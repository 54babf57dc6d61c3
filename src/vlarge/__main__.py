"""`python -m vlarge` is the console script `vlarge` (torchrun needs a module)."""

import sys

from vlarge.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
