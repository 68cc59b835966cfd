"""Set before torch is imported: the suite's models are tiny, and idle threads that spin only steal time from other
processes."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
