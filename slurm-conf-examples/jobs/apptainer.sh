#!/bin/sh
# An image of the store with Apptainer. --userns has the squashfs mounted by the user's own process:
# root, as which an Apptainer with set-user-id would mount it, cannot see what is served to a user.
#SBATCH --bootseer --bootseer-image=bootseer://train:v2
srun sh -c 'apptainer exec --userns --nv "${BOOTSEER_IMAGE:?}" python train.py'
