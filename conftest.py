"""What pytest must not import: the GPU kernel, where torch came without Triton."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["src/faithscope/models/lstm_kernel.py"]
