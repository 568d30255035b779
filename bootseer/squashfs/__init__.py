"""Squashfs images: superblock, tables, reader, writer."""
