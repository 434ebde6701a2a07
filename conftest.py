"""What pytest must not import.

An imitation of Apple's GPU, which changes torch for the whole process, but where `test_apple.py`
asks for it; the GPU kernel, where torch came without Triton.
"""

import os
from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["src/faithscope/models/lstm_kernel.py"]
if "FAITHSCOPE_ON_APPLE" not in os.environ:
    collect_ignore += ["tests/models/on_apple.py", "tests/helpers/apple.py"]
