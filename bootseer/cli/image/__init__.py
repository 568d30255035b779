"""bootseer image, hot and importer: images in a store and their hot sets."""
