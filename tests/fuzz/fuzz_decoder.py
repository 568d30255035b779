"""Fuzz one decoder, guided by coverage: fuzz_decoder.py NAME [libFuzzer's options] [FOLDER...]."""

import random
import resource
import sys

import atheris

with atheris.instrument_imports(include=["bootseer"]):
    import fuzz_decoders
import fuzz_mutations

MAX_MEMORY_BYTES = 3 << 30
"""Of addresses, with all that is imported; who decodes has inputs of some kB."""


def main():
    name, arguments = sys.argv[1], [sys.argv[0], *sys.argv[2:]]
    decoder = fuzz_decoders.DECODERS[name]
    seeds = decoder.seeds()

    def mutate(data, max_size, seed):
        chosen = random.Random(seed)
        if chosen.random() < 0.4:
            return atheris.Mutate(data, max_size)
        return fuzz_mutations.mutated(data or chosen.choice(seeds), chosen, seeds)[:max_size]

    def run(data):
        decoder.try_one(data)

    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    atheris.Setup(arguments, run, custom_mutator=mutate)
    atheris.Fuzz()


main()
