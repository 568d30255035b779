"""Images as container tools write them: detect, read, merge their layers, convert to squashfs."""
