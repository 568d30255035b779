"""The administrator's settings: what is accepted, and that all else is an error of ours."""

import pytest

from bootseer import config
from bootseer.errors import ConfigError


def load_url(tmp_path, url):
    path = tmp_path / "bootseer.toml"
    path.write_text(f"[store]\nurl = '{url}'\n")
    return config.load(str(path))["store.url"]


@pytest.mark.parametrize(
    ("url", "means"),
    [
        ("file://{home}/b", "file:///home/ada/b"),
        ("file:///s/{user}-{uid}/x", "file:///s/ada-1000/x"),
        ("file:///plain", "file:///plain"),
        ("file:///{{home}}", "file:///{home}"),
    ],
)
def test_the_users_home_name_and_number_may_stand_in_the_stores_url(tmp_path, url, means):
    assert load_url(tmp_path, url).format(home="/home/ada", user="ada", uid=1000) == means


@pytest.mark.parametrize(
    "field",
    [
        *("{home.x}", "{home[x]}", "{home[0]}", "{user.__class__}", "{uid.real}"),
        *("{home!r}", "{uid:x}", "{home:{user}}", "{home!}", "{home:999999999}"),
        *("{}", "{0}", "{ home}", "{HOME}", "{group}", "{", "}", "{home", "{home}}"),
    ],
)
def test_nothing_else_may_stand_there(tmp_path, field):
    with pytest.raises(ConfigError, match=r"only \{home\}, \{user\} and \{uid\}"):
        load_url(tmp_path, f"file:///a{field}/b")
