#include "cache.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_SLOTS = 64, /* more than threads, each of which holds one at most */
};

struct sq_cache {
    const sq_image *image;
    sq_cached *slots;
    sq_cached **buckets;
    size_t count; /* of slots, and of buckets: a power of two */
    size_t hand;
    pthread_mutex_t lock;
    pthread_cond_t ready;
};

static sq_cached **bucket_of(const sq_cache *self, uint64_t at)
{
    return &self->buckets[(at * 0x9e3779b97f4a7c15U >> 32) & (self->count - 1)];
}

/* Sparse blocks of a file are all stored at one place, and only the last may be short. */
static int is_same(const sq_block *one, const sq_block *other)
{
    return one->at == other->at && one->stored == other->stored &&
           one->size_bytes == other->size_bytes;
}

int sq_cache_open(const sq_image *image, size_t size_bytes, sq_cache **out)
{
    sq_cache *self = calloc(1, sizeof *self);

    *out = NULL;
    if (self == NULL)
        return -ENOMEM;
    self->image = image;
    self->count = LEAST_SLOTS;
    while (self->count * 2 * sq_block_bytes(image) <= size_bytes)
        self->count *= 2;
    self->slots = calloc(self->count, sizeof *self->slots);
    self->buckets = calloc(self->count, sizeof *self->buckets);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->ready, NULL);
    if (!self->slots || !self->buckets) {
        sq_cache_close(self);
        return -ENOMEM;
    }
    *out = self;
    return 0;
}

void sq_cache_close(sq_cache *self)
{
    for (size_t i = 0; self->slots && i < self->count; i++)
        free(self->slots[i].data);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->ready);
    free(self->slots);
    free(self->buckets);
    free(self);
}

static void forget(sq_cache *self, sq_cached *old)
{
    sq_cached **link = bucket_of(self, old->block.at);

    while (*link != old)
        link = &(*link)->next;
    *link = old->next;
    old->is_taken = 0;
}

/* Take a slot for a block: one that nobody uses, and was not used since the hand last passed. */
static sq_cached *take(sq_cache *self, const sq_block *block)
{
    for (size_t tried = 0; tried < 2 * self->count; tried++) {
        sq_cached *found = &self->slots[self->hand++ % self->count];

        if (found->users > 0)
            continue;
        if (found->is_used) {
            found->is_used = 0;
            continue;
        }
        if (found->is_taken)
            forget(self, found);
        if (found->data == NULL && (found->data = malloc(sq_block_bytes(self->image))) == NULL)
            return NULL;
        found->block = *block;
        found->is_taken = 1;
        found->is_ready = 0;
        found->next = *bucket_of(self, block->at);
        *bucket_of(self, block->at) = found;
        return found;
    }
    return NULL;
}

int sq_cache_get(sq_cache *self, const sq_block *block, uint8_t *stored, sq_cached **out)
{
    sq_cached *found;
    int64_t got;

    *out = NULL;
    pthread_mutex_lock(&self->lock);
    found = *bucket_of(self, block->at);
    while (found != NULL && !is_same(&found->block, block))
        found = found->next;
    if (found != NULL) {
        found->users++;
        while (!found->is_ready)
            pthread_cond_wait(&self->ready, &self->lock);
    } else if ((found = take(self, block)) != NULL) {
        found->users++;
        pthread_mutex_unlock(&self->lock);
        got = sq_read_block(self->image, block, stored, found->data);
        pthread_mutex_lock(&self->lock);
        found->size_bytes = got;
        found->is_ready = 1;
        pthread_cond_broadcast(&self->ready);
    } else {
        pthread_mutex_unlock(&self->lock);
        return -ENOMEM;
    }
    found->is_used = 1;
    got = found->size_bytes;
    pthread_mutex_unlock(&self->lock);
    if (got < 0) {
        sq_cache_release(self, found);
        return (int)got;
    }
    *out = found;
    return 0;
}

void sq_cache_release(sq_cache *self, sq_cached *block)
{
    pthread_mutex_lock(&self->lock);
    if (--block->users == 0 && block->size_bytes < 0)
        forget(self, block); /* it may be readable the next time */
    pthread_mutex_unlock(&self->lock);
}
