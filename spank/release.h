/* What differs between Slurm's releases, 22.05 to 26.05, and what the SPANK interface lacks. */
#pragma once

/* In srun, sbatch and salloc, after their options: returns the name that the job will have, "" for
 * none, or NULL if this Slurm does not tell. The text lives as long as the process. */
const char *release_job_name(void);
