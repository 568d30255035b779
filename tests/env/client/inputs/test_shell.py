"""Command lines taken apart: shell text as a shell reads it, options as installers do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.env.client.inputs.installers import recognise, split_options
from bootseer.env.client.inputs.shell import MAX_DEPTH, SimpleCommand, simple_commands, split_text

TEXTS = [
    ("a b  c", [["a", "b", "c"]]),
    ("a\nb; c && d || e | f & g", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
    ("a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]),
    ("a'b'\"c\"d ''", [["abcd", ""]]),
    ("a # don't\nb", [["a"], ["b"]]),
    ("a#b", [["a#b"]]),
    ("a \\\n  b", [["a", "b"]]),
    ("(a; b)", [["a"], ["b"]]),
    ("a $(b c) d", [["a", "$"], ["b", "c"], ["d"]]),
    ("a `b`", [["a"], ["b"]]),
    ("a >out 2>&1 <in b", [["<", "in"], ["a", "b"]]),
    ("a < $X | b <<<in 3< 'i n' <&4 0<>c", [["<", "x"], ["a"], ["<", "i n"], ["<", "c"], ["b"]]),
    (
        "while read l; do a $l; done < in",
        [["while", "read", "l"], ["do", "a"], ["<", "in"], ["done"]],
    ),
    ("a > out b &> log", [["a", "b"]]),
    ("a 2 b", [["a", "2", "b"]]),
    ("a <<END b\nit's\nEND\nc", [["a"], ["c"]]),
    ("a <<-'END'\n\tit's\n\tEND\nc", [["a"], ["c"]]),
    ("a <<END\nwithout end", [["a"]]),
    ("a $X b", [["a", "x", "b"]]),
    ("a ${X}y '$X' \"$X z\" \\$X", [["a", "xy", "$X", "x z", "$X"]]),
    ("a $TWO b", [["a", "one", "two", "b"]]),
    ('a "$TWO" b', [["a", "one two", "b"]]),
    ("a $NONE b", [["a", "b"]]),
    ("a ${NONE:-c} ${X:-d}", [["a", "c", "x"]]),
    ('a "\\$X \\"q\\""', [["a", '$X "q"']]),
    ('echo "$1 $@"', [["echo", "$1 $@"]]),
    ("a 'without end", [["a", "'without", "end"]]),
]


@pytest.mark.parametrize(("text", "commands"), TEXTS)
def test_text_is_split_as_a_shell_does(text, commands):
    values = {"X": "x", "TWO": "one two"}
    assert list(split_text(text, lambda name: values.get(name, ""))) == commands


@given(st.text())
def test_any_text_is_split_into_words(text):
    assert all(words for words in split_text(text, lambda name: "a b"))


def run(*words, scripts=None, used=None, **environ):
    scripts = scripts or {}
    note = (lambda name, value: used.append(name)) if used is not None else lambda name, value: None
    return list(simple_commands(words, environ, "/w", scripts.get, note))


def sh(text, **kwargs):
    return [simple.words for simple in run("sh", "-c", text, **kwargs)]


def test_what_xargs_reads_comes_before_what_it_runs():
    assert run("xargs", "-a", "in", "--arg-file=more", "b", "c") == [
        SimpleCommand(("<", "in"), {}, "/w"),
        SimpleCommand(("<", "more"), {}, "/w"),
        SimpleCommand(("b", "c"), {}, "/w"),
    ]


def test_a_command_without_a_shell_is_itself():
    assert run("pip", "install", "$X", X="y") == [
        SimpleCommand(("pip", "install", "$X"), {"X": "y"}, "/w")
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("bash", "-lc", "a b"),
        ("bash", "-euo", "pipefail", "-c", "a b"),
        ("/bin/sh", "-c", "a b"),
        ("env", "-i", "-u", "X", "Y=z", "bash", "-c", "a b"),
        ("timeout", "-k", "5", "60", "nice", "-n", "5", "sh", "-c", "exec a b"),
        ("sh", "-c", "bash -c 'a b'"),
        ("bash", "-x", "in.sh"),
        ("./in.sh",),
        ("sh", "-c", ". ./in.sh"),
        ("sh", "-c", "source ./in.sh"),
        ("nohup", "sh", "-c", "a b"),
        ("xargs", "-n", "1", "-P4", "sh", "-c", "a b"),
    ],
)
def test_shells_and_what_runs_another_program_are_seen_through(words):
    scripts = {"/w/in.sh": "#!/bin/sh\na b", "/w/./in.sh": "#!/usr/bin/env bash\na b"}
    assert [simple.words for simple in run(*words, scripts=scripts)] == [("a", "b")]


def test_scripts_of_other_languages_are_programs():
    scripts = {"/w/./in.py": "#!/usr/bin/python3\na b"}
    assert [s.words for s in run("./in.py", "x", scripts=scripts)] == [("./in.py", "x")]


@pytest.mark.parametrize("program", ["a", "/e/bin/python3", "/e/bin/pip", "./none"])
def test_what_is_no_shells_script_is_a_program(program):
    """In installers and Pythons, wrapped in a shell, is nothing that decides."""
    script = "#!/bin/sh\nb"
    scripts = {"/w/a": script, "/e/bin/python3": script, "/e/bin/pip": script}
    assert [s.words for s in run(program, "x", scripts=scripts)] == [(program, "x")]


@pytest.mark.parametrize("words", [("env",), ("xargs",), ("sh",), ("sh", "-o")])
def test_what_runs_another_program_and_names_none_is_a_program(words):
    assert [simple.words for simple in run(*words)] == [words]


def test_shells_are_followed_to_a_depth():
    scripts = {f"/w/{n}.sh": f"sh {n + 1}.sh" for n in range(2 * MAX_DEPTH)}
    assert [s.words for s in run("sh", "0.sh", scripts=scripts)] == [("sh", f"{MAX_DEPTH}.sh")]


def test_scripts_that_source_each_other_are_followed_to_a_depth():
    scripts = {f"/w/./{n}.sh": f"a{n}; . ./{n + 1}.sh" for n in range(2 * MAX_DEPTH)}
    scripts |= {"/w/0.sh": f". ./b.sh; {scripts['/w/./0.sh']}", "/w/./b.sh": ""}
    found = [s.words for s in run("sh", "0.sh", scripts=scripts)]
    assert found == [(f"a{n}",) for n in range(MAX_DEPTH)]


def test_any_number_of_scripts_is_followed_one_after_another():
    scripts = {f"/w/{n}.sh": f"a{n}" for n in range(2 * MAX_DEPTH)}
    text = "".join(f". {n}.sh\n" for n in range(2 * MAX_DEPTH))
    assert [s.words for s in run("sh", "-c", text, scripts=scripts)] == [
        (f"a{n}",) for n in range(2 * MAX_DEPTH)
    ]


def test_a_script_that_runs_itself_comes_to_an_end():
    scripts = {"/w/in.sh": "sh in.sh; . /w/in.sh; cd x; sh /w/in.sh\n" * 10 + "a"}
    ran = [simple.words[0] for simple in run("sh", "in.sh", scripts=scripts)]
    assert "a" in ran and len(ran) < 1000
    assert len(sh('X=\'sh -c "$X"; sh -c "$X"\'; sh -c "$X"')) <= 2**MAX_DEPTH


def test_a_script_is_followed_in_every_folder_that_it_is_run_in():
    scripts = {"/in.sh": "#!/bin/sh\na"}
    assert [
        s.cwd for s in run("sh", "-c", "cd x; sh /in.sh; cd ../y; /in.sh", scripts=scripts)
    ] == [*("/w/x", "/w/y")]


def test_folders_and_variables_are_followed():
    text = "cd p/../q && X=1 a; export Y=2; Z=3; b $Y $Z"
    first, second = run("sh", "-c", text, X="0")
    assert first == SimpleCommand(("a",), {"X": "1"}, "/w/q")
    assert second == SimpleCommand(("b", "2", "3"), {"X": "0", "Y": "2", "Z": "3"}, "/w/q")


def test_a_folder_is_the_last_word_of_cd_and_without_one_it_stays():
    assert [(s.words, s.cwd) for s in run("sh", "-c", "cd -P x; a; cd; b; .; c")] == [
        (("a",), "/w/x"),
        (("cd",), "/w/x"),
        (("b",), "/w/x"),
        ((".",), "/w/x"),
        (("c",), "/w/x"),
    ]


def test_patterns_are_the_names_that_match_or_themselves(tmp_path):
    for name in ("b.whl", "a.whl"):
        (tmp_path / name).touch()
    assert sh(f"pip install {tmp_path}/*.whl 'x[y]'") == [
        ("pip", "install", f"{tmp_path}/a.whl", f"{tmp_path}/b.whl", "x[y]")
    ]


def test_an_activated_environment_is_followed():
    (simple,) = run("sh", "-c", ". /e/bin/activate && pip install a", PATH="/bin")
    assert simple.environ == {"PATH": "/e/bin:/bin", "VIRTUAL_ENV": "/e"}


def test_reserved_words_are_no_programs():
    assert sh("if ! a; then b; else c; fi; while d; do e; done") == [
        *(("a",), ("b",), ("c",), ("fi",), ("d",), ("e",), ("done",))
    ]


def test_variables_that_are_used_are_told_but_those_that_are_set_are_not():
    used = []
    sh('a=1; b $a $GIVEN "${QUOTED}" $NONE; GIVEN=2; c $GIVEN', used=used, GIVEN="1", QUOTED="q")
    assert used == ["GIVEN", "QUOTED"]


def test_variables_in_credentials_are_not_used():
    used = []
    text = "pip install -i https://$NAME:${WORD}@host/$PATH_THERE a"
    commands = sh(text, used=used, NAME="n", WORD="w", PATH_THERE="p")
    assert (commands, used) == ([("pip", "install", "-i", "https://host/p", "a")], ["PATH_THERE"])


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        ("-r a b", [("-r", "a")], ["b"]),
        ("-ra b", [("-r", "a")], ["b"]),
        ("-qUr a b", [("-q", ""), ("-U", ""), ("-r", "a")], ["b"]),
        ("--requirement a b", [("--requirement", "a")], ["b"]),
        ("--requirement=a b", [("--requirement", "a")], ["b"]),
        ("--req a b", [("--requirement", "a")], ["b"]),
        ("--constr=a --find l", [("--constraint", "a"), ("--find-links", "l")], []),
        ("--pre a --upgrade b", [("--pre", ""), ("--upgrade", "")], ["a", "b"]),
        ("-- -r a", [], ["-r", "a"]),
        ("- -r", [("-r", "")], ["-"]),
        ("a --requirement", [("--requirement", "")], ["a"]),
        ("--frobnicate a -r=b", [("--frobnicate", ""), ("-r", "b")], ["a"]),
    ],
)
def test_options_are_split_as_pip_does(words, options, rest):
    assert split_options(words.split()) == (options, rest)


def test_options_of_other_tools_are_theirs():
    assert split_options(["-n", "a"], "conda") == ([("-n", "a")], [])
    assert split_options(["-n", "a"], "uv") == ([("-n", "")], ["a"])
    assert split_options(["--req", "a"], "uv") == ([("--req", "")], ["a"])


@pytest.mark.parametrize(
    ("words", "tool", "verb", "arguments"),
    [
        ("pip install a", "pip", "install", ("a",)),
        ("/e/bin/pip3.11 -q install a", "pip", "install", ("a",)),
        ("python3.11 -m pip install a", "pip", "install", ("a",)),
        ("python -I -X dev -mpip install a", "pip", "install", ("a",)),
        ("python3 -m piptools sync", None, "", ()),
        ("python3 -m venv x", "venv", "", ("x",)),
        ("python3 pip install", None, "", ()),
        ("python3 -c pip -m pip", None, "", ()),
        ("python3 -cpass -m pip install a", None, "", ()),
        ("python3 -W error -m pip install a", "pip", "install", ("a",)),
        ("python3 -m", None, "", ()),
        ("uv --quiet pip install a", "uv", "pip install", ("a",)),
        ("python -m uv pip sync a", "uv", "pip sync", ("a",)),
        ("uv sync", "uv", "sync", ()),
        ("uv venv pip", "uv", "venv", ("pip",)),
        ("conda pip env", "conda", "pip", ("env",)),
        ("mamba env create", "conda", "env create", ()),
        ("micromamba create -n x a", "conda", "create", ("a",)),
        ("pip-sync a", "pip-sync", "", ("a",)),
        ("make install", None, "", ()),
    ],
)
def test_installers_are_recognised(words, tool, verb, arguments):
    call = recognise(words.split())
    found = (call.tool, call.verb, call.arguments) if call else (None, "", ())
    assert found == (tool, verb, arguments)
