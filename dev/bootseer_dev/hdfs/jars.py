"""Hadoop's jars, fetched once by Maven and known by their checksums."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bootseer.errors import Corrupt, Denied, Unavailable

HADOOP_VERSION = "3.4.2"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


class Jar(NamedTuple):
    """One artifact and the SHA-256 of its file."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Its name in Maven's and in our folders."""
        return f"{self.artifact}-{self.version}.jar"


# The shaded client and minicluster hold NameNode, DataNode and FsShell; the others are what they
# leave to whoever runs them: logging, and for WebHDFS what Java 17 no longer has.
JARS = (
    Jar(
        "org.apache.hadoop",
        "hadoop-client-api",
        HADOOP_VERSION,
        "607c0299f4df33013bd0a0f37c8cf255c635bbaddd247b8fec68c210cc17d19f",
    ),
    Jar(
        "org.apache.hadoop",
        "hadoop-client-runtime",
        HADOOP_VERSION,
        "18d071c7f72f8a946677b398a57af9c7afa2dd41a81023c310f99373fec200b3",
    ),
    Jar(
        "org.apache.hadoop",
        "hadoop-client-minicluster",
        HADOOP_VERSION,
        "ae2406c544825b7734b8aad4f87eff60d9ec422284f0b16c2856032083b63c77",
    ),
    Jar(
        "org.slf4j",
        "slf4j-api",
        "1.7.36",
        "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    ),
    Jar(
        "org.slf4j",
        "slf4j-reload4j",
        "1.7.36",
        "ae6fdd5c9547896114d5ec7fa7503733b7d2890573d3886fb548b3119c4d3f67",
    ),
    Jar(
        "ch.qos.reload4j",
        "reload4j",
        "1.2.22",
        "222f90d3e69541218ef6e70547749d693bd4c1846817e5bd7949b3e28950f99f",
    ),
    Jar(
        "commons-logging",
        "commons-logging",
        "1.3.0",
        "66d3c980470b99b0c511dad3dfc0ae7b265ec1fb144e96bc0253a8a175fd34d9",
    ),
    Jar(
        "javax.xml.bind",
        "jaxb-api",
        "2.3.1",
        "88b955a0df57880a26a74708bc34f74dcaf8ebf4e78843a28b50eae945732b06",
    ),
    Jar(
        "javax.activation",
        "javax.activation-api",
        "1.2.0",
        "43fdef0b5b6ceb31b0424b208b930c74ab58fac2ceeb7b3f6fd3aeb8b5ca4393",
    ),
)


def hadoop_jars(build_dir: Path, say: Callable[[str], None] = lambda line: None) -> Path:
    """Return the folder with all jars, fetched if it is not there; some 90 MB.

    Args:
        build_dir: the folder is made in this one.
        say: takes a line for what takes time.

    Raises:
        Denied: they are not there, and the caller may not write there.
        Unavailable: Maven is not installed, or could not fetch them.
        Corrupt: what was fetched has another checksum than was expected.
    """
    folder = build_dir / f"hadoop-{HADOOP_VERSION}"
    if folder.exists():
        return folder
    try:
        build_dir.mkdir(parents=True, exist_ok=True)
        lock = (build_dir / ".hadoop.lock").open("w")
    except PermissionError as error:
        raise Denied(
            f"Hadoop's jars cannot be put into {build_dir}: {error.strerror}; choose another folder"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            say(f"Hadoop {HADOOP_VERSION}: fetching {len(JARS)} jars, 90 MB …")
            with tempfile.TemporaryDirectory(prefix=".hadoop-", dir=build_dir) as work:
                jars = Path(work, "jars")
                _fetch(Path(work), jars)
                _verify(jars)
                jars.chmod(0o755)
                jars.replace(folder)
    return folder


def _fetch(work: Path, jars: Path) -> None:
    if shutil.which("mvn") is None:
        raise Unavailable("mvn not found: install the package maven")
    (work / "pom.xml").write_text(_pom())
    command = ["mvn", "-B", "-q", f"{_PLUGIN}:copy-dependencies", f"-DoutputDirectory={jars}"]
    done = subprocess.run(
        command, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise Unavailable(f"Maven could not fetch Hadoop's jars:\n{last}")


def _verify(jars: Path) -> None:
    found = {path.name for path in jars.iterdir()}
    if found != {jar.file_name for jar in JARS}:
        raise Corrupt(f"Maven fetched {sorted(found)}, not the {len(JARS)} jars that are expected")
    for jar in JARS:
        digest = hashlib.sha256((jars / jar.file_name).read_bytes()).hexdigest()
        if digest != jar.sha256:
            raise Corrupt(f"{jar.file_name} has SHA-256 {digest}, not {jar.sha256}")


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions></dependency>"
        for jar in JARS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>bootseer</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )
