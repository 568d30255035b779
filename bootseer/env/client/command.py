"""Run a command as a shell would."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Mapping, Sequence

from bootseer.env.client.terminal import tell

if TYPE_CHECKING:
    import subprocess


def execute(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command as a shell would; returns its exit status."""
    import subprocess  # a result that is restored needs none

    processes: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        if number == signal.SIGINT:
            return  # the terminal's own goes to the command as well: it decides
        for process in processes:
            process.send_signal(number)
        if not processes:
            early.append(number)

    # Handlers, even to ignore: the command starts without them. What was ignored before (nohup) is
    # so by the command, too.
    passed = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {
        number: signal.signal(number, pass_on)
        for number in passed
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        process = subprocess.Popen(list(command), env=dict(environ))
        processes.append(process)
        for number in early:
            process.send_signal(number)
        status = process.wait()
    except FileNotFoundError:
        tell(f"{command[0]}: command not found")
        return 127
    except OSError as error:
        tell(f"{command[0]}: {error.strerror}")
        return 126
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
