"""A job that does what a test tells it, step by step: a shell behind srun."""

from __future__ import annotations

import os
import select
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bootseer.errors import Unavailable
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs.lab import Lab

_ENDED = "=== ended"


@dataclass(frozen=True)
class Answer:
    """What a command in the job came to.

    Attributes:
        code: its exit code.
        text: what it printed, errors included.
    """

    code: int
    text: str


class JobShell:
    """A running job of one task on one node; leaving it as a context manager ends it well."""

    def __init__(self, lab: Lab, *options: str, user: str = "alice", node: str = "n1") -> None:
        """Start a job, and return when its shell answers.

        Args:
            lab: where.
            options: of srun.
            user: whose job it is.
            node: where it runs.

        Raises:
            Unavailable: it does not answer.
        """
        self._lab = lab
        self._got = ""
        argv = ["srun", "-n1", "-w", node, *options, "sh"]
        self.process = lab.cluster.popen(argv, user=user, stdin=subprocess.PIPE)
        try:
            self.job_id = int(self.run("echo $SLURM_JOB_ID", timeout_s=30).text)
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise

    def start(self, command: str) -> None:
        """Have it begin with a command; `answer` waits for the end of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{{ {command}\n}} 2>&1; code=$?; echo; echo '{_ENDED}' $code\n")
        self.process.stdin.flush()

    def answer(self, timeout_s: float = 30) -> Answer:
        """Wait for the end of what was begun.

        Raises:
            Unavailable: it has not ended in time, or the job has.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while True:
            text, found, rest = self._got.partition(f"\n{_ENDED} ")
            if found and "\n" in rest:
                code, _, self._got = rest.partition("\n")
                return Answer(int(code), text)
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, left_s))
            if not ready:
                raise Unavailable(f"not within {timeout_s:g} s; so far: {self._got[-500:]!r}")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise Unavailable(f"the job has ended; it said {self._got[-500:]!r}")
            self._got += data.decode(errors="replace")

    def run(self, command: str, timeout_s: float = 30) -> Answer:
        """Have it do a command, and return what that came to."""
        self.start(command)
        return self.answer(timeout_s)

    def end(self, timeout_s: float = 60) -> str:
        """Let it end by itself; returns the job's last state."""
        _, errors = self.process.communicate("exit 0\n", timeout=timeout_s)
        assert self.process.returncode == 0, errors
        return self._lab.cluster.wait_for_job(self.job_id, timeout_s=timeout_s)

    def cancel(self, timeout_s: float = 60) -> str:
        """Cancel it; returns the job's last state, once it is known."""
        self._lab.cluster.run(["scancel", str(self.job_id)])
        self.process.communicate(timeout=timeout_s)
        return self._lab.cluster.wait_for_job(self.job_id, timeout_s=timeout_s)

    def server(self, node: str = "n1") -> int:
        """Return the process, as the host counts, that serves the job's image."""
        agent = wait_until(lambda: self._lab.agent(node, self.job_id), "the job's agent")

        def find() -> list[int]:
            children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
            return [
                process.pid
                for process in self._lab.cluster.processes(node)
                if process.has_role("serve_image") and str(process.pid) in children
            ]

        (server,) = wait_until(find, "the image's server")
        return server

    def __enter__(self) -> JobShell:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End the job: well, if all went well."""
        if self.process.returncode is not None:
            return
        if error is None:
            state = self.end()
            assert state == "COMPLETED", state
        else:
            self.cancel()
