"""The documents keep up with the code: settings, commands, versions, links."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from bootseer import config
from bootseer.checkpoint.files import parts, stripe_manifest
from bootseer.cli.main import COMMANDS
from bootseer.core import access_log, image_manifest, table, warm_plan
from bootseer.env.client import key
from bootseer.image.hot import hotset, pack, trace
from bootseer.startup import run_events

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONFIGURATION = "docs/reference/configuration.md"
EXAMPLE = ROOT / "slurm-conf-examples" / "bootseer.toml"


def text(name: str) -> str:
    return (ROOT / name).read_text()


def as_toml(value: object) -> str:
    return json.dumps(value)  # the same for text and numbers


def uncommented() -> str:
    """The example with its settings in force; prose stands after '# ', settings after '#'."""
    return re.sub(r"^#(?=\S)", "", EXAMPLE.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("name", config.SETTINGS)
def test_configuration_has_every_setting_with_its_default_and_limits(name):
    setting = config.SETTINGS[name]
    rows = [line for line in text(CONFIGURATION).splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1
    _, _, default, limits, *_ = (cell.strip() for cell in rows[0].split("|"))
    assert default == f"`{as_toml(setting.default)}`"
    numeric = isinstance(setting.default, int | float) and type(setting.default) is not bool
    assert limits == (f"{setting.minimum:g} to {setting.maximum:g}" if numeric else "")


def test_configuration_has_no_other_settings():
    named = re.findall(r"^\| `([a-z]+\.[a-z_]+)` \|", text(CONFIGURATION), re.MULTILINE)
    assert set(named) == set(config.SETTINGS)


def test_example_changes_nothing_as_it_stands():
    assert config.read_toml(EXAMPLE.read_text()) == {}


def test_example_has_every_setting_with_its_default(tmp_path):
    path = tmp_path / "bootseer.toml"
    path.write_text(uncommented())
    loaded = config.load(str(path))
    assert loaded.from_file == set(config.SETTINGS)
    assert loaded.values == {name: s.default for name, s in config.SETTINGS.items()}


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "dev"])
def test_every_command_is_mentioned(command):
    assert any(f"bootseer {command}" in path.read_text() for path in DOCS)


def test_commands_that_are_mentioned_exist():
    for path in DOCS:
        named = set(
            re.findall(
                r"(?:`|^ {4}|bin/)bootseer "
                r"(?!warm plan|checkpoint reads|environment key|events)([a-z]+)",
                path.read_text(),
                re.MULTILINE,
            )
        )
        assert named <= set(COMMANDS), path


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(path):
    without_code = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = unquote(target).partition("#")
        found = path.parent / file if file else path
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("trace", trace),
        ("hotset", hotset),
        ("warm-plan", warm_plan),
        ("event", run_events),
        ("stripe", stripe_manifest),
        ("reads", access_log),
        ("image", image_manifest),
        ("pack", pack),
        ("env-key", key),
    ],
)
def test_formats_state_the_version_of_the_code(page, module):
    assert f"Version {module.VERSION}," in text(f"docs/formats/{page}.md").replace("\n", " ")


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("trace", trace),
        ("hotset", hotset),
        ("stripe", stripe_manifest),
        ("image", image_manifest),
        ("pack", pack),
    ],
)
def test_formats_state_width_and_fields_of_a_row(page, module):
    page_text = text(f"docs/formats/{page}.md")
    assert f"Row width: {module._ROW.size}." in page_text
    assert f"At most {module.MAX_BYTES >> 20} MiB" in page_text
    offsets = re.findall(r"^\| (\d+) \| (\d+) \| (?:unsigned|bytes)", page_text, re.MULTILINE)
    at = 0
    for offset, size in offsets:
        assert int(offset) == at
        at += int(size)
    assert at == module._ROW.size


def test_table_page_has_the_layout_of_the_code():
    page_text = text("docs/formats/table.md")
    sizes = re.findall(r"^\| (\d+) \| (\d+) \|", page_text, re.MULTILINE)
    assert [int(offset) + int(size) for offset, size in sizes][-1] == table._FRAME.size
    assert f"{table.MAX_HEADER_BYTES:,}" in page_text


def test_stripe_page_has_the_fields_limits_and_names_of_the_code():
    page_text = text("docs/formats/stripe.md")
    layout = stripe_manifest.StripeManifest(0, stripe_manifest.MIN_UNIT_BYTES, "0" * 32, 0, ())
    data = layout.encode()
    header, _ = table.decode(
        stripe_manifest.MAGIC, stripe_manifest.VERSION, stripe_manifest._ROW, data, "page"
    )
    fields = re.findall(r"^\| `([a-z_]+)` \| (?:number|text)", page_text, re.MULTILINE)
    assert set(fields) == set(header) and len(fields) == len(header)
    for limit in (
        stripe_manifest.MIN_UNIT_BYTES,
        stripe_manifest.MAX_UNIT_BYTES,
        stripe_manifest.MAX_UNITS,
        stripe_manifest.MAX_PARTS,
        len(data) % 4096,
    ):
        assert f"{limit:,}" in page_text
    assert f"Magic: `{stripe_manifest.MAGIC.decode()}`" in page_text
    assert f"`{stripe_manifest.PARTS_FOLDER}/{parts.MAKING}PARTS_ID/`" in page_text
    assert f"`{stripe_manifest.part_name(0)}`, `{stripe_manifest.part_name(1)}`" in page_text


GIVEN = re.compile(r"BOOTSEER_[A-Z]+|SLURM_[A-Z_]+|HOME|PATH|J")
"""Variables that a job has, and the one that an example itself sets."""
USERS_PAGES = [ROOT / "docs/README.md", *sorted((ROOT / "docs/how-to").glob("*.md"))]
JOB_SCRIPTS = sorted((ROOT / "slurm-conf-examples" / "jobs").glob("*.sh"))


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *USERS_PAGES, *JOB_SCRIPTS],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_commands_use_no_variable_that_is_not_set(path):
    """A user's first command had $MOUNT, which was empty: ch-run ended with an error."""
    code = path.read_text()
    if path.suffix == ".md":
        code = "\n".join(re.findall(r"^ {4}.*$", code, re.MULTILINE))
    named = re.findall(r"\$\{?([A-Za-z_]+|[0-9])", code)
    assert [name for name in named if not GIVEN.fullmatch(name)] == []


@pytest.mark.parametrize("path", JOB_SCRIPTS, ids=lambda path: path.name)
def test_job_scripts_make_nothing_on_the_batch_host_alone(path):
    """A folder made there is missing on the job's other nodes: only srun's command may make one."""
    commands = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    assert all(line.startswith(("srun ", "python ")) for line in commands)


def test_the_packages_to_install_are_those_of_the_checkout():
    """Pages lacked python3-venv, without which their next command fails."""
    listed = set(text("debian-packages.txt").split())
    for page in ("README.md", "docs/admin/install.md"):
        named = set(
            re.findall(r"[a-z0-9-]+", re.search(r"gcc python3-dev [a-z0-9 -]+", text(page))[0])
        )
        assert named >= {"python3-venv", "libslurm-dev", "libfuse3-dev"}
        assert named <= listed


def test_every_decision_is_listed():
    index = text("docs/design/README.md")
    for path in (ROOT / "docs" / "design").glob("[0-9]*.md"):
        title = path.read_text().splitlines()[0].removeprefix(f"# {path.name[:3]}: ")
        assert f"| [{path.name[:3]}]({path.name}) | {title} |" in index
