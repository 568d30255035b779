"""Every decoder of bytes that a user can write: what to feed it, and what it may raise.

An input is a file before it is sealed: lengths and checksums that a format has are added in what is
run, or a fuzzer would never get past them. `make fuzz` and test_decoders.py share the table.
"""

from fuzz_documents import DOCUMENTS
from fuzz_images import IMAGES
from fuzz_messages import MESSAGES
from fuzz_tables import TABLES

ALL = (*TABLES, *DOCUMENTS, *IMAGES, *MESSAGES)
DECODERS = {decoder.name: decoder for decoder in ALL}
