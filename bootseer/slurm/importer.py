"""Get a container's image for Pyxis: served by the job's agent, or else imported by Enroot.

If the store has no such image, the step's first node imports it and announces that. The others wait
until it is in the store, and have it served.

Pyxis runs ``bootseer-importer get URI`` as the job's user in the first task of a step on each node,
takes the first line of its output for the path of a squashfs, and runs ``release`` once or twice
when the container is not needed any more. Until then the path is good: a served image is there
until the job ends, and an imported one is a file of the step's.

Only the standard library is imported, and little of it until Enroot has to be asked.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from bootseer import config as settings
from bootseer.agent.messages.control import (
    AgentStatus,
    AnnounceImport,
    AwaitImport,
    Done,
    GetStatus,
    ImagePath,
    ImportAwaited,
    KeepImport,
    Kept,
    ServeImage,
    TellEvent,
)
from bootseer.agent.node import control_client
from bootseer.agent.node.job import JobFolder
from bootseer.core.nodelist import expand
from bootseer.core.reference import DOCKER, SCHEME, reference
from bootseer.errors import BootseerError, ConfigError, NotFound, Unavailable, UnknownImage
from bootseer.slurm.options import is_uri

SERVE_S = 60.0
"""Longest that an agent may take until an image can be read; then it is imported."""
_TELL_S = 5.0
"""Longest that what was imported waits to be opened by who keeps it."""
_LEFT_S = 3600.0
"""What is older may be left of a step that was killed."""
_FILE = "image.sqsh"
_PARENTS = ("/var/tmp", "/tmp")
_RANDOM_BYTES = 8
_MAGIC = b"hsqs"
_SCHEMES = (SCHEME, DOCKER, "dockerd://", "podman://")
_USAGE = "usage: bootseer-importer get URI | bootseer-importer release"


def main(arguments: Sequence[str]) -> int:
    """Run as Pyxis does; returns the exit code. All but the path is said on stderr."""
    try:
        if arguments[:1] == ["get"] and len(arguments) == 2:
            print(get(arguments[1], os.environ), flush=True)
        elif list(arguments) == ["release"]:
            release(os.environ)
        else:
            raise ConfigError(_USAGE)
    except BootseerError as error:
        _say(str(error))
        return error.exit_code
    except OSError as error:
        _say(str(error))
        return Unavailable.exit_code
    return 0


def get(uri: str, environ: Mapping[str, str]) -> str:
    """Return the path of a squashfs with the image, good until `release` or the end of the job.

    Args:
        uri: as Pyxis passes it, see `reference`.
        environ: of the step.

    Raises:
        BootseerError: neither the agent nor Enroot has it.
    """
    if not is_uri(uri) or not uri.isascii() or not uri.isprintable() or " " in uri:
        raise ConfigError(f"{uri[:80]!a} is no URI of an image, such as bootseer://train:v2")
    name = reference(uri)
    if not name.startswith(_SCHEMES):
        raise ConfigError(f"{uri[:80]!a}: an image is one of {', '.join(_SCHEMES)}")
    began_ns = time.time_ns()
    socket = ""
    with ExitStack() as announced:
        try:
            socket = _socket(environ)
            try:
                return _served(socket, name, began_ns)
            except UnknownImage:
                if not _has_come(socket, name, environ, announced):
                    raise
            return _served(socket, name, began_ns)
        except BootseerError as error:
            if name.startswith(SCHEME):
                raise
            why = str(error)
        _say(f"{name} is imported: {why}")
        path = _import(uri, environ)
        if socket:
            _tell(socket, name, path, began_ns, why)
    return path


def release(environ: Mapping[str, str]) -> None:
    """Remove what `get` has imported for this step, if anything.

    Only folders of this user's that are closed to all others are looked into, and no link is
    followed: anybody can make others of such names.

    Raises:
        OSError: one of this user's cannot be removed.
    """
    prefix = _prefix(environ)
    for parent in _parents(environ):
        above = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in os.listdir(above):
                if name.startswith(prefix):
                    _remove_own(name, above)
        finally:
            os.close(above)


def _socket(environ: Mapping[str, str]) -> str:
    """Return where the job's agent listens.

    Raises:
        NotFound: this is no job, or it has none.
    """
    told, job_id = environ.get("BOOTSEER_SOCKET", ""), environ.get("SLURM_JOB_ID", "")
    # A job that was submitted by another has inherited that one's variables. In a heterogeneous job
    # SLURM_JOB_ID is the first component's in all of them.
    is_its_own = told.endswith(f"/jobs/{job_id}/agent.sock") or "SLURM_HET_SIZE" in environ
    if not told or (job_id and not is_its_own):
        if not job_id.isdecimal():
            raise NotFound("this is not a job with --bootseer")
        told = JobFolder.of(settings.load().node.run_dir, int(job_id)).socket
    if not os.path.exists(told):
        raise NotFound("the job was started without --bootseer: add it to srun, sbatch or #SBATCH")
    return told


def _served(socket: str, name: str, began_ns: int) -> str:
    """Have the agent serve an image, and note how long the container has waited for it.

    Raises:
        UnknownImage: the store has no such image.
        BootseerError: it does not, or not so that this step can read it.
    """
    answer = control_client.ask(socket, ServeImage(name), ImagePath, SERVE_S)
    path = answer.path
    try:
        with open(path, "rb") as file:
            found = file.read(len(_MAGIC))
    except OSError as error:
        # As in a container of the job's whose mounts are its own.
        raise Unavailable(f"it is served at {path} but cannot be read: {error}") from error
    if found != _MAGIC:
        raise Unavailable(f"the image served at {path} is not a squashfs")
    with suppress(BootseerError):
        control_client.tell(socket, TellEvent("image.get", began_ns, time.time_ns(), detail=name))
    return path


def _has_come(socket: str, name: str, environ: Mapping[str, str], announced: ExitStack) -> bool:
    """Wait until another node of the step has imported an image; returns whether one has.

    The step's first node announces its import instead, until ``announced`` ends.

    Raises:
        BootseerError: another node was to import it, and has not; or the agent does not answer.
    """
    # Not SLURM_NODEID: srun passes on the batch script's, until a task has its own.
    nodes = expand(environ.get("SLURM_STEP_NODELIST", ""))
    if len(nodes) < 2 or not name.startswith(DOCKER):
        return False
    node = control_client.ask(socket, GetStatus(), AgentStatus, _TELL_S).job.get("node")
    if node == nodes[0]:
        announced.enter_context(control_client.begin(socket, AnnounceImport(name)))
    if node not in nodes[1:]:
        return False
    wait_s = settings.load().image.import_wait_s + SERVE_S
    awaited = control_client.ask(socket, AwaitImport(name), ImportAwaited, wait_s)
    if not awaited.stored:
        raise Unavailable(awaited.detail)
    return True


def _import(uri: str, environ: Mapping[str, str]) -> str:
    """Have Enroot import an image into a file of this step's.

    Raises:
        BootseerError: Enroot does not, or there is no folder for it.
    """
    import shutil
    import subprocess

    enroot = shutil.which("enroot", path=environ.get("PATH"))
    if enroot is None:
        raise Unavailable(f"{uri} cannot be imported: there is no enroot in PATH")
    with suppress(OSError):
        _remove_left(environ)
    path = f"{_make_folder(environ)}/{_FILE}"
    argv = [enroot, "import", "--output", path, "--", uri]
    try:
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=2, check=False).returncode
        if code != 0 or not os.path.isfile(path):
            raise Unavailable(f"enroot import {uri} failed with exit code {code}")
    except BaseException:
        release(environ)
        raise
    return path


def _make_folder(environ: Mapping[str, str]) -> str:
    """Make a folder for this step, under a name that nobody can guess and take before.

    Raises:
        Unavailable: there is no place for it.
    """
    why = "none of its parents is there"
    for parent in _parents(environ):
        folder = f"{parent}/{_prefix(environ)}{os.urandom(_RANDOM_BYTES).hex()}"
        try:
            os.mkdir(folder, 0o700)
        except OSError as error:  # one that exists is not this step's
            why = str(error)
            continue
        return folder
    raise Unavailable(f"there is no folder to import into: {why}; see that /var/tmp can be written")


def _remove_left(environ: Mapping[str, str]) -> None:
    """Remove what this user's jobs have left on this node: a step that is killed releases nothing.

    A process that has such a file open can still read it.

    Raises:
        OSError: it cannot be looked for, or not be removed.
    """
    living = _jobs_here()
    for parent in _parents(environ):
        above = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in os.listdir(above):
                job, found, _ = name.removeprefix(_node_prefix()).partition(".")
                if found and job.isdecimal() and job not in living:
                    _remove_own(name, above, _LEFT_S)
        finally:
            os.close(above)


def _jobs_here() -> set[str]:
    """Return the jobs of which this user has processes here."""
    found = set()
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
            for variable in file.read().split(b"\0"):
                if variable.startswith(b"SLURM_JOB_ID="):
                    found.add(os.fsdecode(variable.partition(b"=")[2]))
    return found


def _remove_own(name: str, above: int, older_than_s: float = 0.0) -> None:
    """Remove a folder that `get` has made; what others have put there under such a name stays.

    Args:
        name: of the folder.
        above: descriptor of the folder that it is in.
        older_than_s: what was changed since stays.

    Raises:
        OSError: it is this user's, and cannot be removed.
    """
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    except OSError:  # a link, a file, another user's, or gone
        return
    try:
        info = os.fstat(folder)
        if info.st_uid != os.getuid() or info.st_mode & 0o077:
            return
        if older_than_s and time.time() - info.st_mtime < older_than_s:
            return
        for entry in os.listdir(folder):
            _forgive_missing(os.unlink, entry, folder)
    finally:
        os.close(folder)
    _forgive_missing(os.rmdir, name, above)


def _forgive_missing(remove: Callable[..., None], name: str, folder: int) -> None:
    """Remove a name in a folder, unless another release of this step has."""
    try:
        remove(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _parents(environ: Mapping[str, str]) -> list[str]:
    """List the folders that a file of the step's can be in, best first.

    First where Pyxis itself would put it. Not TMPDIR: Slurm and its task prologs set that for tasks
    only, and Pyxis releases an image when those have ended.
    """
    runtime = environ.get("PYXIS_RUNTIME_PATH", "")
    paths = (f"{runtime}/{os.getuid()}" if runtime else "", *_PARENTS)
    return [
        path for path in paths if path.startswith("/") and path.isprintable() and _is_safe(path)
    ]


def _is_safe(parent: str) -> bool:
    """Whether this user can make folders there, and nobody but root can move them away."""
    try:
        info = os.stat(parent)
    except OSError:
        return False
    return (
        stat.S_ISDIR(info.st_mode)
        and info.st_uid in (0, os.getuid())
        and (not info.st_mode & 0o022 or bool(info.st_mode & stat.S_ISVTX))
        and os.access(parent, os.R_OK | os.W_OK | os.X_OK)
    )


def _prefix(environ: Mapping[str, str]) -> str:
    """Return what the names of this step's folders begin with: nodes may share their parent."""
    job, step = environ.get("SLURM_JOB_ID", "none"), environ.get("SLURM_STEP_ID", "batch")
    known = job.isalnum() and step.lstrip("-").isalnum()
    return f"{_node_prefix()}{f'{job}.{step}' if known else 'none'}-"


def _node_prefix() -> str:
    return f"bootseer-import-{os.getuid()}-{os.uname().nodename}-"


def _tell(socket: str, name: str, path: str, began_ns: int, why: str) -> None:
    """Have the agent note that an image was imported, and keep it for the next job."""
    event = TellEvent(
        stage="image.import",
        start_ns=began_ns,
        end_ns=time.time_ns(),
        status="fallback",
        bytes=os.stat(path).st_size,
        detail=f"{name}: {why}"[:500],
    )
    try:
        control_client.ask(socket, event, Done, _TELL_S)
        if name.startswith("docker://"):
            control_client.ask(socket, KeepImport(name, path), Kept, _TELL_S)
    except BootseerError as error:
        _say(f"{name}: {error}")


def _say(line: str) -> None:
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    try:
        os.write(2, f"bootseer-importer: {shown}\n".encode(errors="backslashreplace"))
    except OSError:
        return
