/*
 * bootseer-advice.so: the embedded interpreter, loaded by a child of srun (advice.c).
 * BOOTSEER_PYTHONHOME and BOOTSEER_PYTHONPATH are set by the build.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* Made by cffi from advice.cdef; the first call starts Python and runs advice_python.py. */
extern int bootseer_advise_python(int output, int count, const char *const *names,
                                  const char *const *values);

int bootseer_advise(int count, const char *const names[], const char *const values[]);

/* A user's conda environment sets PYTHONHOME, and a wrong one aborts the interpreter. */
static void forget_python(void)
{
    char name[256];
    char **entry = environ;

    while (*entry) {
        size_t length = strcspn(*entry, "=");

        if (!strncmp(*entry, "PYTHON", 6) && length < sizeof(name)) {
            memcpy(name, *entry, length);
            name[length] = '\0';
            unsetenv(name);
            entry = environ; /* unsetenv() has moved the rest */
        } else {
            entry++;
        }
    }
}

int bootseer_advise(int count, const char *const names[], const char *const values[])
{
    int output = dup(STDOUT_FILENO);

    /* The user sees only advice: no warnings of Python, no traceback. */
    if (output < 0 || dup2(STDIN_FILENO, STDOUT_FILENO) < 0 ||
        dup2(STDIN_FILENO, STDERR_FILENO) < 0)
        return 0;
    forget_python();
    if (setenv("PYTHONHOME", BOOTSEER_PYTHONHOME, 1) ||
        setenv("PYTHONPATH", BOOTSEER_PYTHONPATH, 1) || setenv("PYTHONNOUSERSITE", "1", 1) ||
        setenv("PYTHONDONTWRITEBYTECODE", "1", 1))
        return 0;
    return bootseer_advise_python(output, count, names, values);
}
