"""Have an image served and read all of it, and have a file kept: `talk_serve.py URI PATH`."""

import json
import os
import socket
import sys

uri, kept = sys.argv[1:]
for request in (
    {"op": "serve", "image": uri},
    {"op": "keep", "image": "docker://forged", "path": kept},
):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(os.environ["BOOTSEER_SOCKET"])
        connection.sendall(json.dumps(request).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n") and (part := connection.recv(65536)):
            line += part
    print(line.decode(errors="replace"), flush=True)
    path = json.loads(line or b"{}").get("path")
    if path:
        try:
            with open(path, "rb") as file:
                while file.read(1 << 20):
                    pass
        except OSError as error:
            print(error)
