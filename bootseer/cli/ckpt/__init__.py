"""bootseer ckpt: checkpoints in a store."""
