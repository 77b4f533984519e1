/* Records what is written and synced below a folder, for simulated power cuts. For LD_PRELOAD.
 *
 * POWER_CUT_ROOT is the folder, POWER_CUT_JOURNAL the file that takes one line for each event:
 *   N inode        a file was created          W inode        its bytes change
 *   S inode size   so many bytes are synced    E path         a folder got an entry
 *   D path         a folder is synced
 * Changes are recorded before they happen and syncs after: what the journal calls synced is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__)) dlsym(RTLD_NEXT, name)

static const char *root(void)
{
    static const char *found;
    if (!found) found = getenv("POWER_CUT_ROOT");
    return found ? found : "/nowhere";
}

static void record(const char *format, ...)
{
    static int journal = -1;
    char line[PATH_MAX + 64];
    va_list arguments;
    int saved = errno;
    if (journal < 0) {
        const char *path = getenv("POWER_CUT_JOURNAL");
        if (path) journal = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (journal >= 0) syscall(SYS_write, journal, line, (size_t) length);
    errno = saved;
}

/* Absolute path of a name relative to a folder's descriptor; 0 if it is not below the root. */
static int below(int folder, const char *name, char *path)
{
    int saved = errno, is_below = 0;
    char link[64], base[PATH_MAX];
    if (name && name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) { errno = saved; return 0; }
        base[length] = 0;
        if (name) { if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) { errno = saved; return 0; } }
        else snprintf(path, PATH_MAX, "%s", base);
    }
    size_t size = strlen(root());
    is_below = strncmp(path, root(), size) == 0 && (path[size] == '/' || path[size] == 0);
    errno = saved;
    return is_below;
}

static int exists(const char *path)
{
    int saved = errno;
    int found = access(path, F_OK) == 0;
    errno = saved;
    return found;
}

static void dirty(int fd)
{
    char path[PATH_MAX];
    struct stat status;
    int saved = errno;
    if (below(fd, NULL, path) && fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
        record("W %lu\n", (unsigned long) status.st_ino);
    errno = saved;
}

static int synced(int fd, int (*real)(int))
{
    char path[PATH_MAX];
    struct stat status;
    int is_ours = below(fd, NULL, path) && fstat(fd, &status) == 0;
    int result = real(fd);
    if (is_ours && result == 0) {
        if (S_ISDIR(status.st_mode)) record("D %s\n", path);
        else record("S %lu %lld\n", (unsigned long) status.st_ino, (long long) status.st_size);
    }
    return result;
}

int fsync(int fd) { REAL(int, "fsync", int); return synced(fd, real); }
int fdatasync(int fd) { REAL(int, "fdatasync", int); return synced(fd, real); }

static int opened(int fd, int is_new)
{
    struct stat status;
    int saved = errno;
    if (fd >= 0 && is_new && fstat(fd, &status) == 0) record("N %lu\n", (unsigned long) status.st_ino);
    errno = saved;
    return fd;
}

static int before_open(int folder, const char *name, int flags)
{
    char path[PATH_MAX];
    struct stat status;
    if (!(flags & (O_CREAT | O_TRUNC)) || !below(folder, name, path)) return 0;
    if ((flags & O_CREAT) && !exists(path)) { record("E %s\n", path); return 1; }
    if ((flags & O_TRUNC) && stat(path, &status) == 0) record("W %lu\n", (unsigned long) status.st_ino);
    return 0;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *name, int flags, ...)
{
    MODE(flags)
    REAL(int, "open", const char *, int, ...);
    int is_new = before_open(AT_FDCWD, name, flags);
    return opened(real(name, flags, mode), is_new);
}

int open64(const char *name, int flags, ...)
{
    MODE(flags)
    REAL(int, "open64", const char *, int, ...);
    int is_new = before_open(AT_FDCWD, name, flags);
    return opened(real(name, flags, mode), is_new);
}

int openat(int folder, const char *name, int flags, ...)
{
    MODE(flags)
    REAL(int, "openat", int, const char *, int, ...);
    int is_new = before_open(folder, name, flags);
    return opened(real(folder, name, flags, mode), is_new);
}

int openat64(int folder, const char *name, int flags, ...)
{
    MODE(flags)
    REAL(int, "openat64", int, const char *, int, ...);
    int is_new = before_open(folder, name, flags);
    return opened(real(folder, name, flags, mode), is_new);
}

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    if (fd > 2) dirty(fd);
    return real(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    dirty(fd);
    return real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    dirty(fd);
    return real(fd, data, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    dirty(fd);
    return real(fd, parts, count);
}

ssize_t copy_file_range(int from, off64_t *start, int to, off64_t *end, size_t size, unsigned flags)
{
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    dirty(to);
    return real(from, start, to, end, size, flags);
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size)
{
    REAL(ssize_t, "sendfile", int, int, off_t *, size_t);
    dirty(to);
    return real(to, from, offset, size);
}

int ftruncate(int fd, off_t size)
{
    REAL(int, "ftruncate", int, off_t);
    dirty(fd);
    return real(fd, size);
}

int ftruncate64(int fd, off64_t size)
{
    REAL(int, "ftruncate64", int, off64_t);
    dirty(fd);
    return real(fd, size);
}

static void entry(int folder, const char *name)
{
    char path[PATH_MAX];
    if (below(folder, name, path) && !exists(path)) record("E %s\n", path);
}

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *);
    entry(AT_FDCWD, to);
    return real(from, to);
}

int renameat(int a, const char *from, int b, const char *to)
{
    REAL(int, "renameat", int, const char *, int, const char *);
    entry(b, to);
    return real(a, from, b, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    entry(b, to);
    return real(a, from, b, to, flags);
}

int link(const char *from, const char *to)
{
    REAL(int, "link", const char *, const char *);
    entry(AT_FDCWD, to);
    return real(from, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags)
{
    REAL(int, "linkat", int, const char *, int, const char *, int);
    entry(b, to);
    return real(a, from, b, to, flags);
}

int mkdir(const char *name, mode_t mode)
{
    REAL(int, "mkdir", const char *, mode_t);
    entry(AT_FDCWD, name);
    return real(name, mode);
}

int mkdirat(int folder, const char *name, mode_t mode)
{
    REAL(int, "mkdirat", int, const char *, mode_t);
    entry(folder, name);
    return real(folder, name, mode);
}
