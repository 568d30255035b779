"""Record the files that a command's Pythons open, and the variables that they read.

Every Python that the command starts imports a `sitecustomize` that writes names into one file, and
then imports the one that it would have found. The key is made before the command runs, from what is
known by then. The record shows inputs that are not in the key.
"""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import ExitStack
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from bootseer.env.client.key import KeyPart
from bootseer.env.client.temporary import remove_temporary_folders, temporary_folder

MOST = 50
"""Most files, and most variables, that are reported."""
_MOST_BYTES = 16 << 20
_FOLDER = "BOOTSEER_ENV_RECORD"
_PREFIX = "bootseer-reads-"

_HOOK = r"""
def _record():
    import os, sys
    here = os.environ.get("BOOTSEER_ENV_RECORD")
    if not here:
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(os.path.join(here, "reads"), flags, 0o600)
    ours = os.fstat(fd)
    seen = set()
    listed = [None]
    inside = ("os", "collections.abc", "_collections_abc")
    kind = type(os.environ)
    get, walk = kind.__getitem__, kind.__iter__

    def note(line):
        if line not in seen and len(seen) < 50000:
            seen.add(line)
            try:
                # Programs close what they do not know, and then the number is another file's.
                if os.path.samestat(os.fstat(fd), ours):
                    os.write(fd, os.fsencode(line + "\0"))
            except Exception:
                pass

    def caller():
        frame = sys._getframe(2)
        while frame is not None and frame.f_globals.get("__name__") in inside:
            frame = frame.f_back
        return frame and (id(frame), frame.f_lasti)

    def __getitem__(self, name):
        # A caller that copies all of them needs none: it has listed them from the same place.
        if type(name) is str and len(name) < 256 and "v" + name not in seen:
            if listed[0] is None or caller() != listed[0]:
                note("v" + name)
        return get(self, name)

    def __iter__(self):
        listed[0] = caller()
        return walk(self)

    def keep(environ):
        path = environ.get("PYTHONPATH", "")
        if here not in path.split(os.pathsep):
            environ["PYTHONPATH"] = here + (os.pathsep + path if path else "")

    def hook(event, arguments):
        if event == "open":
            path, _, flags = arguments
            if type(path) is str and len(path) < 2048 and not (flags or 0) & 3:
                note("f" + (path if path.startswith("/") else os.path.join(os.getcwd(), path)))
        elif event == "subprocess.Popen" and type(arguments[3]) is dict:
            keep(arguments[3])  # pip has builds look for modules in folders of their own

    kind.__getitem__, kind.__iter__ = __getitem__, __iter__
    sys.addaudithook(hook)


def _go_on():
    import importlib.machinery, importlib.util, os, sys
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if found is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


try:
    _record()
except Exception:
    pass
_go_on()
"""

_NO_RESULT = re.compile(
    r"""
    HOME|USER|LOGNAME|SHELL|PATH|MANPATH|LD_LIBRARY_PATH|PWD|OLDPWD|SHLVL|HOSTNAME|LANG|LANGUAGE
    |LC_\w+|TZ|TERM|TERM_\w+|COLORTERM|COLUMNS|LINES|TMPDIR|TEMP|TMP|XDG_\w+|_|EDITOR|PAGER|VISUAL
    |DISPLAY|(?i:\w+_proxy)|NO_COLOR|FORCE_COLOR|CLICOLOR\w*|PY_COLORS|CI|\w*_CI|GITHUB_\w+
    |SSL_CERT_\w+|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NETRC|SSH_\w+|DBUS_\w+|MAX_JOBS|MAKEFLAGS
    |VIRTUAL_ENV|PYTHON\w+|PIP_\w+|_PIP_\w+|UV_\w+|CONDA_\w+|POETRY_\w+|PEP517_\w+
    |_PYPROJECT_HOOKS_\w+|\w*_CACHE_DIR|CARGO_HOME|RUSTUP_HOME|GIT_\w+|SLURM\w*|SPANK\w*|BOOTSEER\w*
    |CUDA_VISIBLE_DEVICES|OMP_\w+|MKL_\w+|OPENBLAS_NUM_THREADS
    """,
    re.ASCII | re.VERBOSE,
)
"""Variables that are in the key if they matter, or that do not affect the result."""
_SYSTEM = ("/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/")
_SETTINGS_WORDS = """
.netrc .pypirc .gitconfig .condarc .mambarc condarc pip.conf uv.toml config.toml pyvenv.cfg
pydistutils.cfg .pydistutils.cfg distutils.cfg
"""
"""Files whose settings, not their content, are in the key if they matter."""
_SETTINGS = frozenset(_SETTINGS_WORDS.split())


class RecordedInputs(NamedTuple):
    """Inputs that a command has read and that are not in its key; the first `MOST` of each kind.

    Attributes:
        variables: names of variables that were set.
        files: paths of files.
    """

    variables: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def without_record(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it is without an `InputRecorder` around."""
    plain = dict(environ)
    folder = plain.pop(_FOLDER, "")
    if folder:
        paths = plain.pop("PYTHONPATH", "").split(os.pathsep)
        path = os.pathsep.join(path for path in paths if path != folder)
        if path:
            plain["PYTHONPATH"] = path
    return plain


class InputRecorder:
    """Records the inputs of one command, which runs in the block of this context."""

    def __init__(self, environ: Mapping[str, str], targets: Sequence[str]) -> None:
        """Prepare for a command.

        Args:
            environ: environment of the command.
            targets: absolute paths.
        """
        self.environ = dict(environ)
        self._given = environ
        self._targets = targets
        self._folder = ""
        self._opened = ExitStack()
        self._began_s = 0.0

    def __enter__(self) -> InputRecorder:
        """Make Pythons record their inputs; if that is impossible, nothing is recorded."""
        import tempfile  # a result that is restored needs none

        try:
            above = os.path.join(os.path.realpath(tempfile.gettempdir()), "")
            remove_temporary_folders(above, _PREFIX)
            if any(above.startswith(os.path.join(os.path.realpath(t), "")) for t in self._targets):
                return self  # it would be captured
            self._folder = self._opened.enter_context(temporary_folder(above, _PREFIX))
            with open(os.path.join(self._folder, "sitecustomize.py"), "w") as file:
                file.write(_HOOK)
        except OSError:
            return self
        path = self._given.get("PYTHONPATH", "")
        self.environ["PYTHONPATH"] = self._folder + (os.pathsep + path if path else "")
        self.environ[_FOLDER] = self._folder
        self._began_s = time.time()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.close()

    def not_in(self, parts: Iterable[KeyPart], cwd: str) -> RecordedInputs:
        """Return the inputs that were read so far and are in no part of a key.

        Args:
            parts: of the key.
            cwd: where the command ran.
        """
        if not self._folder:
            return RecordedInputs()
        try:
            with open(os.path.join(self._folder, "reads"), "rb") as file:
                names = os.fsdecode(file.read(_MOST_BYTES)).split("\0")[:-1]
        except OSError:
            return RecordedInputs()
        told = [part.name.partition(" ") for part in parts]
        variables = {name for kind, _, name in told if kind in ("variable", "setting")}
        paths = [
            os.path.realpath(os.path.join(cwd, name))
            for kind, _, name in told
            if kind in ("file", "project", "distributions")
            for name in [name[len("in ") :] if kind == "distributions" else name]
        ]
        known = _Known([*paths, *map(os.path.realpath, self._targets)], self._began_s)
        return RecordedInputs(
            tuple(
                name
                for name in sorted({name[1:] for name in names if name[:1] == "v"})
                if self._given.get(name)
                and name not in variables
                and name.isprintable()
                and not _NO_RESULT.fullmatch(name)
            )[:MOST],
            tuple(filter(known.is_news, sorted({_real(n) for n in names if n[:1] == "f"})))[:MOST],
        )


def _real(name: str) -> str:
    return os.path.realpath(name[1:])


class _Known:
    """Tells which files a key has, or need not have."""

    def __init__(self, paths: Sequence[str], began_s: float) -> None:
        self._paths = frozenset(paths)
        self._began_s = began_s

    def is_news(self, path: str) -> bool:
        """Whether a file may affect the result and is not in the key; takes its real path.

        Files that the command has made do not affect it.
        """
        if not path.isprintable() or os.path.basename(path) in _SETTINGS:
            return False
        above = path
        while above not in ("/", ""):
            if above in self._paths or os.path.basename(above) in (".cache", "site-packages"):
                return False
            if os.path.isfile(os.path.join(above, "pyvenv.cfg")):
                return False
            above = os.path.dirname(above)
        if path.startswith(_SYSTEM) or re.search(r"/lib/python[0-9.]+t?/", path):
            return False
        try:
            status = os.stat(path)
        except OSError:
            return False
        return status.st_ctime < self._began_s and stat.S_ISREG(status.st_mode)
