"""Run all fuzz targets, two at a time: run.py [--seconds N] [TARGET...].

Prints a line for each. What was found is in build/fuzz/found, and inputs that reach something new
stay in build/fuzz/inputs for the next time. Ends with 1 if something was found.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fuzz_decoders
import fuzz_programs

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "fuzz"
AT_ONCE = 2
INPUT_S = 20
MEMORY_MIB = 2048
LONGEST_INPUT = 65536
LOG_LINES = 30
"""Of a target's log, printed if something was found: the machine may be gone afterwards."""
GRACE_S = 120
"""To start, to run what is there already, and to end."""
_RUNS = re.compile(r"number_of_executed_units: *(\d+)")


def prepared(name: str, seeds: list[bytes]) -> Path:
    """Return the folder of a target's inputs, with what it begins with."""
    folder = FOLDER / "inputs" / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (folder / f"seed-{hashlib.sha256(seed).hexdigest()[:16]}").write_bytes(seed)
    return folder


def command_of(name: str, seconds: int) -> list[str]:
    """Build a target if that is to be done; returns how it is run."""
    guided = [
        *(f"-max_total_time={seconds}", f"-timeout={INPUT_S}", f"-rss_limit_mb={MEMORY_MIB}"),
        *(f"-max_len={LONGEST_INPUT}", "-print_final_stats=1"),
        f"-artifact_prefix={FOLDER / 'found'}/{name}-",
    ]
    program = fuzz_programs.PROGRAMS.get(name)
    if program is None:
        inputs = prepared(name, fuzz_decoders.DECODERS[name].seeds())
        return [sys.executable, str(HERE / "fuzz_decoder.py"), name, *guided, str(inputs)]
    built = str(program.build(FOLDER))
    if not program.is_guided:
        return [built, str(seconds)]
    return [built, *guided, str(prepared(name, program.seeds()))]


def run(name: str, seconds: int) -> bool:
    """Run a target; returns whether nothing was found."""
    log = FOLDER / "log" / f"{name}.txt"
    command = command_of(name, seconds)
    begun = time.monotonic()
    before = set((FOLDER / "found").iterdir())
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1", "TMPDIR": str(FOLDER)}
    with open(log, "wb") as file:
        try:
            status = subprocess.run(
                command, stdout=file, stderr=file, timeout=seconds + GRACE_S, env=environment
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    took_s = time.monotonic() - begun
    found = sorted(set((FOLDER / "found").glob(f"{name}-*")) - before)
    runs = sum(map(int, _RUNS.findall(log.read_text(errors="replace"))[-1:]))
    result = "nothing found" if status == 0 else f"FOUND, status {status}: see {log}"
    for path in found:
        result += f"; {path}"
    print(f"{name:10} {runs:>10,} runs {runs / took_s:>9,.0f}/s  {result}", flush=True)
    if status != 0:
        print(*log.read_text(errors="replace").splitlines()[-LOG_LINES:], sep="\n", flush=True)
    return status == 0


def main() -> int:
    names = [*fuzz_programs.PROGRAMS, *fuzz_decoders.DECODERS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="that each target is run")
    parser.add_argument("targets", nargs="*", help=", ".join(names))
    asked = parser.parse_args()
    if unknown := set(asked.targets) - set(names):
        parser.error(f"there is no target {', '.join(sorted(unknown))}")
    for folder in ("found", "log", "inputs"):
        (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda name: run(name, asked.seconds), asked.targets or names))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
