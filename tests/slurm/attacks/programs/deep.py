"""Make a folder in a folder, again and again, and files beside them: `deep.py FOLDER LEVELS`."""

import os
import sys

folder, levels = sys.argv[1], int(sys.argv[2])
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
for _ in range(levels):
    os.mkdir("d" * 20)
    os.chdir("d" * 20)
    open("file", "w").close()
print("done", levels)
