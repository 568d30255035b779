/* Make files, folders and links below open folders, without following links.
 *
 * Consecutive steps are mostly in one folder, which is opened once: through openat2(2) if the
 * kernel has it (Linux 5.6), else name by name. Its descriptor stays valid if somebody replaces the
 * folder by a link.
 */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#define TO_PASS (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* The state of a run of steps, with the folder of the last one. */
struct site {
    const bs_ground *ground;
    int fd; /* of that folder; -1 before the first */
    uint32_t folder;
    const char *path; /* in the texts */
    size_t length;
};

static int open_strictly(int folder, const char *path, int flags)
{
    struct open_how how = {
        .flags = (unsigned int)flags,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    long fd = syscall(SYS_openat2, folder, path, &how, sizeof how);

    return fd < 0 ? -errno : (int)fd;
}

/* The same name by name; modifies `path`. */
static int open_by_names(int folder, char *path, int flags)
{
    int at = folder;
    int rc;

    for (char *slash = strchr(path, '/'); slash != NULL; slash = strchr(path, '/')) {
        *slash = '\0';
        rc = strcmp(path, "..") == 0 ? -EXDEV : openat(at, path, TO_PASS);
        if (rc == -1)
            rc = -errno;
        if (at != folder)
            close(at);
        if (rc < 0)
            return rc;
        at = rc;
        path = slash + 1;
    }
    rc = strcmp(path, "..") == 0 ? -EXDEV : openat(at, path, flags | O_NOFOLLOW);
    if (rc == -1)
        rc = -errno;
    if (at != folder)
        close(at);
    return rc;
}

static int open_below(int folder, const char *path, size_t length, int flags, int by_names)
{
    char copy[PATH_MAX] = ".";

    if (length >= sizeof copy)
        return -ENAMETOOLONG;
    if (length > 0) {
        memcpy(copy, path, length);
        copy[length] = '\0';
    }
    if (by_names)
        return open_by_names(folder, copy, flags);
    return open_strictly(folder, copy, flags);
}

int bs_has_openat2(void)
{
    int fd = open_strictly(AT_FDCWD, ".", TO_PASS);

    if (fd < 0)
        return 0;
    close(fd);
    return 1;
}

int bs_open_folder(int folder, const char *path, int by_names)
{
    return open_below(folder, path, strlen(path), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                      by_names);
}

/* Open the parent folder of a path, and store its last name, which must not be "..". */
static int enter(struct site *self, uint32_t folder, const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);

    *name = slash == NULL ? path : slash + 1;
    if (strcmp(*name, "..") == 0)
        return -EXDEV;
    if (self->fd >= 0 && self->folder == folder && self->length == length &&
        memcmp(self->path, path, length) == 0)
        return 0;
    if (self->fd >= 0)
        close(self->fd);
    self->folder = folder;
    self->path = path;
    self->length = length;
    self->fd =
        open_below(self->ground->folders[folder], path, length, TO_PASS, self->ground->by_names);
    return self->fd < 0 ? self->fd : 0;
}

static int write_all(int fd, const uint8_t *data, size_t size, uint64_t offset)
{
    while (size > 0) {
        ssize_t wrote = pwrite(fd, data, size, (off_t)offset);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return -errno;
        data += wrote;
        size -= (size_t)wrote;
        offset += (uint64_t)wrote;
    }
    return 0;
}

static int finish(int fd, const bs_step *step)
{
    struct timespec times[2];

    times[1] = (struct timespec){.tv_sec = step->mtime_s, .tv_nsec = step->mtime_ns};
    times[0] = times[1];
    if (fchmod(fd, (mode_t)step->mode) != 0 || futimens(fd, times) != 0)
        return -errno;
    return 0;
}

/* Write a file, or a part of one that has been begun. */
static int make_file(struct site *self, const bs_step *step, const char *name,
                     const uint8_t *content)
{
    int flags = O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    int fd, rc;

    if (step->action != BS_PART)
        flags |= O_CREAT | O_EXCL;
    fd = openat(self->fd, name, flags, 0600);
    if (fd < 0)
        return -errno;
    rc = write_all(fd, content, (size_t)step->size_bytes, step->offset);
    if (rc == 0 && step->action == BS_FILE)
        rc = finish(fd, step);
    /* Some file systems report a lack of space only now. */
    if (close(fd) != 0 && rc == 0)
        rc = -errno;
    return rc;
}

static int make_link(struct site *self, const bs_step *step, const char *name, const char *target)
{
    struct timespec times[2];

    times[1] = (struct timespec){.tv_sec = step->mtime_s, .tv_nsec = step->mtime_ns};
    times[0] = times[1];
    if (symlinkat(target, self->fd, name) != 0 ||
        utimensat(self->fd, name, times, AT_SYMLINK_NOFOLLOW) != 0)
        return -errno;
    return 0;
}

/* Give a file another name; `first` is relative to the folder `origin`. */
static int make_name(struct site *self, const bs_step *step, const char *name, const char *first)
{
    struct site of_first = {.ground = self->ground, .fd = -1};
    const char *first_name;
    int rc = enter(&of_first, step->origin, first, &first_name);

    if (rc == 0 && linkat(of_first.fd, first_name, self->fd, name, 0) != 0)
        rc = -errno;
    if (of_first.fd >= 0)
        close(of_first.fd);
    return rc;
}

/* Set an attribute, which needs write permission; the mode is set later anyway. */
static int set_attribute(int fd, const char *name, const uint8_t *value, size_t size)
{
    if (fsetxattr(fd, name, value, size, 0) == 0)
        return 0;
    if (errno != EACCES || fchmod(fd, 0700) != 0 || fsetxattr(fd, name, value, size, 0) != 0)
        return -errno;
    return 0;
}

/* Set an attribute, or mode and time, of a file or folder. */
static int dress(struct site *self, const bs_step *step, const char *name, const char *attribute,
                 const uint8_t *content)
{
    int fd = openat(self->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    int rc = 0;

    if (fd < 0)
        return -errno;
    if (step->action == BS_FINISH)
        rc = finish(fd, step);
    else
        rc = set_attribute(fd, attribute, content, (size_t)step->size_bytes);
    close(fd);
    return rc;
}

static int take(struct site *self, const bs_step *step, const uint8_t *content)
{
    const char *other = self->ground->texts + step->other;
    const char *name;
    int rc = enter(self, step->folder, self->ground->texts + step->path, &name);

    if (rc < 0)
        return rc;
    switch (step->action) {
    case BS_FOLDER:
        return mkdirat(self->fd, name, 0700) != 0 ? -errno : 0;
    case BS_FILE:
    case BS_BEGIN:
    case BS_PART:
        return make_file(self, step, name, content);
    case BS_LINK:
        return make_link(self, step, name, other);
    case BS_NAME:
        return make_name(self, step, name, other);
    case BS_ATTRIBUTE:
    case BS_FINISH:
        return dress(self, step, name, other, content);
    default:
        return -EINVAL;
    }
}

static bool is_within(const bs_ground *ground, const bs_step *step, size_t content_bytes)
{
    return step->path < ground->texts_bytes && step->other < ground->texts_bytes &&
           step->folder < ground->count && step->origin < ground->count &&
           step->start <= content_bytes && step->size_bytes <= content_bytes - step->start;
}

int bs_make(const bs_ground *ground, const bs_step *steps, size_t count, const uint8_t *content,
            size_t content_bytes, size_t *done)
{
    struct site site = {.ground = ground, .fd = -1};
    int rc = 0;

    *done = 0;
    if (ground->texts_bytes == 0 || ground->texts[ground->texts_bytes - 1] != '\0')
        return -EINVAL;
    for (; *done < count && rc == 0; *done += rc == 0) {
        const bs_step *step = &steps[*done];

        rc = -EINVAL;
        if (is_within(ground, step, content_bytes))
            rc = take(&site, step, content == NULL ? NULL : content + step->start);
    }
    if (site.fd >= 0)
        close(site.fd);
    return rc;
}
