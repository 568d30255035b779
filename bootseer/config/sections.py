"""All settings: an attribute each, by section of the file."""

from __future__ import annotations

from bootseer.config.setting import Section, Setting


class StoreSettings(Section):
    """Where each user's store is."""

    url = Setting(
        "file://{home}/.bootseer",
        "where warm plans, hot sets and events live; {home}, {user} and {uid} are the job's user's",
        is_template=True,
    )
    shared_bucket = Setting(
        False,
        "store.url may be one place for all users in an object store: its policy says who writes",
    )
    deadline_s = Setting(10.0, "longest one operation on the store may take", 0.1, 600)


class HdfsSettings(Section):
    """How HDFS is reached."""

    conf_dir = Setting(
        "", "Hadoop's configuration; empty: HADOOP_CONF_DIR's if set, else /etc/hadoop/conf"
    )
    kerberos_cache = Setting(
        "",
        "the user's Kerberos tickets, FILE:/tmp/krb5cc_{uid} for one; empty: Kerberos' own default",
        is_template=True,
    )
    kerberos_principal = Setting(
        "{user}", "whose tickets to take from hdfs.kerberos_cache", is_template=True
    )


class AwsSettings(Section):
    """How S3 is reached."""

    profile = Setting(
        "", "profile of the user's ~/.aws/credentials and ~/.aws/config; empty: default"
    )


class NodeSettings(Section):
    """Folders and accounts of a node."""

    run_dir = Setting("/run/bootseer", "state of the jobs on this node")
    service_user = Setting(
        "bootseer", "account without rights of its own, as which jobs are looked after"
    )
    cache_user = Setting(
        "bootseer-cache", "account without rights of its own, whose the block cache is"
    )
    cache_dir = Setting("/var/cache/bootseer", "what outlives a job on this node")


class CacheSettings(Section):
    """The block cache of a node."""

    quota_gib = Setting(
        100.0, "what blocks of images may take up in node.cache_dir, of all jobs together", 0, 1e6
    )
    free_share = Setting(
        0.1, "share of the file system of node.cache_dir that they leave free", 0, 0.9
    )
    user_share = Setting(
        0.5, "share of cache.quota_gib that the entries of one user may take up", 0.01, 1
    )


class PrologSettings(Section):
    """How long a prolog holds its job."""

    wait_s = Setting(
        0.0, "how long the prolog waits for the hot set, without --bootseer-wait", 0, 3600
    )
    max_wait_s = Setting(60.0, "longest that --bootseer-wait may ask for", 0, 3600)


class EpilogSettings(Section):
    """How long an epilog holds its node."""

    deadline_s = Setting(15.0, "longest the epilog may take, publishing included", 5, 600)


class PrefetchSettings(Section):
    """What is read ahead of images and checkpoints."""

    mib_per_s = Setting(
        0.0,
        "how fast a node reads ahead for a job, image and checkpoint together; 0: freely",
        0,
        1e6,
    )


class CheckpointSettings(Section):
    """Checkpoints: their mounts, and how they are read and written."""

    mountpoints = Setting(
        [], "folders of the nodes where any job may have its checkpoint mounted, for itself"
    )
    unit_mib = Setting(
        4, "length of a stripe unit of files that jobs write", 1, 64, is_power_of_two=True
    )
    width = Setting(16, "parts that a file is written to at once", 1, 128)
    streams = Setting(24, "reads of the store at once, of all files of a mount", 1, 256)
    read_memory_mib = Setting(256, "what a mount may hold of files that are being read", 64, 65536)
    write_memory_mib = Setting(
        192, "what a mount may hold of files that are being written", 64, 65536
    )
    spill_dir = Setting(
        "/var/tmp", "folder of the node for what jobs write out of order; theirs to write in"
    )
    spill_gib = Setting(8.0, "how much of one file may be written out of order", 0, 1e6)
    memory_share = Setting(
        0.5, "share of the free memory that checkpoints are read ahead into", 0, 0.9
    )


class ImageSettings(Section):
    """Images: where they are, how they are served, and what of a start is recorded."""

    store_url = Setting(
        "",
        "where images are that bootseer:// names; empty: in each user's store.url",
        is_template=True,
    )
    store_group = Setting(
        "", "group whose members may write in image.store_url; empty: its owner alone"
    )
    shared_bucket = Setting(
        False, "image.store_url may be one place for all users in an object store"
    )
    io_deadline_s = Setting(
        45.0,
        "longest that a read of a served image waits for the store; then an error. Less than "
        "Slurm's UnkillableStepTimeout, for some who wait cannot be killed",
        1,
        3600,
    )
    fill_mib_per_s = Setting(
        50.0,
        "how fast the rest of a served image is brought to the nodes of a job, all together, while "
        "nobody reads it; 0: not at all",
        0,
        1e6,
    )
    importer = Setting(
        False,
        "Pyxis has bootseer-importer as its importer: the prolog begins to serve what it will ask",
    )
    keep_imports = Setting(True, "what bootseer-importer had to import is put where images are")
    pin = Setting(
        False, "a name that leads to another image than in the job's last run is not served"
    )
    pack_copies = Setting(
        0,
        "machines that keep a hot pack, where the store has such a thing; 0: from the job's nodes",
        0,
        512,
    )
    kernel_mount = Setting(
        [],
        "digests of images that the kernel may mount, as a tree for their jobs",
        items="digests of images",
    )
    ways = Setting(
        ["copy", "file"],
        "ways that may be chosen for an image beside reading from the store what is needed: all of "
        "it (copy), or from the file that it was added from (file)",
        items="ways: copy, file",
    )
    window_s = Setting(300.0, "start-up window: recording and pinning end with it", 1, 86400)
    sample_interval_s = Setting(0.25, "how often residency is sampled", 0.05, 10)
    memory_share = Setting(0.25, "share of the free memory that all hot sets may pin", 0, 0.9)
    streams = Setting(16, "parallel reads of the prefetch", 1, 256)
    traces_per_run = Setting(4, "nodes of one run whose traces are kept", 1, 64)
    runs_kept = Setting(5, "newest runs whose traces are merged", 1, 100)


class EnvSettings(Section):
    """Environments: where they are, and for how long."""

    scratch_dir = Setting(
        "/var/tmp", "folder of the node for the squashfs of an environment that is captured"
    )
    keep_days = Setting(
        30.0, "days since its last use after which an environment goes; 0: never", 0, 36500
    )
    quota_gib = Setting(
        100.0, "what a user's environments may take up in the store; 0: no limit", 0, 1e6
    )
    shared = Setting(
        [], "stores of environments that Unix groups share: GROUP=URL", items="GROUP=URL"
    )
    shared_bucket = Setting(False, "env.shared may have one place for all users in an object store")
