/* Report which pages of a file enter the page cache, sample by sample.
 *
 * mincore(2) costs a look-up for every page of the file, resident or not: 60 ms for 3 GB. Where the
 * kernel has cachestat(2) (Linux 6.5), which only visits resident pages, mincore is called on a
 * region only if its number of resident or of evicted pages has changed since the last sample.
 * Pages dropped by a process (posix_fadvise) do not count as evicted.
 *
 * A resident page was not necessarily requested: the kernel reads ahead. Pages that were requested
 * more than once, as loaders and FUSE file systems do, are on its active list. Root can see which
 * those are: pagemap gives a mapped page's frame, kpageflags the frame's lists.
 *
 * mincore is correct only for the owner of the file, users who may write it, and root; to others
 * the kernel reports every page as resident (CVE-2019-5489).
 */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define REGION_PAGES 1024

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* Documentation/admin-guide/mm/pagemap.rst */
#define PAGEMAP_PRESENT (UINT64_C(1) << 63)
#define PAGEMAP_FRAME ((UINT64_C(1) << 55) - 1)
#define KPF_ACTIVE (UINT64_C(1) << 6)

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

struct cachestat_range {
    uint64_t off;
    uint64_t len;
};

struct cachestat {
    uint64_t nr_cache;
    uint64_t nr_dirty;
    uint64_t nr_writeback;
    uint64_t nr_evicted;
    uint64_t nr_recently_evicted;
};

/* A region's pages at the last sample. */
struct look {
    uint16_t resident;
    uint16_t evicted; /* pages that the kernel remembers as evicted */
};

struct bs_residency {
    int fd; /* borrowed */
    uint64_t size_bytes;
    uint64_t page_bytes;
    uint64_t pages;
    uint64_t regions;
    uint8_t *map;      /* the file, mapped; touched by bs_residency_active alone */
    uint8_t *seen;     /* one bit per page */
    struct look *last; /* one per region */
    int pagemap;       /* -1 if the kernel has none, or denies access */
    int kpageflags;
    bool has_cachestat;
};

int bs_residency_open(int fd, uint64_t size_bytes, bs_residency **out)
{
    int rc = -ENOMEM;
    bs_residency *self;

    *out = NULL;
    if (size_bytes == 0)
        return -EINVAL;
    self = calloc(1, sizeof *self);
    if (self == NULL)
        return rc;
    self->fd = fd;
    self->size_bytes = size_bytes;
    self->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    self->pages = (size_bytes + self->page_bytes - 1) / self->page_bytes;
    self->regions = (self->pages + REGION_PAGES - 1) / REGION_PAGES;
    self->has_cachestat = bs_has_cachestat(fd);
    self->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    self->kpageflags = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
    self->seen = calloc((size_t)(self->pages + 7) / 8, 1);
    self->last = calloc((size_t)self->regions, sizeof *self->last);
    if (self->seen == NULL || self->last == NULL)
        goto out;
    self->map = mmap(NULL, (size_t)size_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (self->map == MAP_FAILED) {
        self->map = NULL;
        rc = -errno;
        goto out;
    }
    /* Unmapping a page that was touched through this mapping must not count as its use. */
    (void)madvise(self->map, (size_t)size_bytes, MADV_RANDOM);
    *out = self;
    return 0;
out:
    bs_residency_close(self);
    return rc;
}

/* An overlay's files keep their pages in the file below, where cachestat does not look. */
int bs_has_cachestat(int fd)
{
    struct cachestat_range range = {0, 1};
    struct cachestat stat;
    struct statfs system;

    return syscall(SYS_cachestat, fd, &range, &stat, 0) == 0 && fstatfs(fd, &system) == 0 &&
           system.f_type != OVERLAYFS_SUPER_MAGIC;
}

/* True if the region may hold pages that the last sample did not see: their number has changed,
 * or some were evicted and as many others may have come. Stores the current number of evicted
 * pages. */
static bool region_changed(bs_residency *self, uint64_t region, uint16_t *evicted)
{
    uint64_t region_bytes = REGION_PAGES * self->page_bytes;
    struct cachestat_range range = {region * region_bytes, region_bytes};
    struct cachestat stat;

    if (!self->has_cachestat)
        return true;
    if (syscall(SYS_cachestat, self->fd, &range, &stat, 0) != 0) {
        self->has_cachestat = false;
        return true;
    }
    *evicted = (uint16_t)stat.nr_evicted;
    return stat.nr_cache != self->last[region].resident ||
           stat.nr_evicted != self->last[region].evicted;
}

int64_t bs_residency_sample(bs_residency *self, bs_range *out, size_t capacity)
{
    unsigned char resident[REGION_PAGES];
    size_t found = 0;

    for (uint64_t region = 0; region < self->regions; region++) {
        uint64_t first = region * REGION_PAGES;
        struct look now = {0};
        uint64_t pages = self->pages - first < REGION_PAGES ? self->pages - first : REGION_PAGES;

        if (!region_changed(self, region, &now.evicted))
            continue;
        if (mincore(self->map + first * self->page_bytes, (size_t)(pages * self->page_bytes),
                    resident) != 0)
            return -errno;
        for (uint64_t i = 0; i < pages; i++) {
            uint64_t page = first + i;
            uint8_t bit = (uint8_t)(1U << (page % 8));
            uint64_t start = page * self->page_bytes;
            uint64_t stop = start + self->page_bytes;

            if (!(resident[i] & 1))
                continue;
            now.resident++;
            if (self->seen[page / 8] & bit)
                continue;
            if (stop > self->size_bytes)
                stop = self->size_bytes;
            if (found > 0 && out[found - 1].stop == start) {
                out[found - 1].stop = stop;
            } else if (found < capacity) {
                out[found++] = (bs_range){start, stop};
            } else {
                return (int64_t)found; /* the next sample repeats this region */
            }
            self->seen[page / 8] |= bit;
        }
        /* What mincore saw, not what cachestat counted: pages still being read count there only,
         * and the difference brings us back. */
        self->last[region] = now;
    }
    return (int64_t)found;
}

/* Return whether the page of a pagemap entry is on the active list. */
static uint8_t use_of(const bs_residency *self, uint64_t entry)
{
    uint64_t frame = entry & PAGEMAP_FRAME;
    uint64_t flags;

    if (!(entry & PAGEMAP_PRESENT) || frame == 0)
        return BS_USE_UNKNOWN;
    if (pread(self->kpageflags, &flags, sizeof flags, (off_t)(frame * sizeof flags)) !=
        (ssize_t)sizeof flags)
        return BS_USE_UNKNOWN;
    return flags & KPF_ACTIVE ? BS_IN_USE : BS_READ_AHEAD;
}

/* Map the pages that are in memory: evicted ones are not read again for the check. */
static int populate(const bs_residency *self, uint8_t *at, uint64_t pages)
{
    unsigned char resident[REGION_PAGES];
    uint64_t stop;

    if (mincore(at, (size_t)(pages * self->page_bytes), resident) != 0)
        return -errno;
    for (uint64_t page = 0; page < pages; page = stop) {
        for (stop = page + 1; stop < pages && (resident[stop] & 1) == (resident[page] & 1); stop++)
            ;
        if (resident[page] & 1 &&
            madvise(at + page * self->page_bytes, (size_t)((stop - page) * self->page_bytes),
                    MADV_POPULATE_READ) != 0)
            return -errno;
    }
    return 0;
}

int bs_residency_active(bs_residency *self, uint64_t start, uint64_t stop, uint8_t *active)
{
    uint64_t entries[REGION_PAGES];
    uint64_t last = (stop + self->page_bytes - 1) / self->page_bytes;

    if (self->pagemap < 0 || self->kpageflags < 0)
        return -ENOTSUP;
    if (start >= stop || stop > self->size_bytes)
        return -EINVAL;
    for (uint64_t page = start / self->page_bytes; page < last; page += REGION_PAGES) {
        uint64_t pages = last - page < REGION_PAGES ? last - page : REGION_PAGES;
        uint8_t *at = self->map + page * self->page_bytes;
        size_t want = (size_t)pages * sizeof entries[0];
        int rc = populate(self, at, pages);

        if (rc != 0)
            return rc;
        if (pread(self->pagemap, entries, want,
                  (off_t)((uintptr_t)at / self->page_bytes * sizeof entries[0])) != (ssize_t)want)
            return -EIO;
        for (uint64_t i = 0; i < pages; i++)
            *active++ = use_of(self, entries[i]);
        (void)madvise(at, (size_t)(pages * self->page_bytes), MADV_DONTNEED);
    }
    return 0;
}

void bs_residency_close(bs_residency *self)
{
    if (self == NULL)
        return;
    if (self->map != NULL)
        munmap(self->map, (size_t)self->size_bytes);
    if (self->pagemap >= 0)
        close(self->pagemap);
    if (self->kpageflags >= 0)
        close(self->kpageflags);
    free(self->seen);
    free(self->last);
    free(self);
}
