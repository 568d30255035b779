#!/bin/sh
# An image of the store with Charliecloud, which mounts it as the user on $MOUNT of the node.
#SBATCH --bootseer --bootseer-image=bootseer://train:v2
MOUNT=$(mktemp -d)
srun sh -c 'ch-run --set-env -m "$0" "${BOOTSEER_IMAGE:?}" -- python train.py' "$MOUNT"
