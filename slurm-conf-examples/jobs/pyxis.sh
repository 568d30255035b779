#!/bin/sh
# An image of the store with Pyxis, if the administrator has set importer= (plugstack.conf.d/pyxis.conf).
# Or --container-image=nvcr.io#nvidia/pytorch:24.01: imported the first time, then served. With Pyxis'
# use_squashfuse=1 a start reads part of the image; without, Pyxis unpacks, and reads, all of it.
#SBATCH --bootseer
srun --container-image=bootseer://train:v2 python train.py
