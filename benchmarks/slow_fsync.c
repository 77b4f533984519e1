/* Makes every fsync and fdatasync take 4 ms longer: a disk without a write cache. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int slow(const char *name, int fd)
{
    int (*real)(int) = (int (*)(int)) dlsym(RTLD_NEXT, name);
    const struct timespec pause = {0, 4 * 1000 * 1000};
    nanosleep(&pause, NULL);
    return real(fd);
}

int fsync(int fd) { return slow("fsync", fd); }
int fdatasync(int fd) { return slow("fdatasync", fd); }
