"""Runs the numeric tests with the kernels of other processors.

    python tests/helpers/processors.py [ARGUMENT OF PYTEST]...

NumPy's OpenBLAS and torch, whose products are MKL's, choose kernels by the processor, and each rounds differently; all
can be told to take others. What they took is asked of a process that has computed with them: OpenBLAS takes another
core where it has not the one that is named, and a process ends at the first instruction that the processor lacks.
"""

import os
import subprocess
import sys
import tempfile

ENOUGH = 3  # kernels, those of this processor among them, with which the whole suite runs anyway
# OpenBLAS's core, ATen's capability, MKL's instructions; below AVX2 MKL prints a warning into each program's output.
SETTINGS = [
    ("SkylakeX", "avx512", "AVX512"), ("Haswell", "avx2", "AVX2"), ("Zen", "avx2", "AVX2"),
    ("Sandybridge", "default", "AVX2"), ("Nehalem", "default", "AVX2"),
]  # fmt: skip
NUMERIC = """
    tests/test_attention.py tests/analysis/derive/test_derive.py tests/analysis/test_diff.py
    tests/analysis/test_why.py tests/analysis/test_metrics.py tests/analysis/test_heads.py tests/engines/test_toy.py
    tests/oracles/test_checkpoints.py tests/analysis/derive/test_on_checkpoints.py tests/oracles/test_native.py
    tests/oracles/test_why.py tests/recording/test_from_module.py tests/oracles/test_gguf.py
    tests/oracles/test_batches.py tests/oracles/test_blocks.py
    tests/promises/test_readme.py::test_a_command_prints_what_its_page_shows
    tests/trace/test_store.py::test_the_order_in_which_arrays_lie_changes_no_byte
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


def probed(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True)


def main() -> None:
    kernels = [probed(dict(os.environ)).stdout.strip()]
    print(f"this processor takes {kernels[0]}: the whole suite runs with these kernels", flush=True)
    running = []
    for core, capability, instructions in SETTINGS:
        if len(kernels) == ENOUGH:
            break
        chosen = {
            "OPENBLAS_CORETYPE": core,
            "ATEN_CPU_CAPABILITY": capability,
            "MKL_ENABLE_INSTRUCTIONS": instructions,
        }
        environment = os.environ | chosen
        probe = probed(environment)
        found = probe.stdout.strip()
        if probe.returncode:
            print(f"{core} {capability}: this processor lacks it (the probe ended with {probe.returncode})", flush=True)
        elif found in kernels:
            print(f"{core} {capability}: gives {found}, which is there already", flush=True)
        else:
            kernels.append(found)
            # A place of its own for temporary files: from the one that pytests share, each removes what is old, and
            # fails where another was removing it.
            place = tempfile.TemporaryDirectory()
            command = [sys.executable, "-m", "pytest", "-q", f"--basetemp={place.name}", *NUMERIC, *sys.argv[1:]]
            log = tempfile.TemporaryFile("w+")  # noqa: SIM115
            running.append((found, log, place, subprocess.Popen(command, env=environment, stdout=log, stderr=log)))
    for found, log, place, process in running:  # beside each other: alone, each waits for its imports
        process.wait()
        place.cleanup()
        log.seek(0)
        print(f"the numeric tests with {found}:\n{log.read()}", flush=True)
    print(f"the numeric tests ran with {'; '.join(kernels[1:]) or 'no other kernels'}", flush=True)
    sys.exit(any(process.returncode for *_, process in running))


if __name__ == "__main__":
    main()
