"""The SPANK plugin: compiled against a site's Slurm, and put where Slurm finds it.

Two libraries come out. ``bootseer.so`` is the plugin: plain C, loaded by srun, slurmd and
slurmstepd. ``bootseer-advice.so`` embeds Python and is loaded at submit only, by a child of srun,
and only when a job asks for BootSeer: linking libpython into the plugin itself would cost every
srun and every step its loading, and would make the nodes depend on it.
"""
