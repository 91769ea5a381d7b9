"""Runs the numeric tests with the kernels of other processors.

    python .ci/processors.py [ARGUMENT OF PYTEST]...

NumPy's OpenBLAS and torch, whose products are MKL's, choose kernels by the processor, and each rounds differently; all
can be told to take others. What they took is asked of a process that has computed with them: OpenBLAS takes another
core where it has not the one that is named, and a process ends at the first instruction that the processor lacks.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory

ENOUGH = 2  # kernels beside those of this processor, with which the whole suite runs anyway
PAGES = "test_a_command_prints_what_its_page_shows"  # with one of them: what it runs, the others compare with oracles
# Examples without numbers that are rounded, or of processes of their own, and those of a large model.
LEFT_OUT = "smollm2 or mask or run or python or pytest or check or tokens or learn or completion or onnx"
# OpenBLAS's core, ATen's capability, MKL's instructions; below AVX2 MKL prints a warning into each program's output.
SETTINGS = [
    ("SkylakeX", "avx512", "AVX512"), ("Haswell", "avx2", "AVX2"), ("Zen", "avx2", "AVX2"),
    ("Sandybridge", "default", "AVX2"), ("Nehalem", "default", "AVX2"),
]  # fmt: skip
NUMERIC = """
    tests/test_attention.py tests/analysis/test_derive.py tests/analysis/test_diff.py
    tests/analysis/test_why.py tests/analysis/test_metrics.py tests/analysis/test_heads.py tests/engines/test_toy.py
    tests/oracles/test_checkpoints.py tests/oracles/test_native.py
    tests/oracles/test_why.py tests/recording/test_mha.py tests/oracles/test_gguf.py
    tests/oracles/test_batches.py
    tests/promises/test_readme.py::test_a_command_prints_what_its_page_shows
    tests/trace/test_store.py::test_a_saved_trace_shows_the_same_bytes
""".split()
PROBE = """
import numpy, torch
from threadpoolctl import threadpool_info
square = numpy.ones((256, 256), numpy.float32)
square @ square, square @ square[0], torch.ones(4096).exp().sum()
(core,) = (found["architecture"] for found in threadpool_info() if found["internal_api"] == "openblas")
print(core, torch.backends.cpu.get_cpu_capability())
"""


def probed(variables: dict[str, str]) -> str:
    """Return the kernels of a process with these variables; nothing where the processor lacks them."""
    command = [sys.executable, "-c", PROBE]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True).stdout.strip()


def tested(kernels: str, variables: dict[str, str], has_pages: bool) -> int:
    chosen = f"not {PAGES} or not ({LEFT_OUT})" if has_pages else f"not {PAGES}"
    with TemporaryDirectory() as place:  # pytests that share a place for temporary files remove those of others
        command = [sys.executable, "-m", "pytest", "-q", f"--basetemp={place}", "-k", chosen, *NUMERIC, *sys.argv[1:]]
        ran = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    print(f"the numeric tests with {kernels}:\n{ran.stdout}{ran.stderr}", flush=True)
    return ran.returncode


if __name__ == "__main__":
    own, others = probed({}), {}
    for setting in SETTINGS:
        chosen = dict(
            zip(("OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS"), setting, strict=True)
        )
        found = probed(chosen)
        if found and found != own and len(others) < ENOUGH:
            others.setdefault(found, chosen)
    print(
        f"this processor takes {own}; the numeric tests run with {'; '.join(others) or 'no other kernels'}", flush=True
    )
    with ThreadPoolExecutor() as pool:  # beside each other: alone, each waits for its imports
        sys.exit(any(pool.map(tested, others, others.values(), [True, *[False] * ENOUGH])))
