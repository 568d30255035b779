"""Connect to an address and hand the socket out: ``dial.py HOST PORT TIMEOUT_S``.

Run by its path, in a machine's network; it imports next to nothing, to be done in 20 ms. Standard
input is a Unix socket, which gets the errno, 0 if there is none, and with it the connection.
"""

import errno
import socket
import sys


def main() -> None:
    """Connect, or say why not."""
    host, port, timeout_s = sys.argv[1:]
    with socket.socket(fileno=0) as talk:
        try:
            with socket.create_connection((host, int(port)), float(timeout_s)) as made:
                socket.send_fds(talk, [b"0"], [made.fileno()])
        except OSError as error:
            talk.send(str(error.errno or errno.ETIMEDOUT).encode())


if __name__ == "__main__":
    main()
