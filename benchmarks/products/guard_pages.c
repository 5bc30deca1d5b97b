/* An allocator that detects out-of-bounds accesses, loaded by search_products.py with LD_PRELOAD.
 *
 * Every aligned allocation of at least MINIMUM bytes ends (up to its alignment) at an inaccessible page, so that a write
 * past its end raises signal 11 at once. Addresses are never reused, so that an access after the release raises signal 11
 * too. New memory is filled with 0xff bytes, which are NaN in float32 and bfloat16, so that reads of uninitialized memory
 * show in the result.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define MINIMUM ((size_t)512)
#define RESERVED ((size_t)1 << 40)

static char *arena, *next;

__attribute__((constructor)) static void reserve(void) {
    void *found = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found != MAP_FAILED) arena = next = found;
}

int posix_memalign(void **result, size_t alignment, size_t size) {
    if (!arena || size < MINIMUM || alignment > PAGE) {
        static int (*original)(void **, size_t, size_t);
        if (!original) original = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
        return original(result, alignment, size);
    }
    size_t rounded = (size + alignment - 1) / alignment * alignment;
    size_t data = (rounded + PAGE - 1) / PAGE * PAGE;
    /* One page for the size, the pages of the data, and one inaccessible page. */
    char *begin = __atomic_fetch_add(&next, data + 2 * PAGE, __ATOMIC_SEQ_CST);
    if (begin + data + 2 * PAGE > arena + RESERVED) return ENOMEM;
    if (mprotect(begin, data + PAGE, PROT_READ | PROT_WRITE)) return ENOMEM;
    *(size_t *)begin = data;
    char *memory = begin + PAGE + data - rounded;
    memset(memory, 0xff, rounded);
    *result = memory;
    return 0;
}

void free(void *memory) {
    static void (*original)(void *);
    if (arena && (char *)memory >= arena && (char *)memory < arena + RESERVED) {
        char *begin = (char *)((uintptr_t)memory / PAGE * PAGE) - PAGE;
        size_t data = *(size_t *)begin;
        madvise(begin, data + PAGE, MADV_DONTNEED);
        mprotect(begin, data + PAGE, PROT_NONE);
        return;
    }
    if (!original) original = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    original(memory);
}
