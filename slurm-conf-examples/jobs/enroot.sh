#!/bin/sh
# An image of the store with Enroot alone; enroot/hooks.d/50-bootseer.sh adds checkpoint and socket.
#SBATCH --bootseer --bootseer-image=bootseer://train:v2
srun sh -c 'enroot start "${BOOTSEER_IMAGE:?}" python train.py'
