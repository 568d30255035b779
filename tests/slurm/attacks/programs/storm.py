"""Files come, go, shrink, and become links all the time: `storm.py FOLDER SECONDS`."""

import os
import random
import sys
import time
from contextlib import suppress

folder = sys.argv[1]
generator = random.Random(1)
os.makedirs(folder, exist_ok=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    one, other = (f"{folder}/{generator.randrange(40)}" for _ in range(2))
    with suppress(OSError):
        match generator.randrange(9):
            case 0:
                file = os.open(one, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK)
                os.write(file, os.urandom(generator.randrange(200_000)))
                os.close(file)
            case 1:
                os.rename(one, other)
            case 2:
                os.unlink(one)
            case 3:
                os.symlink("/shared/roots", one)
            case 4:
                os.truncate(one, generator.randrange(100_000))
            case 5:
                os.mkdir(one)
            case 6:
                os.rmdir(one)
            case 7:
                os.mkfifo(one)
            case 8:
                os.link(one, other)
