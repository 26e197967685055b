/* Preloaded into a process: makes system calls on files below one folder fail, hang, stop half way or kill the process.

   FAULTS_BELOW    the folder; calls on other paths are passed on untouched
   FAULTS_CONTROL  a file of rules, read again at each call, so that a fault can begin and end in the middle of a run
   FAULTS_LOG      a file that gets one line for each call below the folder, in order (see tests/robustness/power.py)

   A rule is one line: CALLS ACTION AMOUNT FIRST COUNT MATCH
     CALLS   names of calls with commas between them, or "any"
     ACTION  error (AMOUNT is the errno), hang (for AMOUNT ms), block (until the rule is taken out of the file), short (a write
             of half of the bytes), tear (half of the bytes, then SIGKILL), kill (SIGKILL instead of the call)
     FIRST   the first call that it is for, counted from 1 in each process; COUNT how many, 0 for all that follow
     MATCH   a part of the path, "-" for any path
   The line "clock shift SECONDS 0 0 -" moves the wall clock.

   Everything is done by raw system calls, so nothing here comes back into this file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_RULES 16

struct rule {
    char calls[128], action[16], match[128];
    long amount, first, count;
};

enum fate { GO_ON, FAIL, HALF, HALF_THEN_DIE };

static char below[PATH_MAX], control[PATH_MAX], log_file[PATH_MAX];
static long num_seen[MAX_RULES];

static void copy(char *to, const char *name) {
    const char *value = getenv(name);
    snprintf(to, PATH_MAX, "%s", value ? value : "");
}

/* Reads the environment again: a forked child calls this after it changed its own. */
void faults_load(void) {
    copy(below, "FAULTS_BELOW");
    copy(control, "FAULTS_CONTROL");
    copy(log_file, "FAULTS_LOG");
    memset(num_seen, 0, sizeof num_seen);
}

__attribute__((constructor)) static void begin(void) { faults_load(); }

static int read_rules(struct rule *rules) {
    char text[8192];
    int file = control[0] ? (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC, 0) : -1;
    if (file < 0) return 0;
    long size = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    text[size > 0 ? size : 0] = 0;
    int found = 0;
    for (char *rest = text, *line; found < MAX_RULES && (line = strsep(&rest, "\n"));) {
        struct rule *one = &rules[found];
        found += sscanf(line, "%127s %15s %ld %ld %ld %127s", one->calls, one->action, &one->amount, &one->first,
                        &one->count, one->match) == 6;
    }
    return found;
}

static void sleep_ms(long amount) {
    struct timespec left = {amount / 1000, amount % 1000 * 1000000};
    while (syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR) {}
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    sleep_ms(60000);
}

static int is_listed(const char *list, const char *call) {
    size_t size = strlen(call);
    for (const char *at = list; (at = strstr(at, call)); at += size)
        if ((at == list || at[-1] == ',') && (at[size] == ',' || at[size] == 0)) return 1;
    return strcmp(list, "any") == 0;
}

static void wait_until_gone(const struct rule *rule) {
    struct rule rules[MAX_RULES];
    for (int found = 1; found;) {
        sleep_ms(10);
        found = 0;
        for (int n = read_rules(rules); n-- > 0;)
            found |= !strcmp(rules[n].calls, rule->calls) && !strcmp(rules[n].action, rule->action);
    }
}

static enum fate decide(const char *call, const char *path) {
    struct rule rules[MAX_RULES];
    int kept = errno, num_rules = read_rules(rules);
    errno = kept;
    for (int n = 0; n < num_rules; n++) {
        struct rule *rule = &rules[n];
        if (!is_listed(rule->calls, call) || (strcmp(rule->match, "-") && !strstr(path, rule->match))) continue;
        long seen = __atomic_add_fetch(&num_seen[n], 1, __ATOMIC_SEQ_CST);
        if (seen < rule->first || (rule->count && seen >= rule->first + rule->count)) continue;
        if (!strcmp(rule->action, "kill")) die();
        if (!strcmp(rule->action, "hang")) sleep_ms(rule->amount);
        if (!strcmp(rule->action, "block")) wait_until_gone(rule);
        if (!strcmp(rule->action, "short")) return HALF;
        if (!strcmp(rule->action, "tear")) return HALF_THEN_DIE;
        if (!strcmp(rule->action, "error")) {
            errno = (int)rule->amount;
            return FAIL;
        }
    }
    return GO_ON;
}

static int is_below(const char *path) {
    size_t size = strlen(below);
    return size && !strncmp(path, below, size) && (path[size] == '/' || path[size] == 0);
}

static int path_of_descriptor(int descriptor, char *path) {
    char link[64];
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    long size = below[0] ? syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1) : -1;
    errno = kept;
    path[size > 0 ? size : 0] = 0;
    return is_below(path);
}

static int path_of_name(int folder, const char *name, char *path) {
    char start[PATH_MAX] = "";
    path[0] = 0;
    if (!below[0] || !name) return 0;
    if (name[0] != '/') {
        if (folder != AT_FDCWD) path_of_descriptor(folder, start);
        else if (syscall(SYS_getcwd, start, sizeof start) < 0) return 0;
    }
    snprintf(path, PATH_MAX, "%s%s%s", start, name[0] == '/' ? "" : "/", name);
    return is_below(path);
}

static void note(const char *call, const char *path, const char *other, long result, int descriptor) {
    if (!log_file[0]) return;
    char line[3 * PATH_MAX];
    struct stat about = {0};
    int kept = errno;
    if (descriptor >= 0) fstat(descriptor, &about);
    int size = snprintf(line, sizeof line, "%s\t%s\t%s\t%ld\t%ld\n", call, result < 0 ? "failed" : "done", path,
                        (long)about.st_size, (long)about.st_ino);
    if (other) size = snprintf(line, sizeof line, "%s\t%s\t%s\t%s\t0\n", call, result < 0 ? "failed" : "done", path, other);
    int file = (int)syscall(SYS_openat, AT_FDCWD, log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file >= 0) {
        syscall(SYS_write, file, line, size);
        syscall(SYS_close, file);
    }
    errno = kept;
}

#define ON_DESCRIPTOR(name, call)                                                                       \
    char path[PATH_MAX];                                                                                \
    if (!path_of_descriptor(descriptor, path)) return call;                                             \
    long result = decide(name, path) == FAIL ? -1 : call;                                               \
    note(name, path, NULL, result, descriptor);                                                         \
    return result

#define ON_NAME(name, folder, given, call)                                                              \
    char path[PATH_MAX];                                                                                \
    if (!path_of_name(folder, given, path)) return call;                                                \
    long result = decide(name, path) == FAIL ? -1 : call;                                               \
    note(name, path, NULL, result, -1);                                                                 \
    return result

static ssize_t written(const char *name, int descriptor, const void *data, size_t size, off_t at) {
    char path[PATH_MAX];
    enum fate fate = path_of_descriptor(descriptor, path) ? decide(name, path) : GO_ON;
    if (fate == FAIL) return -1;
    if (fate != GO_ON && size > 1) size /= 2;
    ssize_t result = at < 0 ? syscall(SYS_write, descriptor, data, size) : syscall(SYS_pwrite64, descriptor, data, size, at);
    if (fate == HALF_THEN_DIE) die();
    return result;
}

ssize_t write(int descriptor, const void *data, size_t size) { return written("write", descriptor, data, size, -1); }
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) { return written("pwrite", descriptor, data, size, at); }
ssize_t pwrite64(int descriptor, const void *data, size_t size, off_t at) { return written("pwrite", descriptor, data, size, at); }
ssize_t writev(int descriptor, const struct iovec *data, int count) {
    ON_DESCRIPTOR("writev", syscall(SYS_writev, descriptor, data, count));
}
int fsync(int descriptor) { ON_DESCRIPTOR("fsync", syscall(SYS_fsync, descriptor)); }
int fdatasync(int descriptor) { ON_DESCRIPTOR("fdatasync", syscall(SYS_fdatasync, descriptor)); }
int ftruncate(int descriptor, off_t size) { ON_DESCRIPTOR("ftruncate", syscall(SYS_ftruncate, descriptor, size)); }
int ftruncate64(int descriptor, off_t size) { ON_DESCRIPTOR("ftruncate", syscall(SYS_ftruncate, descriptor, size)); }

int close(int descriptor) {
    char path[PATH_MAX];
    if (!path_of_descriptor(descriptor, path)) return (int)syscall(SYS_close, descriptor);
    enum fate fate = decide("close", path);
    int error = errno;
    int result = (int)syscall(SYS_close, descriptor); /* Linux frees the descriptor also where it reports an error */
    if (fate != FAIL) return result;
    errno = error;
    return -1;
}

static int allocated(int descriptor, off_t at, off_t size) {
    char path[PATH_MAX];
    if (path_of_descriptor(descriptor, path) && decide("posix_fallocate", path) == FAIL) return errno;
    return syscall(SYS_fallocate, descriptor, 0, at, size) < 0 ? errno : 0;
}
int posix_fallocate(int descriptor, off_t at, off_t size) { return allocated(descriptor, at, size); }
int posix_fallocate64(int descriptor, off_t at, off_t size) { return allocated(descriptor, at, size); }

static int opened(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!path_of_name(folder, name, path)) return (int)syscall(SYS_openat, folder, name, flags, mode);
    if (decide("open", path) == FAIL) return -1;
    int result = (int)syscall(SYS_openat, folder, name, flags, mode);
    if (flags & O_CREAT) note("create", path, NULL, result, result);
    return result;
}

#define WITH_MODE                            \
    mode_t mode = 0;                         \
    if (flags & (O_CREAT | O_TMPFILE)) {     \
        va_list rest;                        \
        va_start(rest, flags);               \
        mode = va_arg(rest, mode_t);         \
        va_end(rest);                        \
    }

int open(const char *name, int flags, ...) { WITH_MODE return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { WITH_MODE return opened(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { WITH_MODE return opened(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { WITH_MODE return opened(folder, name, flags, mode); }

int mkdirat(int folder, const char *name, mode_t mode) { ON_NAME("mkdir", folder, name, syscall(SYS_mkdirat, folder, name, mode)); }
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
int unlinkat(int folder, const char *name, int flags) {
    ON_NAME("unlink", folder, name, syscall(SYS_unlinkat, folder, name, flags));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int renameat(int from, const char *name, int to, const char *target) {
    char path[PATH_MAX], other[PATH_MAX];
    path_of_name(from, name, path);
    if (!path_of_name(to, target, other)) return (int)syscall(SYS_renameat2, from, name, to, target, 0);
    int result = decide("rename", other) == FAIL ? -1 : (int)syscall(SYS_renameat2, from, name, to, target, 0);
    note("rename", path, other, result, -1);
    return result;
}
int rename(const char *name, const char *target) { return renameat(AT_FDCWD, name, AT_FDCWD, target); }

static long clock_shift(void) {
    struct rule rules[MAX_RULES];
    int kept = errno;
    long shift = 0;
    for (int n = read_rules(rules); n-- > 0;)
        if (!strcmp(rules[n].calls, "clock")) shift = rules[n].amount;
    errno = kept;
    return shift;
}

int clock_gettime(clockid_t clock, struct timespec *into) {
    int result = (int)syscall(SYS_clock_gettime, clock, into);
    if (result == 0 && clock == CLOCK_REALTIME) into->tv_sec += clock_shift();
    return result;
}
int gettimeofday(struct timeval *restrict into, void *restrict zone) {
    int result = (int)syscall(SYS_gettimeofday, into, zone);
    if (result == 0) into->tv_sec += clock_shift();
    return result;
}
time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
