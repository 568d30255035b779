"""What commands do when standard output cannot be written: what other Unix programs do."""

import signal
import subprocess
import sys

import pytest

BOOTSEER = [sys.executable, "-Ic", "from bootseer.cli.program import main; main()"]
COMMANDS = [["--help"], ["--version"], ["doctor"], ["doctor", "--json"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_reader_that_has_gone_ends_the_program_without_a_word(command):
    with subprocess.Popen(
        [*BOOTSEER, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        run.stdout.close()
        assert (run.stderr.read(), run.wait()) == (b"", -signal.SIGPIPE)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_disk_is_told_in_a_line(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*BOOTSEER, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    said = "bootseer: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_standard_output_that_is_closed_is_told_in_a_line():
    argv = ["sh", "-c", 'exec "$@" >&-', "sh", *BOOTSEER, "doctor"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    said = "bootseer: cannot write to standard output: Bad file descriptor\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_a_command_that_prints_nothing_needs_no_standard_output():
    argv = ["sh", "-c", 'exec "$@" >&-', "sh", *BOOTSEER, "importer", "release"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
