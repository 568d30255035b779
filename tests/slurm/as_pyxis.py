"""Run an importer as Pyxis does: nothing on stdin, no other descriptors, the step's environment."""

import os
import resource
import sys

os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
os.execve(sys.argv[1], sys.argv[1:], os.environ)
