"""Read files without the page cache, in several threads, for ever: `direct_read.py FILE...`."""

import mmap
import os
import sys
import threading


def read(path):
    buffer = mmap.mmap(-1, 1 << 20)
    while True:
        try:
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            continue
        offset = 0
        try:
            while (got := os.preadv(file, [buffer], offset)) > 0:
                offset += got
        except OSError:
            pass
        os.close(file)


threads = [threading.Thread(target=read, args=(path,)) for path in sys.argv[1:] for _ in range(4)]
for thread in threads:
    thread.start()
print("at it", flush=True)
