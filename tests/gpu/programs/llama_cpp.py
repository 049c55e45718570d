"""llama.cpp with all layers on the card: EGPU_TEST_GGUF names a model, because there is no network."""

import json
import os
import shutil
import subprocess

from program import right, skip

program, model = shutil.which("llama-bench"), os.environ.get("EGPU_TEST_GGUF")
if program is None:
    skip("no llama-bench on PATH")
if not model:
    skip("EGPU_TEST_GGUF names no model")
done = subprocess.run(
    [program, "-m", model, "-ngl", "99", "-p", "64", "-n", "32", "-r", "1", "-o", "json"],
    capture_output=True, text=True, check=True,
)  # fmt: skip
rates = [test["avg_ts"] for test in json.loads(done.stdout)]
right("CUDA" in done.stdout and len(rates) == 2 and all(rate > 0 for rate in rates), "llama.cpp")
