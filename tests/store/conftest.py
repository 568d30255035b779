import http.client
import subprocess
import sys
from itertools import count
from urllib.parse import urlsplit

import pytest

from bootseer.testing.cluster.poll import wait_until

pytest.register_assert_rewrite("bootseer.testing.store_model", "bootseer.testing.store_suite")

_numbers = count()


class Server:
    """An S3 server of its own on loopback."""

    def __init__(self, folder):
        self.log = folder / "log"
        argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.address = urlsplit(wait_until(self._url, "the S3 server", timeout_s=30)).netloc

    def _url(self):
        words = self.log.read_text().split()
        return next((word for word in words if word.startswith("http://127.")), "")

    def url(self, path=""):
        """The URL of a new bucket, or of a path in it."""
        bucket = f"bucket-{next(_numbers)}"
        connection = http.client.HTTPConnection(self.address)
        connection.request("PUT", f"/{bucket}")
        assert connection.getresponse().status == 200
        connection.close()
        options = f"endpoint_override={self.address}&scheme=http&region=us-east-1"
        return f"s3://{bucket}{path}?{options}"


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("s3"))
    yield started
    started.process.kill()
    started.process.wait()
