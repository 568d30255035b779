"""Runs inside srun's child, in the embedded interpreter: the up-call for advice.

The build hands this text to cffi as the embedding's init code; the package is found through
the PYTHONPATH that advice_python.c sets.
"""

import os

from bootseer_advice import ffi


@ffi.def_extern(error=0)
def bootseer_advise_python(output, count, names, values):
    """Write what bootseer.slurm.advise has to say, a line each. Return 1 for done."""
    from bootseer.slurm.advise import advise

    request = {
        ffi.string(names[i]).decode(): ffi.string(values[i]).decode("utf-8", "surrogateescape")
        for i in range(count)
    }
    text = "".join(f"{line}\n" for line in advise(request))
    with os.fdopen(output, "wb") as stream:
        stream.write(text.encode("utf-8", "surrogateescape"))
    return 1
