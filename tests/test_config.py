"""The administrator's settings: what is accepted, and that all else is an error of ours."""

import json
from dataclasses import replace

import pytest

from bootseer import config
from bootseer.errors import ConfigError
from bootseer.store.from_settings import hdfs_options
from bootseer.store.hdfs.options import HdfsOptions


def load_url(tmp_path, url):
    path = tmp_path / "bootseer.toml"
    path.write_text(f"[store]\nurl = '{url}'\n")
    return config.load(str(path)).store.url


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


def test_whose_kerberos_tickets_to_take_is_a_matter_of_the_user(tmp_path):
    path = tmp_path / "bootseer.toml"
    path.write_text("[hdfs]\nkerberos_cache = 'FILE:/tmp/krb5cc_{uid}'\n")
    ada = config.User("ada", 1000, "/home/ada")
    loaded = config.load(str(path))
    tickets = HdfsOptions("", "FILE:/tmp/krb5cc_1000", "ada")
    assert replace(hdfs_options(loaded, ada), conf_dir="") == tickets
    assert replace(hdfs_options(config.Config({}), ada), conf_dir="") == HdfsOptions()


@pytest.mark.parametrize("name", ["kerberos_cache", "kerberos_principal"])
def test_what_stands_in_braces_is_checked_in_all_settings_that_have_them(tmp_path, name):
    path = tmp_path / "bootseer.toml"
    path.write_text(f"[hdfs]\n{name} = '{{user.__class__}}'\n")
    with pytest.raises(ConfigError, match=rf"hdfs\.{name}"):
        config.load(str(path))


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


@pytest.mark.parametrize("name", config.SETTINGS)
def test_every_setting_is_read_by_its_name_and_only_read(name):
    section_name, _, key = name.partition(".")
    section = getattr(config.Config({}), section_name)
    assert getattr(section, key) == config.SETTINGS[name].default
    with pytest.raises(AttributeError, match=name):
        setattr(section, key, config.SETTINGS[name].default)


def test_other_processes_are_sent_all_settings_and_check_them():
    sent = json.loads(json.dumps(config.Config({"image.window_s": 7, "image.pin": True}).values))
    received = config.Config(sent, "a task")
    assert received.values == sent and sent.keys() == config.SETTINGS.keys()
    assert (received.image.window_s, received.image.pin) == (7.0, True)
    with pytest.raises(ConfigError, match=r"a task: image\.window_s = 'long' is not a float"):
        config.Config(sent | {"image.window_s": "long"}, "a task")
