/* Permanently limit the folders in which a process may change anything.
 *
 * Reading and open descriptors are not affected.
 */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Since Linux 5.13; missing from older C libraries. The numbers are the same everywhere. */
enum {
    CALL_CREATE_RULESET = 444,
    CALL_ADD_RULE = 445,
    CALL_RESTRICT_SELF = 446,
    ASK_VERSION = 1,
    PATH_BENEATH = 1,
    TRUNCATE_SINCE = 3
};

/* Write to a file, remove and make objects in a folder; truncate(2). */
#define CHANGE UINT64_C(0x1ff2)
#define TRUNCATE UINT64_C(0x4000)

struct rule {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));

int bs_limit_changes(const char *const *folders, size_t count)
{
    long version = syscall(CALL_CREATE_RULESET, NULL, 0, ASK_VERSION);
    uint64_t handled = version < TRUNCATE_SINCE ? CHANGE : CHANGE | TRUNCATE;
    int rules, error = 0;

    /* An older kernel, one without it, or a container's filter: ENOSYS, EOPNOTSUPP, EPERM. */
    if (version < 0)
        return 0;
    rules = (int)syscall(CALL_CREATE_RULESET, &handled, sizeof handled, 0);
    if (rules < 0)
        return -errno;
    for (size_t i = 0; i < count && error == 0; i++) {
        struct rule rule = {handled,
                            open(folders[i], O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};

        if (rule.parent < 0 || syscall(CALL_ADD_RULE, rules, PATH_BENEATH, &rule, 0) != 0)
            error = -errno;
        if (rule.parent >= 0)
            close(rule.parent);
    }
    if (error == 0 &&
        (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(CALL_RESTRICT_SELF, rules, 0) != 0))
        error = -errno;
    close(rules);
    return error;
}
