/* Shared declarations of the plugin. bootseer.c owns the one context; the others get it by
 * pointer. */
#pragma once

#include "options.h"

#include <slurm/spank.h>

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The arguments of the plugin's line in plugstack.conf. */
struct settings {
    char libexec[PATH_MAX]; /* holds bootseer-prolog, bootseer-epilog and bootseer-advice.so */
    char run_dir[PATH_MAX]; /* an agent's folder is RUN_DIR/jobs/JOBID */
    int advice_timeout_ms;  /* 0: no advice */
    int max_wait_ms;
    int epilog_timeout_ms;
};

/* The user's request: options first, then the environment. */
struct request {
    bool given[OPTION_COUNT];
    char value[OPTION_COUNT][VALUE_MAX + 1];
    char job_name[KEY_MAX + 1];    /* "" when it is not known */
    char container[VALUE_MAX + 1]; /* Pyxis' image; "" when none is named or it is not known */
};

struct bootseer {
    struct settings settings;
    struct request request;
    int64_t began_ns;     /* when slurmstepd loaded the plugin */
    bool sends_events;    /* this step has an agent */
    int starting;         /* in a task: the connection that ends when its program runs; or <= 0 */
    bool is_anothers;     /* this step has the variables of another job */
    int held[2];          /* a pair of sockets that holds the tasks' mount namespaces */
    bool has_container;   /* Pyxis starts this step's tasks in a container */
    bool is_batch_script; /* whose steps may have containers */
    char cwd[PATH_MAX];   /* of this task before the mounts; "" if nothing was mounted */
    ino_t namespace;      /* of this task's mounts; 0 if unknown */
    bool advised;         /* a heterogeneous job gets advice once, not once per component */
    pid_t adviser;        /* the child that prints advice */
};

struct option_names {
    const char *option;   /* --bootseer-image */
    const char *fallback; /* the user's variable that replaces the option */
    const char *control;  /* the variable that Slurm passes to the node as SPANK_... */
    const char *wished;   /* in tasks: the user's value of `fallback`, before BootSeer set it */
};

extern const struct option_names option_names[OPTION_COUNT];
#define CONTROL_JOB_NAME "BOOTSEER_JOB_NAME"
/* By which the nodes of a job know each other. */
#define CONTROL_SECRET "BOOTSEER_SECRET"
/* Pyxis' option as Slurm passes it to the node, there with SPANK_ before it. */
#define CONTROL_PYXIS "_SLURM_SPANK_OPTION_pyxis_container_image"
/* In a step: the image that its srun names for Pyxis, until the step begins. Of its environment,
 * --export=NONE leaves only what begins with SLURM_. */
#define VARIABLE_CONTAINER "SLURM_BOOTSEER_CONTAINER"
/* In tasks: where a container runtime finds the job's environments, and where they belong. */
#define VARIABLE_ENVIRONMENTS "BOOTSEER_ENV_MOUNTS"
/* In a job whose submission has been advised. */
#define VARIABLE_TOLD "BOOTSEER_TOLD"

/* request.c: reads and checks the user's request. */
enum origin { FROM_OPTION, FROM_ENVIRONMENT };

/* Stores one value. Returns false, and logs why in one line, when it is malformed. */
bool request_set(struct request *request, enum option option, enum origin origin, const char *value,
                 bool remote);

/* Completes a request from the environment: this process's when `spank` is NULL, otherwise the
 * step's. Returns false when a value is malformed; the other values are kept. */
bool request_complete(struct request *request, spank_t spank);

/* Returns whether BootSeer has set this value of a variable for tasks, so it is not a request. */
bool request_is_told(enum option option, const char *value);

/* Returns whether BootSeer has anything to do for this request. */
bool request_is_active(const struct request *request);

/* submit.c: srun, sbatch, salloc. */
int submit_post_opt(struct bootseer *bootseer, spank_t spank);

/* advice.c: prints Python's advice on the request while the caller continues; never fails. The end
 * waits no longer than the advice timeout and the time to kill a process. */
void advice_begin(struct bootseer *bootseer);
void advice_end(struct bootseer *bootseer);

/* script.c: a job's prolog and epilog. */
void script_prolog(const struct bootseer *bootseer, spank_t spank);
void script_epilog(const struct bootseer *bootseer, spank_t spank);
/* Starts the prolog's entry script for a request that came with a step. */
void script_late_prolog(const struct bootseer *bootseer, spank_t spank, uint32_t job_id);

/* step.c: slurmstepd. */
void step_init(struct bootseer *bootseer);
void step_post_opt(struct bootseer *bootseer, spank_t spank);
void step_user_init(struct bootseer *bootseer, spank_t spank);
void step_task_init(struct bootseer *bootseer, spank_t spank);
void step_exit(struct bootseer *bootseer, spank_t spank);
/* Returns this step's own request, or NULL. Slurm gives the steps of all components of a
 * heterogeneous job the same options, so there the component's request is unknown. */
const char *step_wish(const struct bootseer *bootseer, spank_t spank, int option);
/* Finds the image that the step's srun names for Pyxis. Returns false if there is none, or it is
 * unknown which component's it is. */
bool step_container(spank_t spank, char out[VALUE_MAX + 1]);
/* Whether this is the task that reports for all of a node. */
bool step_speaks(spank_t spank);
/* Reports a fallback on the step's stderr, and in the report under `stage`. */
__attribute__((format(printf, 4, 5))) void step_fallback(const struct bootseer *bootseer,
                                                         spank_t spank, const char *stage,
                                                         const char *format, ...);

/* The job's request, "" for nothing; `known` is false if it has no agent. */
struct asked {
    bool known;
    const char *value[OPTION_COUNT]; /* of those that a step may ask for as well */
    char text[4 * (VALUE_MAX + 1) + 1];
};

/* mounts.c: before and after the tasks of a step that has an agent. */
void mounts_init(struct bootseer *bootseer);
void mounts_end(struct bootseer *bootseer);
/* Each task, before it takes on the user's identity. */
void mounts_task(struct bootseer *bootseer, spank_t spank);
/* After the task has taken on the user's identity: changes to its working folder if that is on one
 * of the mounts, and no other plugin has moved the task into a container. */
void mounts_enter(const struct bootseer *bootseer);
void asked_read(const char *run_dir, uint32_t job_id, struct asked *asked);

/* exec.c: children with a deadline. */
#define ENVIRONMENT_MAX 32

/* A new environment; it owns its strings. */
struct environment {
    char *entries[ENVIRONMENT_MAX + 1];
    size_t count;
};

void environment_put(struct environment *environment, const char *name, const char *value);
void environment_free(struct environment *environment);

typedef void line_f(const char *line);

/* A monotonic clock. */
int64_t now_ms(void);

/* In a child: begins a session, with default signals, and ends with the parent. */
void child_signals(void);

/* Waits for a child that ends within a timeout, plus the time to kill its own children. */
void child_wait(pid_t pid, int timeout_ms);

/* Forks a child in a session of its own: /dev/null as its stdin, a pipe as its stdout and stderr,
 * no other descriptor, default signals. Returns as fork() does; the parent owns `*output`. */
pid_t child_fork(int *output);

/* Passes the child's output to `line`, one escaped line at a time, until it has exited, and closes
 * `output`. Kills its process group at the deadline. Returns its wait status, or -1 if the deadline
 * killed it. */
int child_follow(pid_t pid, int output, int timeout_ms, line_f *line);

/* Runs a program and logs its output and how it ended. */
void program_run(const char *path, const struct environment *environment, int timeout_ms);
