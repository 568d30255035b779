"""Which stores a worker may use: only for those is the network left to it."""

import pytest

from bootseer.agent.node.job import Job
from bootseer.agent.workers.base import store_urls
from bootseer.config import Config

STORES = {
    "store.url": "file:///home/{user}/.bootseer",
    "image.store_url": "s3://images",
    "env.shared": ["chem=hdfs://nn/chem", "bio=/shared/bio"],
}


def job(checkpoint):
    return Job(7, "c", "n1", 1, 1, "u", "/", "k", False, "", 1.0, 1, checkpoint=checkpoint)


@pytest.mark.parametrize("role", ["warm_up", "publish", "run_environment", "serve_image"])
def test_a_worker_may_use_all_that_are_configured(role):
    urls = list(store_urls(role, job("gs://checkpoints"), Config(STORES)))
    assert urls == ["file:///home/{user}/.bootseer", "s3://images", "hdfs://nn/chem", "/shared/bio"]


def test_the_server_of_a_checkpoint_uses_its_store_alone():
    assert list(store_urls("serve_checkpoint", job("gs://checkpoints"), Config(STORES))) == [
        "gs://checkpoints"
    ]


def test_images_may_be_in_the_users_own_store():
    urls = list(store_urls("upload_import", job(""), Config(STORES | {"image.store_url": ""})))
    assert set(urls) == {"file:///home/{user}/.bootseer", "hdfs://nn/chem", "/shared/bio"}
