"""The package index for measurements: pip installs from it, and stand-ins do for libraries."""

import functools
import os
import subprocess
import sys
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from bootseer_dev.material.wheels import requirements, stand_in_libraries, write_index, write_wheel
from packaging.requirements import Requirement


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *about):
        pass


@pytest.fixture
def serve():
    servers = []

    def serve(folder):
        handler = functools.partial(Quiet, directory=folder)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/simple"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def pip(*argv):
    command = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", *argv]
    direct = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run(command, capture_output=True, text=True, env=direct)


def test_pip_installs_what_a_stand_in_promises(tmp_path, serve):
    wheels, target = tmp_path / "wheels", tmp_path / "target"
    wheels.mkdir()
    need = Requirement("Some-Thing[fast,small]==1.2.3")
    write_wheel(wheels, need, {"some_thing/data.bin": b"\0" * 5000})
    write_wheel(wheels, Requirement("other<3,>=2.1"), {"other.py": b"found = True\n"})
    write_index(wheels)
    done = pip("install", f"--index-url={serve(wheels)}", "-t", str(target), str(need), "other>=2")
    assert (done.returncode, done.stderr) == (0, "")
    assert (target / "some_thing/data.bin").read_bytes() == b"\0" * 5000
    assert (target / "other.py").read_text() == "found = True\n"
    assert {path.name for path in target.glob("*.dist-info")} == {
        "some_thing-1.2.3.dist-info",
        "other-2.1.dist-info",
    }


def test_a_wheel_that_was_changed_is_refused(tmp_path, serve):
    wheel = write_wheel(tmp_path, Requirement("thing==1"), {"thing.py": b""})
    write_index(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("thing_too.py", "")
    done = pip("install", f"--index-url={serve(tmp_path)}", "-t", str(tmp_path / "t"), "thing")
    assert done.returncode != 0 and "HASHES" in done.stderr


def test_what_a_wheel_needs(tmp_path):
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "a-1.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: a\nVersion: 1\n"
            "Requires-Dist: b[x]>=2; python_version > '3'\n"
            "Requires-Dist: c; extra == 'more'\n\nRequires-Dist: d\n",
        )
    assert [need.name for need in requirements(wheel)] == ["b"]


def test_stand_ins_have_what_libraries_refer_to(tmp_path):
    """Versioned symbols, symbols without a version, and not those of the system."""
    build = functools.partial(subprocess.run, check=True, cwd=tmp_path)
    (tmp_path / "real.c").write_text("int cuOne(void) { return 1; }\n")
    (tmp_path / "real.map").write_text("CUV1 { global: cuOne; };\n")
    (tmp_path / "loose.c").write_text("int cuLoose(void) { return 2; }\n")
    (tmp_path / "user.c").write_text(
        "#include <math.h>\nint cuOne(void); int cuLoose(void);\n"
        "double use(double x) { return cos(x) + cuOne() + cuLoose(); }\n"
    )
    gcc = ["gcc", "-shared", "-fPIC", "-w"]
    versioned = [*gcc, "-Wl,-soname,libcureal.so.1", "-Wl,--version-script=real.map"]
    build([*versioned, "-o", "libcureal.so.1", "real.c"])
    build([*gcc, "-Wl,-soname,libcualoose.so.2", "-o", "libcualoose.so.2", "loose.c"])
    build([*gcc, "-o", "user.so", "user.c", "./libcureal.so.1", "./libcualoose.so.2", "-lm"])
    wheel = tmp_path / "user-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "user.so", "user/user.so")
    found = stand_in_libraries(wheel)
    assert set(found) == {"libcureal.so.1", "libcualoose.so.2"}
    folder = tmp_path / "stubs"
    folder.mkdir()
    for name, data in found.items():
        (folder / name).write_bytes(data)
    script = f"import ctypes, os; ctypes.CDLL('{tmp_path}/user.so', mode=os.RTLD_NOW)"
    environment = {"LD_LIBRARY_PATH": str(folder)}
    subprocess.run([sys.executable, "-I", "-c", script], env=environment, check=True)
    without = subprocess.run([sys.executable, "-I", "-c", script], env={}, capture_output=True)
    assert b"libcu" in without.stderr
