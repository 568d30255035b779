/* slurmstepd: start the agent for a step that brings its own request, and tell it when steps
 * run. */
#include "bootseer.h"

#include <slurm/slurm.h>

#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    BEGIN_MS = 3000, /* time for an agent to mount, see bootseer/slurm/prolog.py */
    TURN_MS = 10,
};

/* The name of a step in its events. */
struct step {
    uint32_t job_id;
    const char *stage;
};

/* Returns false for the extern step, which runs nothing of the user's. */
static bool get_step(spank_t spank, struct step *step)
{
    uint32_t id;

    if (spank_get_item(spank, S_JOB_ID, &step->job_id) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_STEPID, &id) != ESPANK_SUCCESS)
        return false;
    switch (id) {
    case SLURM_EXTERN_CONT:
        return false;
    case SLURM_BATCH_SCRIPT:
        step->stage = "batch";
        break;
    case SLURM_INTERACTIVE_STEP:
        step->stage = "interactive";
        break;
    default:
        step->stage = "step";
    }
    return true;
}

static bool socket_address(const struct settings *settings, uint32_t job_id,
                           struct sockaddr_un *address)
{
    int length = snprintf(address->sun_path, sizeof(address->sun_path), "%s/jobs/%u/agent.sock",
                          settings->run_dir, job_id);
    struct stat info;

    address->sun_family = AF_UNIX;
    return length > 0 && (size_t)length < sizeof(address->sun_path) &&
           !stat(address->sun_path, &info) && S_ISSOCK(info.st_mode);
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Sends one line, and returns the connection, or -1. This must not hold or fail a step, so it waits
 * for no answer, and limits both the connect to a busy agent and the send to 200 ms. */
static int send_first_line(const struct sockaddr_un *address, const char *line)
{
    const struct timeval limit = {.tv_usec = 200 * 1000};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) ||
        connect(fd, (const struct sockaddr *)address, sizeof(*address)) ||
        send(fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line))
        slurm_debug("bootseer: no event sent to %s: %m", address->sun_path);
    return fd;
}

static void send_line(const struct sockaddr_un *address, const char *line)
{
    int fd = send_first_line(address, line);

    if (fd >= 0)
        close(fd);
}

static void send_event(const struct sockaddr_un *address, const struct step *step, int64_t start_ns,
                       int64_t end_ns)
{
    char line[256];

    snprintf(line, sizeof(line),
             "{\"op\":\"event\",\"stage\":\"%s\",\"start_ns\":%lld,\"end_ns\":%lld}\n", step->stage,
             (long long)start_ns, (long long)end_ns);
    send_line(address, line);
}

bool step_speaks(spank_t spank)
{
    int task = 0;

    return spank_get_item(spank, S_TASK_ID, &task) != ESPANK_SUCCESS || task == 0;
}

void step_fallback(const struct bootseer *bootseer, spank_t spank, const char *stage,
                   const char *format, ...)
{
    char text[400], escaped[400], line[700];
    long long now = now_ns();
    struct sockaddr_un address;
    struct step step;
    va_list args;

    if (!get_step(spank, &step) || !step_speaks(spank))
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    text_escape(escaped, sizeof(escaped), text);
    slurm_error("bootseer: %s", escaped);
    for (char *p = escaped; *p; p++)
        if (*p == '"' || *p == '\\')
            *p = '\'';
    snprintf(line, sizeof(line),
             "{\"op\":\"event\",\"stage\":\"%s\",\"status\":\"fallback\","
             "\"start_ns\":%lld,\"end_ns\":%lld,\"detail\":\"%s\"}\n",
             stage, now, now, escaped);
    if (socket_address(&bootseer->settings, step.job_id, &address))
        send_line(&address, line);
}

/* Whether a file exists in the job's folder. */
static bool is_there(const char *folder, const char *name, struct stat *info)
{
    char path[PATH_MAX + 64];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return !lstat(path, info);
}

/* Whether the agent has mounted everything that this step and its job ask for, or has failed to. */
static bool has_begun(const struct bootseer *bootseer, const char *folder, uint32_t job_id)
{
    static const struct {
        enum option option;
        const char *mark;
    } marks[] = {
        {OPTION_CKPT, "checkpoint"}, {OPTION_IMAGE, "served"}, {OPTION_ENV, "state/named"}};
    const struct request *request = &bootseer->request;
    struct asked asked = {.known = false};
    struct stat info;

    asked_read(bootseer->settings.run_dir, job_id, &asked);
    for (size_t i = 0; i < sizeof(marks) / sizeof(*marks); i++) {
        enum option option = marks[i].option;

        if (request->given[option] &&
            (!asked.known || !strcmp(request->value[option], asked.value[option])) &&
            !is_there(folder, marks[i].mark, &info))
            return false;
    }
    return is_there(folder, "agent.sock", &info);
}

/* Waits for an agent that another step has just started at the same moment. */
static void await_agent(const struct bootseer *bootseer, const char *folder, uint32_t job_id)
{
    struct stat info;

    for (int waited_ms = 0; waited_ms < BEGIN_MS && !has_begun(bootseer, folder, job_id);
         waited_ms += TURN_MS) {
        if ((is_there(folder, "asked", &info) || is_there(folder, ".", &info)) &&
            time(NULL) - info.st_mtime > BEGIN_MS / 1000)
            return; /* the step that started it has waited as long */
        poll(NULL, 0, TURN_MS);
    }
}

static bool is_component(spank_t spank)
{
    char size[16];

    return spank_getenv(spank, "SLURM_HET_SIZE", size, sizeof(size)) == ESPANK_SUCCESS;
}

const char *step_wish(const struct bootseer *bootseer, spank_t spank, int option)
{
    if (!bootseer->request.given[option] || !request_is_active(&bootseer->request) ||
        is_component(spank))
        return NULL;
    return bootseer->request.value[option];
}

bool step_container(spank_t spank, char out[VALUE_MAX + 1])
{
    return !is_component(spank) &&
           spank_getenv(spank, VARIABLE_CONTAINER, out, VALUE_MAX + 1) == ESPANK_SUCCESS && *out;
}

void step_init(struct bootseer *bootseer)
{
    bootseer->began_ns = now_ns();
}

void step_post_opt(struct bootseer *bootseer, spank_t spank)
{
    char folder[PATH_MAX + 32], name[PATH_MAX];
    struct stat info;
    struct step step;

    if (!get_step(spank, &step))
        return;
    request_complete(&bootseer->request, spank);
    if (!request_is_active(&bootseer->request))
        return;
    snprintf(folder, sizeof(folder), "%s/jobs/%u", bootseer->settings.run_dir, step.job_id);
    if (lstat(folder, &info)) {
        if (spank_getenv(spank, "SLURM_JOB_NAME", name, sizeof(name)) == ESPANK_SUCCESS)
            name_to_key(bootseer->request.job_name, name);
        script_late_prolog(bootseer, spank, step.job_id);
    }
    if (!lstat(folder, &info))
        await_agent(bootseer, folder, step.job_id);
}

/* Tells the agent which image file the step is about to use. */
static void send_image(const struct bootseer *bootseer, spank_t spank,
                       const struct sockaddr_un *address)
{
    const char *image = step_wish(bootseer, spank, OPTION_IMAGE);
    char container[VALUE_MAX + 1], line[2 * VALUE_MAX + 64], *out;

    if (!image)
        image = step_container(spank, container) ? container : "";
    if (*image != '/' || option_problem(OPTION_IMAGE, image))
        return;
    out = stpcpy(line, "{\"op\":\"image\",\"path\":\"");
    for (const char *p = image; *p; *out++ = *p++)
        if (*p == '"' || *p == '\\')
            *out++ = '\\';
    strcpy(out, "\"}\n");
    send_line(address, line);
}

/* Runs with the user's identity, as the tasks will when they connect to the socket. */
void step_user_init(struct bootseer *bootseer, spank_t spank)
{
    struct sockaddr_un address;
    char told[PATH_MAX], container[VALUE_MAX + 1];
    struct step step;

    if (!get_step(spank, &step))
        return;
    bootseer->has_container = step_container(spank, container);
    bootseer->is_batch_script = !strcmp(step.stage, "batch");
    if (!socket_address(&bootseer->settings, step.job_id, &address)) {
        /* The variable names another job's agent. */
        bootseer->is_anothers =
            spank_getenv(spank, "BOOTSEER_SOCKET", told, sizeof(told)) != ESPANK_ENV_NOEXIST;
        if (bootseer->is_anothers)
            spank_unsetenv(spank, "BOOTSEER_SOCKET");
        return;
    }
    spank_setenv(spank, "BOOTSEER_SOCKET", address.sun_path, 1);
    send_image(bootseer, spank, &address);
    spank_unsetenv(spank, VARIABLE_CONTAINER);
    if (bootseer->has_container)
        spank_setenv(spank, "BOOTSEER_CONTAINER", container, 1);
    else
        spank_unsetenv(spank, "BOOTSEER_CONTAINER");
    bootseer->sends_events = true;
}

/* Reports what the step waits for until its program runs: mounts, its container if another plugin
 * makes one, Slurm's own scripts. Containers are made after all hooks of this plugin, so the agent
 * takes the end of this connection for the stage's, and execve(2) closes it. */
void step_task_init(struct bootseer *bootseer, spank_t spank)
{
    struct sockaddr_un address;
    struct step step;
    char line[256];
    int fd;

    if (!bootseer->sends_events || !step_speaks(spank) || !get_step(spank, &step) ||
        !socket_address(&bootseer->settings, step.job_id, &address))
        return;
    snprintf(line, sizeof(line),
             "{\"op\":\"begin\",\"stage\":\"%s.start\",\"start_ns\":%lld,\"end_ns\":%lld}\n",
             step.stage, (long long)bootseer->began_ns, (long long)now_ns());
    fd = send_first_line(&address, line);
    /* slurmstepd is going to replace 0 to 2. */
    bootseer->starting = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (fd >= 0)
        close(fd);
}

void step_exit(struct bootseer *bootseer, spank_t spank)
{
    struct sockaddr_un address;
    struct step step;

    if (bootseer->starting > 0)
        close(bootseer->starting);
    if (bootseer->sends_events && get_step(spank, &step) &&
        socket_address(&bootseer->settings, step.job_id, &address))
        send_event(&address, &step, bootseer->began_ns, now_ns());
}
