"""Add requirement files, and the files that they name, to a key."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping

from bootseer.env.client.inputs.digest import (
    ABSENT,
    MAX_TEXT_BYTES,
    KeyProblem,
    file_digest,
    printable,
    read_text,
    reading,
    text_digest,
    tree_digest,
    without_credentials,
)
from bootseer.env.client.inputs.installers import split_options

MAX_FILES = 1000

_SUFFIXES = ".whl .tar.gz .tgz .tar .zip .tar.bz2 .tbz .tar.xz .txz .tlz .tar.lz .tar.lzma .conda"
_ARCHIVES = tuple(_SUFFIXES.split())
_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*://")
_NAMED = re.compile(r"\s*[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@\s*(.+)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
"""As pip puts them in; in requirement files only."""

REQUIREMENTS = ("-r", "--requirement", "--requirements")
CONSTRAINTS = (
    *("-c", "--constraint", "--constraints", "--build-constraint", "--build-constraints"),
    *("-b", "--override", "--overrides", "--exclude", "--excludes"),
)
EDITABLES = ("-e", "--editable")
FIND_LINKS = ("-f", "--find-links")


class RequirementFiles:
    """Collects the files that a command's result depends on."""

    def __init__(
        self, cwd: str, environ: Mapping[str, str], left_out: Collection[str] = ()
    ) -> None:
        """Begin with none.

        Args:
            cwd: paths below it are relative to it, so that a copy elsewhere has the same key.
            environ: of the command, for variables in requirement files.
            left_out: absolute paths of folders in projects that are no part of them: targets.
        """
        self.parts: dict[str, str] = {}
        self.environ = environ
        self._cwd = cwd
        self._left_out = left_out
        self._seen: set[str] = set()

    def read_script(self, path: str) -> str | None:
        """Add a program that is a file, and return its text if it is a script."""
        if not os.path.isfile(path):
            return None
        data = None if os.path.getsize(path) > MAX_TEXT_BYTES else read_text(path)
        if data is None or b"\0" in data[:512]:
            self.archive(path)
            return None
        return self.text(path)

    def text(self, path: str) -> str | None:
        """Add a text file, and return its text; None if there is none."""
        data = read_text(path)
        self._put("file", path, ABSENT if data is None else str(text_digest(data)))
        return None if data is None else data.decode("utf-8-sig", "surrogateescape")

    def archive(self, path: str) -> None:
        """Add a file of any size."""
        self._put("file", path, str(file_digest(path) or ABSENT))

    def requirements(self, name: str, cwd: str, base: str = "") -> None:
        """Add a requirement or constraint file, and the files that it names.

        Args:
            name: its path, as it was given.
            cwd: folder that local paths in it are relative to.
            base: folder that its own path is relative to, if not `cwd`.
        """
        if _REMOTE.match(name) or name == "-":
            raise KeyProblem(
                f"requirement file {without_credentials(name)}: its content is known only when "
                "the command runs; save it to a file and name that file"
            )
        path = os.path.normpath(os.path.join(base or cwd, _path_of_url(name)))
        if os.path.realpath(path) in self._seen:
            return
        self._seen.add(os.path.realpath(path))
        text = self.text(path)
        file_name = os.path.basename(path)
        if text is None:
            return
        if file_name.endswith(".toml"):
            self.project_text(text, path)
        elif file_name.endswith((".py", ".cfg")):
            pass  # what a script or project states of itself: its content is all of it
        else:
            self.requirement_lines(text, cwd, os.path.dirname(path), path)

    def links(self, name: str, *bases: str) -> None:
        """Add a folder or page of distributions."""
        if _REMOTE.match(name):
            return
        for path in _candidates(_path_of_url(name), bases):
            if os.path.isdir(path):
                self._put("distributions in", path, self._distributions(path))
            else:
                self.archive(path)

    def editable(self, name: str, where: str) -> None:
        """Refuse a project that would be installed as a pointer to its folder."""
        raise KeyProblem(
            f"{where}: {without_credentials(name)!r} would be installed as editable, a pointer to "
            "a folder that can change while the key stays the same; install it without -e, or "
            "after the environment is there"
        )

    def local(self, spec: str, where: str, *bases: str) -> None:
        """Add an archive or a project that a requirement names by its path."""
        if re.search(r"(^|@\s*)\w+\+file:", spec):
            raise KeyProblem(
                f"{where}: {spec!r} is a repository on this machine, whose branches can change "
                "while the key stays the same; check it out and name the folder, or build a wheel"
            )
        name = local_path(spec, bases)
        for path in _candidates(name, bases) if name else ():
            if os.path.isdir(path):
                self._put("project", path, tree_digest(path, self._left_out))
            else:
                self.archive(path)

    def _put(self, kind: str, path: str, value: str) -> None:
        path = os.path.normpath(os.path.join(self._cwd, path))
        below = self._cwd.rstrip("/") + "/"
        shown = path[len(below) :] if path.startswith(below) else path
        self.parts[f"{kind} {printable('.' if path == self._cwd else shown)}"] = value
        if len(self.parts) > MAX_FILES:
            raise KeyProblem(
                f"{path}: more than {MAX_FILES:,} files decide what is installed; name a lock file "
                "or a folder of wheels instead"
            )

    def requirement_lines(self, text: str, cwd: str, folder: str, path: str) -> None:
        """Add the files that lines of requirements name.

        Args:
            text: the lines.
            cwd: folder that local paths are relative to.
            folder: of the file with the lines; other requirement files are relative to it.
            path: of that file, for messages.
        """
        for line in re.sub(r"\\\n", "", text).splitlines():
            line = without_credentials(re.sub(r"(^|\s)#.*", "", line).strip())
            line = _VARIABLE.sub(self._variable, line)
            if not line.startswith("-"):
                self.local(re.split(r"\s--?[a-z]", line)[0], path, cwd, folder)
                continue
            try:
                options, _ = split_options(shlex.split(line))
            except ValueError as error:
                raise KeyProblem(f"{path}: {line!r}: {error}; correct this line") from error
            for option, value in options:
                if option in REQUIREMENTS or option in CONSTRAINTS:
                    self.requirements(value, cwd, folder)
                elif option in EDITABLES:
                    self.editable(value, path)
                elif option in FIND_LINKS:
                    self.links(value, folder, cwd)

    def _variable(self, found: re.Match[str]) -> str:
        """Return a variable's value, and add its digest to the key: the value may be secret."""
        value = self.environ.get(found[1])
        if value is None:
            return found[0]
        self.parts[f"variable {found[1]}"] = str(text_digest(os.fsencode(value)))
        return value

    def project_text(self, text: str, path: str) -> None:
        """Add local sources of a pyproject.toml for uv, or of a pylock.toml."""
        is_lock = re.match(r"pylock\b", os.path.basename(path)) is not None
        folder = os.path.dirname(path)
        table = ""
        for line in text.splitlines():
            header = re.match(r"\s*\[+\s*([^]]+?)\s*\]", line)
            table = header[1] if header else table
            if not is_lock and not table.startswith("tool.uv.sources"):
                continue
            if re.search(r"\b(editable|workspace)\s*=\s*true", line):
                self.editable(line.strip(), path)
            for name in re.findall(r"\bpath\s*=\s*[\"']([^\"']+)", line):
                self.local(os.path.join(folder, name), path, folder)

    def _distributions(self, folder: str) -> str:
        """Digest the distributions in a folder where pip looks for them."""
        whole = hashlib.sha256()
        with reading(folder):
            names = sorted(name for name in os.listdir(folder) if name.endswith(_ARCHIVES))
        for name in names:
            found = file_digest(os.path.join(folder, name))
            for field in (os.fsencode(name), str(found or ABSENT).encode()):
                whole.update(len(field).to_bytes(8, "little"))
                whole.update(field)
        return f"sha256:{whole.hexdigest()}, {len(names):,} files"


def is_remote(name: str) -> bool:
    """Whether a name is a URL of another machine."""
    return _REMOTE.match(name) is not None


def local_path(spec: str, bases: Collection[str]) -> str:
    """Return the path that a requirement names, "" for none: `./a[x]`, `a @ file:///b`."""
    named = _NAMED.fullmatch(spec)
    spec = (named[1] if named else spec).split(";")[0].strip()
    if not spec or _REMOTE.match(spec):
        return ""
    is_url = spec.startswith("file:")
    path = _path_of_url(spec)
    shortened: list[Callable[[str], str]] = [
        lambda path: path,
        lambda path: re.sub(r"\[[^\]]*\]$", "", path),
        lambda path: path.split("#")[0],
    ]
    for shorten in shortened:
        if any(os.path.exists(os.path.join(base, shorten(path))) for base in bases):
            path = shorten(path)
            break
    is_path = "/" in path or path.startswith(".") or path.endswith(_ARCHIVES)
    return path if is_url or is_path else ""


def _path_of_url(name: str) -> str:
    if not name.startswith("file:"):
        return name
    from urllib.parse import unquote  # rarely needed

    path = unquote(name[len("file:") :].split("#")[0])
    return re.sub(r"^//(localhost)?", "", path)


def _candidates(name: str, bases: Collection[str]) -> list[str]:
    """Return the places where a relative path exists; the first place if it exists nowhere.

    Tools and their versions differ in the folder that a path in a file is relative to.
    """
    paths = [os.path.normpath(os.path.join(base, name)) for base in dict.fromkeys(bases)]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)] or paths[:1]
