"""Fuzz one decoder, guided by coverage: fuzz_decoder.py NAME [libFuzzer's options] [FOLDER...].

With a file in place of a folder, that input is tried. Without atheris inputs are made up unguided.
"""

import hashlib
import random
import resource
import sys
import time
from contextlib import nullcontext
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None
with atheris.instrument_imports(include=["bootseer"]) if atheris else nullcontext():
    import fuzz_decoders
import fuzz_mutations

MAX_MEMORY_BYTES = 3 << 30
"""Of addresses, with all that is imported; inputs have some kB."""


def main():
    name, arguments = sys.argv[1], sys.argv[2:]
    decoder = fuzz_decoders.DECODERS[name]
    seeds = decoder.seeds()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    if atheris is None:
        run_unguided(decoder, seeds, arguments)
        return

    def mutate(data, max_size, seed):
        chosen = random.Random(seed)
        if chosen.random() < 0.4:
            return atheris.Mutate(data, max_size)
        return fuzz_mutations.mutated(data or chosen.choice(seeds), chosen, seeds)[:max_size]

    def run(data):
        decoder.try_one(data)

    atheris.Setup([sys.argv[0], *arguments], run, custom_mutator=mutate)
    atheris.Fuzz()


def run_unguided(decoder, seeds, arguments):
    options = dict(a[1:].split("=", 1) for a in arguments if a.startswith("-") and "=" in a)
    stop, runs = time.monotonic() + int(options.get("max_total_time", "60")), 0
    chosen = random.Random()
    while time.monotonic() < stop:
        data = fuzz_mutations.mutated(chosen.choice(seeds), chosen, seeds)
        try:
            decoder.try_one(data)
        except BaseException:
            name = f"{options.get('artifact_prefix', '')}{hashlib.sha256(data).hexdigest()}"
            Path(name).write_bytes(data)
            raise
        runs += 1
    print(f"stat::number_of_executed_units: {runs}")


main()
