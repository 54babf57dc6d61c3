"""Run under torchrun: `layouts.py`, with networks so small that DeepSpeed would keep every weight whole divided all the same."""

import layouts

from vlarge.train.zero import start

if __name__ == "__main__":
    start.PERSISTENT = 0
    layouts.main()
