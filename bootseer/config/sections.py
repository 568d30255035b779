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
        "store.url may be one bucket path for all users; the bucket's policy says who can write",
    )
    deadline_s = Setting(
        10.0,
        "longest one operation on the store may take, besides the bytes that are read",
        0.1,
        600,
    )


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
    service_user = Setting("bootseer", "unprivileged account that runs the supervisor of each job")
    cache_user = Setting("bootseer-cache", "unprivileged account that owns the block cache")
    cache_dir = Setting("/var/cache/bootseer", "folder for data that outlives a job")
    debug_log = Setting(False, "log the messages between a job's agent and its workers, too")


class CacheSettings(Section):
    """The block cache of a node."""

    quota_gib = Setting(
        100.0, "most that image blocks of all jobs may take up in node.cache_dir", 0, 1e6
    )
    free_share = Setting(
        0.1, "share of the file system of node.cache_dir that is kept free", 0, 0.9
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
        "how fast a node reads ahead for a job, image and checkpoint together; 0: no limit",
        0,
        1e6,
    )


class PeersSettings(Section):
    """Nodes of a job that give each other what they have read from the store."""

    min_nodes = Setting(4, "smallest job whose nodes do so; 0: none", 0, 100000)
    host_suffix = Setting(
        "",
        "put behind a node's name to reach the network that it uses, -ib0 for one; empty: the name",
    )
    first_port = Setting(47100, "first TCP port of the servers, one for each job", 1024, 65535)
    ports = Setting(400, "number of ports from peers.first_port on", 1, 64511)
    memory_mib = Setting(
        512, "memory of a node for what it has read for the other nodes of a job", 16, 65536
    )
    mib_per_s = Setting(0.0, "how fast a node sends to the nodes of a job; 0: no limit", 0, 1e6)


class CheckpointSettings(Section):
    """Checkpoints: their mounts, and how they are read and written."""

    mountpoints = Setting([], "folders where a job may mount its checkpoint, seen by that job only")
    unit_mib = Setting(
        4, "length of a stripe unit of files that jobs write", 1, 64, is_power_of_two=True
    )
    width = Setting(16, "parts of a file written in parallel", 1, 128)
    streams = Setting(24, "most parallel reads of the store, for all files of a mount", 1, 256)
    read_memory_mib = Setting(256, "memory of a mount for files that are being read", 64, 65536)
    write_memory_mib = Setting(192, "memory of a mount for files that are being written", 64, 65536)
    spill_dir = Setting(
        "/var/tmp",
        "folder for data that jobs write out of order; users must be able to write there",
    )
    spill_gib = Setting(8.0, "how much of one file may be written out of order", 0, 1e6)
    memory_share = Setting(
        0.5, "share of the free memory that checkpoints are read ahead into", 0, 0.9
    )


class ImageSettings(Section):
    """Images: where they are, how they are served, and what of a start is recorded."""

    store_url = Setting(
        "",
        "store of images named bootseer://…; empty: each user's store.url",
        is_template=True,
    )
    store_group = Setting(
        "", "group whose members may write in image.store_url; empty: only its owner may"
    )
    shared_bucket = Setting(False, "image.store_url may be one bucket path for all users")
    io_deadline_s = Setting(
        45.0,
        "longest that a read of a served image waits for the store before it fails; must be less "
        "than Slurm's UnkillableStepTimeout, because some readers cannot be killed",
        1,
        3600,
    )
    fill_mib_per_s = Setting(
        50.0,
        "how fast the nodes of a job together fetch the rest of a served image in the background; "
        "0: never",
        0,
        1e6,
    )
    importer = Setting(
        False,
        "Pyxis uses bootseer-importer: the prolog starts to serve the image that it will request",
    )
    keep_imports = Setting(
        True,
        "store the images that bootseer-importer had to import, also for other nodes",
    )
    import_wait_s = Setting(
        900.0,
        "longest that a node waits for the image that another node of its step imports; 0: not at "
        "all",
        0,
        86400,
    )
    pin = Setting(
        False, "refuse a name that leads to another image than in the last run of the job"
    )
    pack_copies = Setting(
        0,
        "copies of a hot pack in a store that replicates; 0: by the number of nodes of the job",
        0,
        512,
    )
    kernel_mount = Setting(
        [],
        "digests of images that the kernel may mount for jobs",
        items="digests of images",
    )
    ways = Setting(
        ["copy", "file"],
        "access modes that may be used besides fetching blocks from the store: copy the whole "
        "image (copy), read the file that it was added from (file)",
        items="ways: copy, file",
    )
    window_s = Setting(
        300.0, "length of the start-up window; recording and pinning end with it", 1, 86400
    )
    sample_interval_s = Setting(0.25, "how often residency is sampled", 0.05, 10)
    memory_share = Setting(0.25, "share of the free memory that all hot sets may pin", 0, 0.9)
    streams = Setting(16, "parallel reads of the prefetch", 1, 256)
    traces_per_run = Setting(4, "nodes of one run whose traces are kept", 1, 64)
    runs_kept = Setting(5, "newest runs whose traces are merged", 1, 100)


class EnvSettings(Section):
    """Environments: where they are, and for how long."""

    scratch_dir = Setting(
        "/var/tmp", "folder for the squashfs of an environment while it is captured"
    )
    keep_days = Setting(
        30.0, "days without use after which an environment is removed; 0: never", 0, 36500
    )
    quota_gib = Setting(
        100.0, "most that a user's environments may take up in the store; 0: no limit", 0, 1e6
    )
    shared = Setting(
        [], "stores of environments that Unix groups share: GROUP=URL", items="GROUP=URL"
    )
    shared_bucket = Setting(False, "env.shared may have one bucket path for all users")
