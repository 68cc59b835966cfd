"""`python3 train.py ARGS` in this folder is `slime train ARGS`: slime's launch scripts run as they are."""

import sys

from slime.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
