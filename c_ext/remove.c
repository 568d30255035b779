/* Remove a folder with its content, without following links.
 *
 * One folder is open at a time, at any depth. The way back up is "..", which must be the folder
 * that the way down came from. If it is another one, the folder has been moved.
 */
#include "io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A folder on the way down: its identity, and the name of the next one in it. */
struct level {
    dev_t device;
    ino_t inode;
    char name[NAME_MAX + 1];
};

struct way {
    struct level *levels;
    size_t depth;
    size_t capacity;
    DIR *here; /* the deepest; NULL: none yet */
};

/* Open a folder to remove its content, even if its mode does not allow that. */
static int open_folder(int folder, const char *name)
{
    char path[40];
    struct stat status;
    int fd = openat(folder, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int opened = -1;

    if (fd < 0 || fstat(fd, &status) != 0)
        goto out;
    if ((status.st_mode & S_IRWXU) != S_IRWXU) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        (void)chmod(path, (status.st_mode & 07777) | S_IRWXU);
    }
    opened = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
out:
    if (opened < 0)
        opened = -errno;
    if (fd >= 0)
        close(fd);
    return opened;
}

/* Make the folder of `fd` the present one; `fd` is closed with it. */
static int stand_in(struct way *self, int fd)
{
    if (self->here != NULL)
        closedir(self->here);
    self->here = fdopendir(fd);
    if (self->here != NULL)
        return 0;
    close(fd);
    return -ENOMEM;
}

static int go_down(struct way *self, const char *name)
{
    struct level *level;
    struct stat status;
    int fd;

    if (self->depth == self->capacity) {
        size_t capacity = self->capacity * 2 + 16;
        struct level *grown = realloc(self->levels, capacity * sizeof *grown);

        if (grown == NULL)
            return -ENOMEM;
        self->levels = grown;
        self->capacity = capacity;
    }
    if (fstat(dirfd(self->here), &status) != 0)
        return -errno;
    fd = open_folder(dirfd(self->here), name);
    if (fd < 0)
        return fd;
    level = &self->levels[self->depth++];
    level->device = status.st_dev;
    level->inode = status.st_ino;
    (void)snprintf(level->name, sizeof level->name, "%s", name);
    return stand_in(self, fd);
}

static int go_up(struct way *self)
{
    const struct level *level = &self->levels[--self->depth];
    int fd = openat(dirfd(self->here), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat status;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &status) != 0 || status.st_dev != level->device ||
        status.st_ino != level->inode) {
        close(fd);
        return -EBUSY;
    }
    if (unlinkat(fd, level->name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        int rc = -errno;

        close(fd);
        return rc;
    }
    return stand_in(self, fd);
}

/* Remove an entry of the present folder, or go down into it. */
static int remove_entry(struct way *self, const char *name, unsigned char type)
{
    int fd = dirfd(self->here);

    if (type != DT_DIR) {
        if (unlinkat(fd, name, 0) == 0 || errno == ENOENT)
            return 0;
        if (errno != EISDIR)
            return -errno;
    }
    if (unlinkat(fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    /* A mount's is EBUSY. */
    if (errno != ENOTEMPTY && errno != EEXIST)
        return -errno;
    return go_down(self, name);
}

static int empty(struct way *self)
{
    int rc = 0;

    while (rc == 0) {
        struct dirent *entry;

        errno = 0;
        entry = readdir(self->here);
        if (entry == NULL && errno != 0)
            return -errno;
        if (entry == NULL && self->depth == 0)
            return 0;
        if (entry == NULL)
            rc = go_up(self);
        else if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = remove_entry(self, entry->d_name, entry->d_type);
    }
    return rc;
}

int bs_remove(int folder, const char *name)
{
    struct way way = {0};
    int fd, rc;

    if (unlinkat(folder, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -errno;
    if (unlinkat(folder, name, AT_REMOVEDIR) == 0)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return -errno;
    fd = open_folder(folder, name);
    if (fd < 0)
        return fd;
    rc = stand_in(&way, fd);
    if (rc == 0)
        rc = empty(&way);
    if (way.here != NULL)
        closedir(way.here);
    free(way.levels);
    if (rc == 0 && unlinkat(folder, name, AT_REMOVEDIR) != 0)
        rc = -errno;
    return rc;
}
