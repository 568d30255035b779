#!/usr/bin/python3 -I
"""Enroot as far as BootSeer sees it: namespaces, mounts and hooks in Enroot 4.1's order.

`enroot start IMAGE COMMAND…` with ENROOT_REMAP_ROOT; `enroot-mount`, which hooks call, and Enroot
itself without --root; `enroot-nsenter --user --mount --remap-root COMMAND…`. The folder
of this file has hooks.d and mounts.d, and run for containers' roots.
"""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWNS = 0x10000000, 0x20000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC = 1, 2, 4, 32, 4096, 16384
SLAVE, PRIVATE = 1 << 19, 1 << 18
FLAGS = {"ro": RDONLY, "nosuid": NOSUID, "nodev": NODEV, "bind": BIND, "rbind": BIND | REC}
PLAIN = ("rw", "nofail", "silent")
KINDS = {"slave": SLAVE, "rslave": SLAVE | REC, "private": PRIVATE}
HERE = Path(__file__).parent


def mount(source, target, kind=None, flags=0, data=None):
    words = (os.fsencode(x) if x is not None else None for x in (source, target, kind))
    if LIBC.mount(*words, ctypes.c_ulong(flags), data and data.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {source} at {target}")


def create(path, options):
    if "x-create=dir" in options:
        os.makedirs(path, exist_ok=True)
    if "x-create=file" in options:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "a").close()


def mount_entry(root, source, target, kind, options):
    target = root + target
    create(target, options)
    flags = 0
    for option in options:
        flags |= FLAGS.get(option, 0)
    if flags & BIND:
        kept = os.statvfs(source).f_flag & (
            RDONLY | NOSUID | NODEV | 8
        )  # the kernel has locked them
        mount(source, target, None, flags & (BIND | REC))
        mount(None, target, None, flags & ~REC | kept | REMOUNT)
    elif kind != "none":
        own = [o for o in options if o not in FLAGS | KINDS and not o.startswith("x-")]
        mount(source, target, kind, flags, ",".join(o for o in own if o not in PLAIN))
    for option in options:
        if option in KINDS:
            mount(None, target, None, KINDS[option])


def mount_lines(root, lines, which=0):
    for line in lines:
        fields = [os.fsdecode(os.fsencode(f).decode("unicode_escape")) for f in line.split()]
        if not fields or int((fields[4:] or ["0"])[-1]) != which:
            continue
        options = fields[3].split(",")
        try:
            mount_entry(root, *fields[:3], options)
        except OSError:
            if "nofail" not in options:
                raise


def mount_image(image, runtime):
    """Mount an image and a writable layer over it; returns the root."""
    for name in ("lower", "upper", "work", "root"):
        os.mkdir(f"{runtime}/{name}")
    lower = f"{runtime}/lower"
    serve = ["squashfuse", "-f", "-o", f"uid={os.geteuid()}", image, lower]
    subprocess.Popen(serve, stdin=-3, stdout=-3, stderr=-3)
    until = time.monotonic() + 10
    while not os.path.ismount(lower) and time.monotonic() < until:
        time.sleep(0.01)
    layers = f"lowerdir={lower},upperdir={runtime}/upper,workdir={runtime}/work"
    mount("overlay", f"{runtime}/root", "overlay", 0, layers)
    return f"{runtime}/root"


def configure(root, runtime):
    environ, fstab = f"{runtime}/environment", f"{runtime}/fstab"
    Path(environ).touch()
    lines = [x for f in sorted(HERE.glob("mounts.d/*.fstab")) for x in f.read_text().splitlines()]
    mount_lines(root, lines, -1)
    Path(f"{fstab}~").write_text("".join(f"{line}\n" for line in lines))
    Path(fstab).touch()
    given = {"ENROOT_PID": str(os.getpid()), "ENROOT_ROOTFS": root}
    given |= {"ENROOT_ENVIRON": environ, "ENROOT_MOUNTS": fstab}
    given["PATH"] = f"{HERE}:{os.environ.get('PATH', os.defpath)}"
    for hook in sorted(HERE.glob("hooks.d/*.sh")):
        subprocess.run([hook], env=os.environ | given, stdout=-3, check=True)
    mount_lines(root, Path(fstab).read_text().splitlines())
    mount_lines(root, Path(f"{fstab}~").read_text().splitlines())
    # As Pyxis' configuration has the user's --container-mounts.
    asked = os.environ.get("AS_PYXIS_MOUNTS", "").split()
    mount_lines(root, [f"{path} {path} none x-create=dir,rbind" for path in asked])
    return dict(x.split("=", 1) for x in Path(environ).read_text().splitlines())


def enter_namespaces():
    uid, gid = os.geteuid(), os.getegid()
    if LIBC.unshare(NEWUSER | NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    return uid


def start(image, *command):
    uid = enter_namespaces()
    runtime = f"{HERE}/run/{uid}"
    os.makedirs(runtime, exist_ok=True)
    mount("tmpfs", runtime, "tmpfs")
    root = mount_image(image, runtime)
    mount(root, root, None, BIND)
    environ = configure(root, runtime)
    if not os.environ.get("ENROOT_ROOTFS_WRITABLE"):
        mount(None, root, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)
    os.chdir(root)
    if LIBC.pivot_root(b".", b".") != 0 or LIBC.umount2(b".", 2) != 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir("/")
    os.execvpe(command[0], command, {"PATH": os.environ.get("PATH", os.defpath)} | environ)


if __name__ == "__main__":
    if os.path.basename(sys.argv[0]) == "enroot-mount":
        root = sys.argv[2] if sys.argv[1] == "--root" else ""
        mount_lines(root, sys.stdin.read().splitlines())
    elif os.path.basename(sys.argv[0]) == "enroot-nsenter":
        enter_namespaces()
        os.execvp(sys.argv[4], sys.argv[4:])
    else:
        start(*sys.argv[2:])
