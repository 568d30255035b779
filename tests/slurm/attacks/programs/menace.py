"""Signal every process of BootSeer's that has one's own rights: `menace.py SIGNAL SECONDS`.

Each is signalled as soon as it is seen.
"""

import os
import re
import signal
import sys
import time

OURS = re.compile(rb"bootseer\.(agent|broker|supervisor)|^\S*mksquashfs")
number = getattr(signal, f"SIG{sys.argv[1]}")
own = os.getuid()
seen = set()
print("at it", flush=True)
deadline = time.monotonic() + float(sys.argv[2])
while time.monotonic() < deadline:
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read(4000)
            if entry in seen or not OURS.search(command):
                continue
            with open(f"/proc/{entry}/status") as file:
                if f"\nUid:\t{own}\t" not in file.read():
                    continue
            os.kill(int(entry), number)
            seen.add(entry)
        except OSError:
            continue
print("signalled", len(seen), flush=True)
