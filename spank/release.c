/* See docs/design/029-slurm-releases.md. */
#define _GNU_SOURCE
#include "release.h"

#include <slurm/spank.h>

#include <dlfcn.h>
#include <stddef.h>

/* SPANK has no item for the job's name at submission. Slurm's commands export their parsed options
 * to plugins, and libslurmfull the function that reads one by its name, which their cli_filter
 * plugins use; both have been the same since 22.05. By now the options are complete: command line,
 * environment, the script's #SBATCH lines, and the default of each command. */
const char *release_job_name(void)
{
    typedef char *option_get_f(void *options, const char *name);
    option_get_f *option_get = (option_get_f *)dlsym(RTLD_DEFAULT, "slurm_option_get");
    void *options = dlsym(RTLD_DEFAULT, "opt");
    const char *name;

    if (!option_get || !options)
        return NULL;
    name = option_get(options, "job-name");
    if (name)
        return name;
    /* sbatch names a job that comes from its standard input only later. */
    return spank_context() == S_CTX_ALLOCATOR ? "sbatch" : "";
}
