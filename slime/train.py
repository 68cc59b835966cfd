"""`python -m slime.train ARGS` is `slime train ARGS`: what slime's launch scripts call. The loop is in slime/loop.py."""

import sys

from slime.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
