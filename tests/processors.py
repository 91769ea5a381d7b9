"""Runs the numeric tests with the kernels of other processors.

    python tests/processors.py [ARGUMENT OF PYTEST]...

NumPy's OpenBLAS and torch choose kernels by the processor, and each rounds differently; both can be told to take
others. What they took is asked of a process that has computed with them: OpenBLAS takes another core where it has not
the one that is named, and a process ends at the first instruction that the processor lacks.
"""

import os
import subprocess
import sys

# OpenBLAS's core and ATen's capability, as processors have them together.
SETTINGS = [("SkylakeX", "avx512"), ("Haswell", "avx2"), ("Zen", "avx2"), ("Sandybridge", "default")]
NUMERIC = """
    tests/unit/test_attention.py tests/unit/test_derive.py tests/unit/test_difference.py tests/unit/test_divergence.py
    tests/unit/test_explanation.py tests/unit/test_metrics.py tests/unit/test_survey.py tests/unit/test_toy.py
    tests/checkpoint/test_checkpoint.py tests/checkpoint/test_derived_views.py tests/checkpoint/test_native.py
    tests/checkpoint/test_why.py tests/integration/test_module.py tests/integration/test_resume.py
    tests/integration/test_trace_files.py
""".split()
PROBE = """
import numpy, torch
from threadpoolctl import threadpool_info
square = numpy.ones((256, 256), numpy.float32)
square @ square, square @ square[0], torch.ones(4096).exp().sum()
(core,) = (found["architecture"] for found in threadpool_info() if found["internal_api"] == "openblas")
print(core, torch.backends.cpu.get_cpu_capability())
"""


def main() -> None:
    ran: list[str] = []
    codes: list[int] = []
    for core, capability in SETTINGS:
        wanted = f"OPENBLAS_CORETYPE={core} ATEN_CPU_CAPABILITY={capability}"
        environment = os.environ | dict(setting.split("=") for setting in wanted.split())
        probe = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True)
        found = probe.stdout.strip()
        if probe.returncode:
            why = f"signal {-probe.returncode}" if probe.returncode < 0 else probe.stderr.strip().splitlines()[-1]
            print(f"{wanted}: not on this processor ({why})", flush=True)
        elif found in ran:
            print(f"{wanted}: taken for {found}, which has run", flush=True)
        else:
            print(f"{wanted}: runs with {found}", flush=True)
            ran.append(found)
            tests = ["-m", "pytest", "-q", "-k", "not killed", *NUMERIC, *sys.argv[1:]]
            codes.append(subprocess.run([sys.executable, *tests], env=environment).returncode)
    print("the numeric tests ran with", "; ".join(ran) or "no other kernels", flush=True)
    sys.exit(any(codes) or not codes)


if __name__ == "__main__":
    main()
