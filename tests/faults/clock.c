/* A clock on the wall that can be moved: what a process asks of it is read from a file that others write.

   libfaketime moves the deadlines of waits as well, also those of the steady clock: with a Python of 3.11 or newer each
   sleep then fails (EINVAL). A clock that is set anew does nothing of the kind to a process, so this moves only what it
   tells. The file holds one number of seconds; it is mapped once, and read at each look. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *moved;

__attribute__((constructor)) static void open_clock(void)
{
    const char *path = getenv("PENSTOCK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *there = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (there != MAP_FAILED)
            moved = there;
        close(file);
    }
}

static int64_t ahead(void) { return moved ? *moved : 0; }

int clock_gettime(clockid_t which, struct timespec *found)
{
    int status = syscall(SYS_clock_gettime, which, found);
    if (status == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        found->tv_sec += ahead();
    return status;
}

int gettimeofday(struct timeval *found, void *zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}
