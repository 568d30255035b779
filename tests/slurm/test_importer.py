"""What Pyxis asks its importer for: served by the job's agent, or imported and kept for later."""

import hashlib
import json
import os
import re
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.jobs import site
from bootseer_dev.material.images import TinyImage

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.fuse]

NAME = "docker://nvcr.io#nvidia/pytorch:24.01"
OTHER = "train:v2"
IMPORTED = r"/var/tmp/bootseer-import-\d+-n\d-\d+\.0-[0-9a-f]{16}/image\.sqsh"
RUN_DIR = "/run/bootseer/jobs"

# A stand-in for the real one, which needs a registry: a squashfs of a folder it has.
ENROOT = """#!/bin/sh
echo "[INFO] Querying registry" >&2
echo rubbish
echo "$@" >> /shared/enroot.log
case "$5" in *missing*) echo "[ERROR] no such image" >&2; exit 1 ;; docker://*) ;; *) exit 2 ;; esac
[ "$1 $2 $4" = "import --output --" ] && mksquashfs /shared/tree "$3" -quiet -no-progress
"""


@pytest.fixture
def shared(lab):
    """What both nodes see: the script that is Pyxis, and a folder with an enroot in it."""
    folder = lab.cluster.shared
    (folder / "as_pyxis.py").write_bytes(Path(__file__).with_name("as_pyxis.py").read_bytes())
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/enroot").write_text(ENROOT)
    (folder / "bin/enroot").chmod(0o755)
    (folder / "tree").mkdir(exist_ok=True)
    (folder / "tree/file").write_bytes(os.urandom(200_000))
    (folder / "enroot.log").write_text("")
    (folder / "enroot.log").chmod(0o666)
    for name in ("go", "started-n1", "started-n2"):
        (folder / name).unlink(missing_ok=True)
    return folder


def add(lab, name, image=None, user="alice"):
    """Put an image into alice's store; returns its bytes."""
    data = (image or lab.images / "tiny.sqsh").read_bytes()
    source = lab.cluster.shared / "source.sqsh"
    source.write_bytes(data)
    lab.cluster.run([site.bootseer(), "image", "import", str(source), "--name", name], user=user)
    return data


def importer(lab, *arguments):
    """The shell's words that do what Pyxis does."""
    script = site.libexec(lab.cluster) / "bootseer-importer"
    return shlex.join([sys.executable, "/shared/as_pyxis.py", str(script), *arguments])


def get(lab, uri):
    """A script that says where an image is and what is in it, and releases it as often as Pyxis."""
    release = importer(lab, "release")
    return f"""
        PATH=/shared/bin:$PATH; export PATH
        path=$({importer(lab, "get", uri)}) || exit 1
        set -- $(sha256sum "$path")
        {release}; {release}
        if [ -e "$path" ]; then is=there; else is=gone; fi
        echo "$path $1 $is"
    """


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def enroot_calls(shared):
    return (shared / "enroot.log").read_text().splitlines()


def test_an_image_of_the_store_is_served_from_its_first_to_its_last_byte(lab, shared):
    data = add(lab, NAME)
    job = lab.srun("--bootseer=get", command=get(lab, NAME))
    where = f"{RUN_DIR}/{job.job_id}/image-1/image.sqsh {sha256(data)} there\n"
    assert job.stdout == where * 2
    assert enroot_calls(shared) == []
    assert lab.fallbacks(job) == set()
    stages = lab.stages(job)
    assert 0.9 * len(data) < stages["image.record"]["bytes"] <= len(data)
    # Known from the last run: it is served before it is asked for, and read ahead.
    again = lab.srun("--bootseer=get", command=get(lab, NAME))
    assert again.stdout == where.replace(f"/{job.job_id}/", f"/{again.job_id}/") * 2
    assert lab.report(again)["kind"] == "warm"
    assert lab.stages(again)["image.prefetch"]["bytes"] > 0


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        (f"docker://bootseer://{OTHER}", OTHER),
        (f"bootseer://{OTHER}", OTHER),
        ("docker://$oauthtoken@nvcr.io#nvidia/pytorch:24.01", NAME),
    ],
)
def test_however_pyxis_writes_it_an_image_has_one_name(lab, shared, uri, name):
    data = add(lab, name)
    job = lab.srun("-N1", "--bootseer=names", command=get(lab, uri))
    assert f"{sha256(data)} there\n" in job.stdout and enroot_calls(shared) == []


def test_a_job_has_several_images_and_each_once(lab, shared):
    first = add(lab, OTHER)
    lab.put_image(TinyImage(files=31))
    second = add(lab, NAME)
    for node in lab.cluster.node_names:  # other tests have left what has the same content
        lab.cluster.run(["rm", "-rf", "/var/cache/bootseer/images"], node=node)
    scripts = [get(lab, f"docker://bootseer://{OTHER}"), get(lab, NAME), get(lab, NAME)]
    options = ("-N1", "--bootseer=two", f"--bootseer-image=bootseer://{OTHER}")
    job = lab.srun(*options, command="".join(scripts))
    folder = f"{RUN_DIR}/{job.job_id}"
    assert job.stdout.splitlines() == [
        f"{folder}/image/image.sqsh {sha256(first)} there",
        *[f"{folder}/image-1/image.sqsh {sha256(second)} there"] * 2,
    ]
    assert lab.fallbacks(job) == set()
    stages = [s for s in lab.report(job)["nodes"][0]["stages"] if s["stage"] == "image.serve"]
    assert sorted(stage["bytes"] for stage in stages) == sorted([len(first), len(second)])


def test_more_than_a_job_may_have_are_refused(lab, shared):
    for number in range(9):
        add(lab, f"v{number}")
    gets = [importer(lab, "get", f"bootseer://v{number}") for number in range(9)]
    job = lab.srun("-N1", "--bootseer=many", command="\n".join([*gets, "true"]))
    assert len(job.stdout.splitlines()) == 8
    assert "this job uses 8 already" in job.stderr


def test_what_the_store_does_not_have_is_imported_by_one_node_for_all(lab, shared):
    job = lab.srun("--bootseer=new", command=get(lab, NAME))
    (where, own, left), (served, same, stays) = imported_first(job)
    assert re.fullmatch(IMPORTED, where) and "-n1-" in where and left == "gone"
    assert (
        re.fullmatch(rf"{RUN_DIR}/{job.job_id}/image-\d/image\.sqsh", served) and stays == "there"
    )
    assert own == same and len(enroot_calls(shared)) == 1
    first, other = lab.stages(job, "n1"), lab.stages(job, "n2")
    assert "there is no image" in first["image.import"]["detail"]
    assert "alice on n1 imports" in first["image.announce"]["detail"]
    assert first["image.keep"]["status"] == other["image.wait"]["status"] == "ok"
    assert "has imported docker://" in other["image.wait"]["detail"]
    assert other["image.get"]["start_s"] <= other["image.wait"]["start_s"]
    assert "image.import" not in other and "image.keep" not in other
    assert list((lab.store() / "image-imports").iterdir()) == []
    # The next job finds it.
    again = lab.srun("--bootseer=new", command=get(lab, NAME))
    assert len(enroot_calls(shared)) == 1
    assert {tuple(line.split()[1:]) for line in again.stdout.splitlines()} == {(own, "there")}
    assert lab.fallbacks(again) == set()


def imported_first(job):
    """Return the two lines of a job's nodes: an imported image's before a served one's."""
    lines = [line.split() for line in job.stdout.splitlines()]
    assert len(lines) == 2, (job.stdout, job.stderr)
    return sorted(lines, key=lambda line: line[0].startswith(RUN_DIR))


def on(node, script):
    """Run a script on one node only."""
    return f'if [ "$SLURMD_NODENAME" = {node} ]; then\n{script}\nfi\n'


def enroot_that(shared, does):
    """Have Enroot do something else on the first node."""
    instead = f'[ "$SLURMD_NODENAME" = n1 ] && {does}'
    (shared / "bin/enroot").write_text(ENROOT.replace("echo rubbish", instead))


def test_an_import_that_fails_on_the_first_node_is_done_by_the_others(lab, shared):
    enroot_that(shared, "sleep 4 && exit 1")
    job = lab.srun(
        "--bootseer=fails", "--no-kill", "--kill-on-bad-exit=0", command=get(lab, NAME), check=False
    )
    (line,) = job.stdout.splitlines()
    assert re.fullmatch(rf"{IMPORTED} \w+ gone", line) and "-n2-" in line
    waited = lab.stages(job, "n2")["image.wait"]
    assert waited["status"] == "fallback"
    assert "alice on n1 has not added it to the store" in waited["detail"]
    assert 1 < waited["end_s"] - waited["start_s"] < 30
    assert list((lab.store() / "image-imports").iterdir()) == []


def test_a_first_node_that_is_not_among_the_importers_costs_a_few_seconds(lab, shared):
    """As one whose agent is of an older version, or has died."""
    job = lab.srun("--bootseer=alone", command=on("n2", get(lab, NAME)))
    assert re.fullmatch(rf"{IMPORTED} \w+ gone\n", job.stdout)
    waited = lab.stages(job, "n2")["image.wait"]
    assert "no other node has announced" in waited["detail"]
    assert 5 < waited["end_s"] - waited["start_s"] < 30
    assert len(enroot_calls(shared)) == 1


@contextmanager
def image_setting(lab, line):
    """Add a line to the settings of images."""
    config = lab.cluster.etc_bootseer / "bootseer.toml"
    before = config.read_text()
    config.write_text(before.replace("[image]\n", f"[image]\n{line}\n"))
    yield
    config.write_text(before)


@pytest.fixture
def short_wait(lab):
    """A limit that a slow import exceeds."""
    with image_setting(lab, "import_wait_s = 5"):
        yield


def test_an_import_that_takes_too_long_is_done_by_the_others_too(lab, shared, short_wait):
    enroot_that(shared, "sleep 15")
    job = lab.srun("--bootseer=slow", command=get(lab, NAME))
    lines = job.stdout.splitlines()
    assert len(lines) == 2 and all(re.fullmatch(rf"{IMPORTED} \w+ gone", line) for line in lines)
    assert len(enroot_calls(shared)) == 2
    waited = lab.stages(job, "n2")["image.wait"]
    assert "waited the longest time allowed, 5 s" in waited["detail"]


def printed(shared, job):
    """Return what `get` has printed in the steps of a batch job; the file has their stderr too."""
    lines = (shared / f"{job}.out").read_text().splitlines()
    return [line.split() for line in lines if line.startswith("/")]


def test_steps_of_a_batch_script_have_images_of_their_own(lab, shared):
    """Each is imported by one node; the script has the variables of the first node's task."""
    other = NAME.replace("pytorch", "other")
    steps = [f"/usr/bin/srun --ntasks-per-node=1 /shared/{n}.sh\n" for n in ("one", "two", "three")]
    for name, uri in (("one", NAME), ("two", other), ("three", NAME)):
        (shared / f"{name}.sh").write_text(f"#!/bin/sh\n{get(lab, uri)}")
        (shared / f"{name}.sh").chmod(0o755)
    job = lab.sbatch("#!/bin/sh\n" + "".join(steps), "-N2", "--bootseer=steps")
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    lines = printed(shared, job)
    assert len(lines) == 6 and len({digest for _, digest, _ in lines}) == 2
    assert sorted(call.split()[-1] for call in enroot_calls(shared)) == sorted([NAME, other])
    assert [left for _, _, left in lines].count("there") == 4
    lab.assert_clean()


@pytest.fixture
def job_environ(lab):
    """A plugin that writes down the environment that Pyxis gives its importer."""
    source = Path(__file__).with_name("job_environ.c")
    plugin = lab.cluster.state_dir / "job_environ.so"
    lab.cluster.run(["gcc", "-shared", "-fPIC", "-o", str(plugin), str(source)])
    line = lab.cluster.etc_slurm / "plugstack.conf.d/job_environ.conf"
    line.write_text(f"optional {plugin}\n")
    yield lambda node: (lab.cluster.shared / f"environ-{node}").read_text().splitlines()
    line.unlink()


def test_pyxis_knows_the_nodes_of_the_step(lab, job_environ):
    job = lab.sbatch("#!/bin/sh\n/usr/bin/srun --ntasks-per-node=1 /bin/true\n", "-N2")
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    for node in range(2):
        variables = job_environ(node)
        assert "SLURM_STEP_NODELIST=n[1-2]" in variables and f"SLURM_JOB_ID={job}" in variables
    # Of the batch script: no good for finding out which node this is.
    assert "SLURM_NODEID=0" in job_environ(1) and "SLURMD_NODENAME=n1" in job_environ(1)


def test_steps_with_different_images_are_served_side_by_side(lab, shared):
    first = add(lab, OTHER)
    lab.put_image(TinyImage(files=31))
    second = add(lab, NAME)
    steps = []
    for name, uri in (("one", f"bootseer://{OTHER}"), ("two", NAME)):
        (shared / f"{name}.sh").write_text(f"#!/bin/sh\n{get(lab, uri)}")
        (shared / f"{name}.sh").chmod(0o755)
        steps.append(f"/usr/bin/srun --overlap --ntasks-per-node=1 /shared/{name}.sh &\n")
    job = lab.sbatch("#!/bin/sh\n" + "".join(steps) + "wait\n", "-N2", "--bootseer=both")
    assert lab.cluster.wait_for_job(job) == "COMPLETED"
    lines = printed(shared, job)
    found = sorted((digest, left) for _, digest, left in lines)
    assert found == sorted([(sha256(first), "there"), (sha256(second), "there")] * 2)
    assert enroot_calls(shared) == [] and lab.fallbacks(job) == set()


def test_a_job_without_an_agent_imports(lab, shared):
    add(lab, NAME)
    job = lab.srun("-N1", command=get(lab, NAME))
    assert re.fullmatch(rf"{IMPORTED} \w+ gone\n", job.stdout)
    assert "without --bootseer" in job.stderr
    runtime = "/tmp/pyxis-$SLURM_JOB_ID"
    own = f"mkdir -p {runtime}/$(id -u); export PYXIS_RUNTIME_PATH={runtime}"
    job = lab.srun("-N1", command=f"{own}\n{get(lab, NAME)}\nrmdir {runtime}/*")
    assert re.match(rf"/tmp/pyxis-{job.job_id}/\d+/bootseer-import-", job.stdout)
    refused = lab.srun("-N1", command=get(lab, f"docker://bootseer://{OTHER}"), check=False)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "without --bootseer" in refused.stderr


def test_what_nobody_has_is_an_error_that_says_so(lab, shared):
    command = f"PATH=/shared/bin:$PATH {importer(lab, 'get', 'docker://missing')}"
    before = list_imports(lab)
    job = lab.srun("-N1", "--bootseer=none", command=command, check=False)
    assert job.exit_code != 0 and job.stdout == ""
    assert "there is no image" in job.stderr and "[ERROR] no such image" in job.stderr
    assert list_imports(lab) == before
    command = importer(lab, "get", "docker://bootseer://nowhere")
    job = lab.srun("-N1", "--bootseer=none", command=command, check=False)
    assert job.exit_code != 0 and job.stdout == ""
    assert "there is no image 'nowhere'" in job.stderr


def list_imports(lab):
    find = "ls -d /tmp/bootseer-import-* /var/tmp/bootseer-import-* || true"
    found = lab.cluster.run(["sh", "-c", find], node="n1")
    return found.stdout.split()


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "-h",
        "--output=/etc/passwd",
        "/etc/passwd",
        "file:///etc/passwd",
        "docker://a\nb",
        "docker://a b",
        "docker://\x1b[31m",
        "docker://\udcff",
        "docker://" + "x" * 5000,
        "http://example.org/",
    ],
)
def test_what_is_no_image_is_refused_at_once(lab, shared, uri):
    node, script = lab.cluster.node_names[0], site.libexec(lab.cluster) / "bootseer-importer"
    answer = lab.cluster.run([str(script), "get", uri], node=node, user="alice", check=False)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert len(answer.stderr.splitlines()) == 1 and "\x1b" not in answer.stderr
    assert enroot_calls(shared) == []


def test_names_that_no_store_takes_are_left_to_enroot(lab, shared):
    for uri in ("docker://" + "x" * 500, "docker://../../../etc"):
        job = lab.srun("-N1", "--bootseer=odd", command=get(lab, uri))
        assert re.fullmatch(rf"{IMPORTED} \w+ gone\n", job.stdout)
    assert len(enroot_calls(shared)) == 2


def test_nobody_else_is_served(lab, shared):
    add(lab, OTHER)
    job_id, running = lab.start_in_background("--bootseer=mine")
    node, script = lab.cluster.node_names[0], site.libexec(lab.cluster) / "bootseer-importer"
    env = {"BOOTSEER_SOCKET": f"{RUN_DIR}/{job_id}/agent.sock", "SLURM_JOB_ID": str(job_id)}
    argv = [str(script), "get", f"bootseer://{OTHER}"]
    refused = lab.cluster.run(argv, node=node, user="mallory", env=env, check=False)
    assert refused.returncode != 0 and "Permission denied" in refused.stderr
    taken = lab.cluster.run(argv, node=node, user="alice", env=env)
    path = taken.stdout.strip()
    stolen = lab.cluster.run(["head", "-c1", path], node=node, user="mallory", check=False)
    assert stolen.returncode != 0 and stolen.stdout == ""
    lab.end(job_id, running)


def test_what_others_have_put_in_the_way_is_not_written_to(lab, shared):
    job = lab.newest_job() + 1
    alice = lab.cluster.run(["id", "-u", "alice"]).stdout.strip()
    trap = f"/var/tmp/bootseer-import-{alice}-n1-{job}.0"
    traps = [trap, f"{trap}-{'0' * 16}", f"{trap}-{'1' * 16}"]
    before = list_imports(lab)
    lab.cluster.run(["mkdir", "-m", "777", *traps[:2]], node="n1", user="mallory")
    lab.cluster.run(["ln", "-s", traps[0], traps[2]], node="n1", user="mallory")
    try:
        imported = lab.srun("-N1", "-w", "n1", command=get(lab, NAME))
        assert imported.job_id == job
        assert re.fullmatch(rf"{IMPORTED} \w+ gone\n", imported.stdout)
        assert sorted(list_imports(lab)) == sorted([*before, *traps])
    finally:
        lab.cluster.run(["rm", "-r", *traps], node="n1", user="mallory")


def test_all_images_are_served_on_when_the_agent_dies(lab, shared):
    data = add(lab, NAME)
    script = f"""
        path=$({importer(lab, "get", NAME)}) && head -c1 $path > /dev/null
        touch /shared/started-$SLURMD_NODENAME
        while [ ! -e /shared/go ]; do sleep 0.1; done
        sha256sum < $path
    """
    job_id, running = lab.start_in_background("--bootseer=dies", command=script)
    for node in lab.cluster.node_names:
        wait_until(lambda node=node: (shared / f"started-{node}").exists(), "the step")
        os.kill(lab.agent(node, job_id), 9)
    lab.cluster.run(["srun", "-N2", "--overcommit", "--bootseer=next", "true"], user="alice")
    (shared / "go").touch()
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, f"{sha256(data)}  -\n" * 2), err
    lab.assert_clean()


@pytest.fixture
def importer_set(lab, pyxis_option):
    """The setting that says which importer Pyxis has."""
    with image_setting(lab, "importer = true"):
        yield


def test_the_prolog_begins_to_serve_what_pyxis_is_going_to_ask_for(lab, shared, importer_set):
    data = add(lab, NAME)
    image = NAME.removeprefix("docker://")
    options = ("-N1", "--bootseer=early", f"--container-image={image}")
    job = lab.srun(*options, command=get(lab, NAME))
    assert f"/{job.job_id}/image/image.sqsh {sha256(data)} there" in job.stdout
    assert lab.stages(job)["image.get"]["detail"] == NAME
    unknown = lab.srun("-N1", "--bootseer=late", "--container-image=busybox", command="true")
    assert lab.fallbacks(unknown) == {"image.mount"}


def test_the_command_does_the_same(lab, shared):
    data = add(lab, OTHER)
    command = f"sha256sum $({site.bootseer()} importer get bootseer://{OTHER})"
    job = lab.srun(
        "-N1", "--bootseer=cli", command=f"{command}; {site.bootseer()} importer release"
    )
    assert job.stdout == f"{sha256(data)}  {RUN_DIR}/{job.job_id}/image-1/image.sqsh\n"


def test_status_shows_all_images(lab, shared):
    add(lab, OTHER)
    add(lab, NAME)
    job_id, running = lab.start_in_background(
        "--bootseer=status", f"--bootseer-image=bootseer://{OTHER}"
    )
    env = {"SLURM_JOB_ID": str(job_id)}
    argv = [str(site.libexec(lab.cluster) / "bootseer-importer"), "get", NAME]
    lab.cluster.run(argv, node="n1", user="alice", env=env)
    images = {image["path"] for job in lab.status("n1") for image in job["images"]}
    assert images == {f"bootseer://{OTHER}", NAME}, json.dumps(lab.status("n1"))
    lab.end(job_id, running)


def test_who_asks_at_the_same_time_gets_the_same_mount(lab, shared):
    add(lab, OTHER)
    ask = importer(lab, "get", f"bootseer://{OTHER}")
    job = lab.srun("-N1", "--bootseer=both", command=f"{ask} & {ask} & wait")
    assert job.stdout == f"{RUN_DIR}/{job.job_id}/image-1/image.sqsh\n" * 2


def test_what_was_missing_can_be_asked_for_again(lab, shared):
    ask = importer(lab, "get", f"bootseer://{OTHER}")
    source = shared / "later.sqsh"
    source.write_bytes((lab.images / "tiny.sqsh").read_bytes())
    put = f"{site.bootseer()} image import /shared/later.sqsh --name {OTHER} --quiet"
    job = lab.srun("-N1", "--bootseer=again", command=f"{ask} || {put} && {ask}")
    assert job.stdout == f"{RUN_DIR}/{job.job_id}/image-2/image.sqsh\n"
