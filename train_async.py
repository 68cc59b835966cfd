"""`python3 train_async.py ARGS` in this folder is `slime train --max-staleness 1 ARGS`, as slime's train_async.py makes it."""

import sys

from slime.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", "--max-staleness", "1", *sys.argv[1:]]))
