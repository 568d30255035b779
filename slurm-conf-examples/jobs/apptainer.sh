#!/bin/sh
# An image of the store with Apptainer. With --userns, the user's own process mounts the squashfs. A
# set-user-id Apptainer mounts as root, who cannot see a user's mounts.
#SBATCH --bootseer --bootseer-image=bootseer://train:v2
srun sh -c 'apptainer exec --userns --nv "${BOOTSEER_IMAGE:?}" python train.py'
