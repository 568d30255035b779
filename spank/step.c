/* slurmstepd: start the agent for a step that brings its own request, and tell it when steps run. */
#include "bootseer.h"

#include <slurm/slurm.h>

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* What a step is called in its events. */
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

/* Sends one event. Nothing here may hold or fail a step, so there is no answer to wait for, and the
 * 200 ms bound both the connect to a busy agent and the send. */
static void send_event(const struct sockaddr_un *address, const struct step *step,
                       const char *suffix, int64_t start_ns, int64_t end_ns)
{
    const struct timeval limit = {.tv_usec = 200 * 1000};
    char line[256];
    int length =
        snprintf(line, sizeof(line),
                 "{\"op\":\"event\",\"stage\":\"%s%s\",\"start_ns\":%lld,\"end_ns\":%lld}\n",
                 step->stage, suffix, (long long)start_ns, (long long)end_ns);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) ||
        connect(fd, (const struct sockaddr *)address, sizeof(*address)) ||
        send(fd, line, (size_t)length, MSG_NOSIGNAL) != length)
        slurm_debug("bootseer: no event sent to %s: %m", address->sun_path);
    close(fd);
}

void step_post_opt(struct bootseer *bootseer, spank_t spank)
{
    char text[PATH_MAX + 32];
    struct stat info;
    struct step step;

    if (!get_step(spank, &step))
        return;
    request_complete(&bootseer->request, spank);
    if (!request_is_active(&bootseer->request))
        return;
    snprintf(text, sizeof(text), "%s/jobs/%u", bootseer->settings.run_dir, step.job_id);
    if (!lstat(text, &info))
        return;
    if (spank_getenv(spank, "SLURM_JOB_NAME", text, sizeof(text)) == ESPANK_SUCCESS)
        name_to_key(bootseer->request.job_name, text);
    script_late_prolog(bootseer, spank, step.job_id);
}

/* Runs with the user's identity, which is the one that the tasks will meet the socket with. */
void step_user_init(struct bootseer *bootseer, spank_t spank)
{
    struct sockaddr_un address;
    struct step step;

    if (!get_step(spank, &step) || !socket_address(&bootseer->settings, step.job_id, &address))
        return;
    spank_setenv(spank, "BOOTSEER_SOCKET", address.sun_path, 1);
    bootseer->step_start_ns = now_ns();
    send_event(&address, &step, ".start", bootseer->step_start_ns, bootseer->step_start_ns);
}

void step_exit(const struct bootseer *bootseer, spank_t spank)
{
    struct sockaddr_un address;
    struct step step;

    if (bootseer->step_start_ns && get_step(spank, &step) &&
        socket_address(&bootseer->settings, step.job_id, &address))
        send_event(&address, &step, "", bootseer->step_start_ns, now_ns());
}
