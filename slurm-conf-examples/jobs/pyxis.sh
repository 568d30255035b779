#!/bin/sh
# An image of the store with Pyxis, if the administrator has set importer= (plugstack.conf.d/pyxis.conf).
# Or --container-image=nvcr.io#nvidia/pytorch:24.01: imported the first time, then served.
#SBATCH --bootseer
#SBATCH --container-image=bootseer://train:v2
python train.py
