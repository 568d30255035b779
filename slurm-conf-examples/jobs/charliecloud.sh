#!/bin/sh
# An image of the store with Charliecloud, which mounts it as the user on each node.
#SBATCH --bootseer --bootseer-image=bootseer://train:v2
srun sh -c 'ch-run --set-env "${BOOTSEER_IMAGE:?}" -- python train.py'
