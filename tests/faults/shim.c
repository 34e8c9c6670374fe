// The fault injector: an LD_PRELOAD library that counts the calls of one process on the files of one folder and makes the n-th
// call fail, or kills the process there. dev/faults.py drives it. Everything is set through the environment:
//
//   FAULT_FOLDER=FOLDER    absolute path; only calls on files in this folder count. Without it nothing is counted.
//   FAULT_CALLS=writing    writing calls (default) or reading ones (reading). A writing call creates, writes, syncs, closes, renames or
//                          deletes a file or folder; the others are reading calls.
//   FAULT_AT=N             the call to disturb, from 1. 0 (default) disturbs none.
//   FAULT_KIND=KIND        kill: SIGKILL before the call; kill-torn: after half of the bytes of a write
//                          ENOSPC, EIO, EINTR, EMFILE, ESTALE: the call fails once with this error
//                          short: a read or write does half of its bytes; zero: it does none and returns 0
//                          stays-full: from call N on every write fails with ENOSPC
//   FAULT_RANK=R           only in the process whose OMPI_COMM_WORLD_RANK is R
//   FAULT_LOG=FILE         one line per counted call: its number, its name, its path
//   FAULT_SLOW_FSYNC=MS    each fsync and fdatasync takes MS milliseconds longer
//
// The FILE layer of libc does not call open() and write() through the dynamic linker. So fopen() and fdopen() return a stream whose
// reads and writes come back here (fopencookie). posix_fadvise() changes nothing that a test could see and is not counted, nor are
// fstat() and lseek(). Build: make build/tests/faults.so
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// The next definition of NAME behind this library, as a pointer of the type of the function itself.
#define REAL(NAME) ({ static __typeof__(&NAME) real_##NAME; real_##NAME ? real_##NAME : (real_##NAME = dlsym(RTLD_NEXT, #NAME)); })

// ---- settings, read once
static struct {
    bool ready, active, reading;
    char folder[PATH_MAX];
    size_t folder_length;
    const char* kind;
    long at, slow_fsync;
    int log;
} faults;

static long number(const char* name) {
    const char* value = getenv(name);
    return value ? atol(value) : 0;
}

__attribute__((constructor)) static void start(void) {
    if (faults.ready) return;
    faults.ready = true;
    const char *folder = getenv("FAULT_FOLDER"), *calls = getenv("FAULT_CALLS"), *rank = getenv("FAULT_RANK");
    const char *own = getenv("OMPI_COMM_WORLD_RANK"), *log = getenv("FAULT_LOG");
    faults.active = folder && *folder && (!rank || !*rank || (own && strcmp(own, rank) == 0));
    if (!faults.active) return;
    snprintf(faults.folder, sizeof faults.folder, "%s", folder);
    faults.folder_length = strlen(faults.folder);
    faults.reading = calls && strcmp(calls, "reading") == 0;
    faults.kind = getenv("FAULT_KIND") ? getenv("FAULT_KIND") : "";
    faults.at = number("FAULT_AT");
    faults.slow_fsync = number("FAULT_SLOW_FSYNC");
    faults.log = log && *log ? REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
}

// ---- which files count
enum { DESCRIPTORS = 4096 };
static struct { char* path; bool writes; } opened[DESCRIPTORS];   // path: 0 where the descriptor is outside the folder

// Makes `path`, relative to the folder that `at` is, absolute and free of "." and "..", by its letters alone. False if outside.
static bool inside(int at, const char* path, char* absolute) {
    start();
    if (!faults.active || !path) return false;
    char joined[2 * PATH_MAX] = "", place[64];
    if (path[0] != '/') {
        snprintf(place, sizeof place, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
        const ssize_t length = readlink(place, joined, PATH_MAX - 1);
        if (length < 0) return false;
        joined[length] = '/', joined[length + 1] = 0;
    }
    strncat(joined, path, sizeof joined - strlen(joined) - 1);
    size_t end = 0;
    for (char *save = 0, *part = strtok_r(joined, "/", &save); part; part = strtok_r(0, "/", &save)) {
        if (strcmp(part, ".") == 0) continue;
        if (strcmp(part, "..") == 0) { while (end > 0 && absolute[--end] != '/') {} continue; }
        end += (size_t)snprintf(absolute + end, PATH_MAX - end, "/%s", part);
        if (end >= PATH_MAX) return false;
    }
    absolute[end] = 0;
    return strncmp(absolute, faults.folder, faults.folder_length) == 0 &&
           (absolute[faults.folder_length] == '/' || absolute[faults.folder_length] == 0);
}

static const char* tracked(int descriptor) { return descriptor >= 0 && descriptor < DESCRIPTORS ? opened[descriptor].path : 0; }

static int track(int descriptor, const char* path, bool writes) {
    if (descriptor < 0 || descriptor >= DESCRIPTORS) return descriptor;
    opened[descriptor].path = strdup(path);
    opened[descriptor].writes = writes;
    return descriptor;
}

static void forget(int descriptor) {
    free(opened[descriptor].path);
    opened[descriptor].path = 0;
}

// ---- what happens to a call
enum Fate { proceed, fails, does_half, does_nothing, dies_torn };
enum Call { reads, writes, grows };   // grows: writes that need space on the disk

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int error_of(const char* kind) {
    static const struct { const char* name; int value; } errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EINTR", EINTR},
        {"EMFILE", EMFILE}, {"ESTALE", ESTALE}, {"stays-full", ENOSPC}};
    for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++)
        if (strcmp(kind, errors[e].name) == 0) return errors[e].value;
    return 0;
}

// Counts a call. Does not return if the process is to die before it; where the call fails, errno is set.
static enum Fate count(enum Call call, const char* name, const char* path) {
    static long calls;
    if ((call == reads) != faults.reading) return proceed;
    const long n = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    char line[PATH_MAX + 64];
    const int length = snprintf(line, sizeof line, "%ld %s %s\n", n, name, path);
    if (faults.log >= 0 && REAL(write)(faults.log, line, (size_t)length) < 0) abort();
    const bool stays = strcmp(faults.kind, "stays-full") == 0;
    if (faults.at == 0 || (stays ? n < faults.at || call != grows : n != faults.at)) return proceed;
    if (strcmp(faults.kind, "kill") == 0) die();
    if (strcmp(faults.kind, "kill-torn") == 0) return dies_torn;
    if (strcmp(faults.kind, "short") == 0) return does_half;
    if (strcmp(faults.kind, "zero") == 0) return does_nothing;
    errno = error_of(faults.kind);
    return fails;
}

// GUARD(FATE, RESULT ON FAILURE, CALL): calls, unless the fate is to fail.
#define GUARD(FATE, FAILED, CALL) ((FATE) == fails ? (FAILED) : (CALL))
#define ON_PATH(KIND, AT, PATH, NAME) ({ char at_[PATH_MAX]; inside(AT, PATH, at_) ? count(KIND, NAME, at_) : proceed; })
#define ON_FILE(KIND, DESCRIPTOR, NAME) (tracked(DESCRIPTOR) ? count(KIND, NAME, tracked(DESCRIPTOR)) : proceed)

// ---- opening and closing
static int open_counted(int at, const char* path, int flags, mode_t mode, const char* name) {
    char absolute[PATH_MAX];
    if (!inside(at, path, absolute)) return REAL(openat)(at, path, flags, mode);
    const bool for_writing = (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);
    return GUARD(count(for_writing ? writes : reads, name, absolute), -1,
                 track(REAL(openat)(at, path, flags, mode), absolute, for_writing));
}

#define OPEN(NAME, AT, FLAGS, ...) int NAME(__VA_ARGS__, ...) { \
    va_list rest; va_start(rest, flags); const mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    return open_counted(AT, path, FLAGS, mode, #NAME); }
OPEN(open, AT_FDCWD, flags, const char* path, int flags)
OPEN(open64, AT_FDCWD, flags, const char* path, int flags)
OPEN(openat, at, flags, int at, const char* path, int flags)
OPEN(openat64, at, flags, int at, const char* path, int flags)
int __open_2(const char* path, int flags) { return open_counted(AT_FDCWD, path, flags, 0, "open"); }
int __openat_2(int at, const char* path, int flags) { return open_counted(at, path, flags, 0, "openat"); }
int creat(const char* path, mode_t mode) { return open_counted(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode, "creat"); }
int creat64(const char* path, mode_t mode) { return creat(path, mode); }

int mkstemp(char* pattern) {
    char absolute[PATH_MAX];
    if (!inside(AT_FDCWD, pattern, absolute)) return REAL(mkstemp)(pattern);
    return GUARD(count(writes, "mkstemp", absolute), -1, track(REAL(mkstemp)(pattern), absolute, true));
}

// A close that fails closes the descriptor all the same, as on Linux.
int close(int descriptor) {
    if (!tracked(descriptor)) return REAL(close)(descriptor);
    const enum Fate fate = count(opened[descriptor].writes ? writes : reads, "close", tracked(descriptor));
    forget(descriptor);
    const int error = errno, result = REAL(close)(descriptor);
    if (fate == fails) errno = error;
    return fate == fails ? -1 : result;
}

// ---- reading and writing
#define TRANSFER(KIND, NAME, PARAMETERS, WHOLE, HALF) ssize_t NAME PARAMETERS { \
    const enum Fate fate = ON_FILE(KIND, descriptor, #NAME); \
    if (fate == does_nothing) return 0; \
    if (fate == does_half) return HALF; \
    if (fate == dies_torn && HALF >= 0) die(); \
    return GUARD(fate, -1, WHOLE); }
#define BUFFER (int descriptor, void* data, size_t bytes)
#define CONSTANT (int descriptor, const void* data, size_t bytes)
#define BUFFER_AT (int descriptor, void* data, size_t bytes, off_t place)
#define CONSTANT_AT (int descriptor, const void* data, size_t bytes, off_t place)
TRANSFER(reads, read, BUFFER, REAL(read)(descriptor, data, bytes), REAL(read)(descriptor, data, (bytes + 1) / 2))
TRANSFER(reads, pread, BUFFER_AT, REAL(pread)(descriptor, data, bytes, place), REAL(pread)(descriptor, data, (bytes + 1) / 2, place))
TRANSFER(reads, pread64, BUFFER_AT, REAL(pread)(descriptor, data, bytes, place), REAL(pread)(descriptor, data, (bytes + 1) / 2, place))
TRANSFER(grows, write, CONSTANT, REAL(write)(descriptor, data, bytes), REAL(write)(descriptor, data, (bytes + 1) / 2))
TRANSFER(grows, pwrite, CONSTANT_AT, REAL(pwrite)(descriptor, data, bytes, place), REAL(pwrite)(descriptor, data, (bytes + 1) / 2, place))
TRANSFER(grows, pwrite64, CONSTANT_AT, REAL(pwrite)(descriptor, data, bytes, place), REAL(pwrite)(descriptor, data, (bytes + 1) / 2, place))
#define PARTS (int descriptor, const struct iovec* parts, int n)
static ssize_t half_of_first(int descriptor, const struct iovec* parts, bool writing) {
    const size_t half = (parts[0].iov_len + 1) / 2;
    return writing ? REAL(write)(descriptor, parts[0].iov_base, half) : REAL(read)(descriptor, parts[0].iov_base, half);
}
TRANSFER(reads, readv, PARTS, REAL(readv)(descriptor, parts, n), half_of_first(descriptor, parts, false))
TRANSFER(grows, writev, PARTS, REAL(writev)(descriptor, parts, n), half_of_first(descriptor, parts, true))

void* mmap(void* place, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
    return GUARD(ON_FILE(reads, descriptor, "mmap"), MAP_FAILED, REAL(mmap)(place, bytes, protection, flags, descriptor, offset));
}
void* mmap64(void* place, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
    return mmap(place, bytes, protection, flags, descriptor, offset);
}

static void slow_down(int descriptor) {   // in steps of 10 ms, so that signals are handled in between
    for (long rest = tracked(descriptor) ? faults.slow_fsync : 0; rest > 0; rest -= 10) nanosleep(&(struct timespec){0, 10000000}, 0);
}
#define ON_DESCRIPTOR(KIND, NAME, BEFORE, PARAMETERS, ...) int NAME PARAMETERS { \
    BEFORE; \
    return GUARD(ON_FILE(KIND, descriptor, #NAME), -1, REAL(NAME)(__VA_ARGS__)); }
ON_DESCRIPTOR(writes, fsync, slow_down(descriptor), (int descriptor), descriptor)
ON_DESCRIPTOR(writes, fdatasync, slow_down(descriptor), (int descriptor), descriptor)
ON_DESCRIPTOR(writes, sync_file_range, , (int descriptor, off_t from, off_t bytes, unsigned flags), descriptor, from, bytes, flags)
ON_DESCRIPTOR(writes, ftruncate, , (int descriptor, off_t bytes), descriptor, bytes)
ON_DESCRIPTOR(writes, ftruncate64, , (int descriptor, off_t bytes), descriptor, bytes)
ON_DESCRIPTOR(writes, flock, , (int descriptor, int operation), descriptor, operation)
ON_DESCRIPTOR(reads, fstatvfs, , (int descriptor, struct statvfs* info), descriptor, info)

// ---- names
#define ON_NAME(KIND, NAME, AT, PATH, PARAMETERS, ...) int NAME PARAMETERS { \
    return GUARD(ON_PATH(KIND, AT, PATH, #NAME), -1, REAL(NAME)(__VA_ARGS__)); }
#define HERE AT_FDCWD
ON_NAME(writes, rename, HERE, to, (const char* from, const char* to), from, to)
ON_NAME(writes, renameat, new_at, to, (int at, const char* from, int new_at, const char* to), at, from, new_at, to)
ON_NAME(writes, renameat2, new_at, to, (int at, const char* from, int new_at, const char* to, unsigned flags), at, from, new_at, to, flags)
ON_NAME(writes, unlink, HERE, path, (const char* path), path)
ON_NAME(writes, unlinkat, at, path, (int at, const char* path, int flags), at, path, flags)
ON_NAME(writes, rmdir, HERE, path, (const char* path), path)
ON_NAME(writes, mkdir, HERE, path, (const char* path, mode_t mode), path, mode)
ON_NAME(writes, mkdirat, at, path, (int at, const char* path, mode_t mode), at, path, mode)
ON_NAME(writes, truncate, HERE, path, (const char* path, off_t bytes), path, bytes)
ON_NAME(writes, link, HERE, to, (const char* from, const char* to), from, to)
ON_NAME(writes, symlink, HERE, path, (const char* target, const char* path), target, path)
ON_NAME(reads, access, HERE, path, (const char* path, int mode), path, mode)
ON_NAME(reads, stat, HERE, path, (const char* path, struct stat* info), path, info)
ON_NAME(reads, lstat, HERE, path, (const char* path, struct stat* info), path, info)
ON_NAME(reads, fstatat, at, path, (int at, const char* path, struct stat* info, int flags), at, path, info, flags)
ON_NAME(reads, stat64, HERE, path, (const char* path, struct stat64* info), path, info)
ON_NAME(reads, lstat64, HERE, path, (const char* path, struct stat64* info), path, info)
ON_NAME(reads, fstatat64, at, path, (int at, const char* path, struct stat64* info, int flags), at, path, info, flags)
ON_NAME(reads, statx, at, path, (int at, const char* path, int flags, unsigned mask, struct statx* info), at, path, flags, mask, info)
ON_NAME(reads, statvfs, HERE, path, (const char* path, struct statvfs* info), path, info)

int remove(const char* path) {   // libc's own calls unlink() and rmdir() inside
    struct stat info;
    return REAL(lstat)(path, &info) == 0 && S_ISDIR(info.st_mode) ? rmdir(path) : unlink(path);
}

// ---- folders
static DIR* track_folder(DIR* folder, const char* path) {
    if (folder) track(dirfd(folder), path, false);
    return folder;
}
DIR* opendir(const char* path) {
    char absolute[PATH_MAX];
    if (!inside(AT_FDCWD, path, absolute)) return REAL(opendir)(path);
    return GUARD(count(reads, "opendir", absolute), 0, track_folder(REAL(opendir)(path), absolute));
}
DIR* fdopendir(int descriptor) { return GUARD(ON_FILE(reads, descriptor, "fdopendir"), 0, REAL(fdopendir)(descriptor)); }
struct dirent* readdir(DIR* folder) { return GUARD(ON_FILE(reads, dirfd(folder), "readdir"), 0, REAL(readdir)(folder)); }
struct dirent64* readdir64(DIR* folder) { return GUARD(ON_FILE(reads, dirfd(folder), "readdir64"), 0, REAL(readdir64)(folder)); }
int closedir(DIR* folder) {
    const int descriptor = dirfd(folder);
    if (!tracked(descriptor)) return REAL(closedir)(folder);
    count(reads, "closedir", tracked(descriptor));
    forget(descriptor);
    return REAL(closedir)(folder);
}

// ---- streams
enum { STREAMS = 64 };
static struct { FILE* stream; int descriptor; } streams[STREAMS];

static ssize_t read_stream(void* cookie, char* data, size_t bytes) { return read((int)(long)cookie, data, bytes); }
static ssize_t write_stream(void* cookie, const char* data, size_t bytes) {   // as libc does: on after a short write, not after an error
    size_t done = 0;
    while (done < bytes) {
        const ssize_t written = write((int)(long)cookie, data + done, bytes - done);
        if (written <= 0) break;
        done += (size_t)written;
    }
    return (ssize_t)done;
}
static int seek_stream(void* cookie, off64_t* place, int from) {
    const off64_t reached = lseek64((int)(long)cookie, *place, from);
    if (reached >= 0) *place = reached;
    return reached < 0 ? -1 : 0;
}
static int close_stream(void* cookie) {
    for (int s = 0; s < STREAMS; s++)
        if (streams[s].stream && streams[s].descriptor == (int)(long)cookie) streams[s].stream = 0;
    return close((int)(long)cookie);
}

static FILE* stream_of(int descriptor, const char* mode) {
    const cookie_io_functions_t functions = {read_stream, write_stream, seek_stream, close_stream};
    FILE* const stream = fopencookie((void*)(long)descriptor, mode, functions);
    for (int s = 0; s < STREAMS; s++) {
        if (streams[s].stream) continue;
        streams[s].descriptor = descriptor;
        streams[s].stream = stream;
        return stream;
    }
    abort();   // more streams at once than any program of ours has
}

FILE* fopen(const char* path, const char* mode) {
    char absolute[PATH_MAX];
    if (!inside(AT_FDCWD, path, absolute)) return REAL(fopen)(path, mode);
    int flags = strchr(mode, '+') ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
    flags |= mode[0] == 'r' ? 0 : O_CREAT | (mode[0] == 'a' ? O_APPEND : O_TRUNC);
    flags |= (strchr(mode, 'x') ? O_EXCL : 0) | (strchr(mode, 'e') ? O_CLOEXEC : 0);
    const int descriptor = open_counted(AT_FDCWD, path, flags, 0666, "fopen");
    return descriptor < 0 ? 0 : stream_of(descriptor, mode);
}
FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }
FILE* fdopen(int descriptor, const char* mode) {
    return tracked(descriptor) ? stream_of(descriptor, mode) : REAL(fdopen)(descriptor, mode);
}
int fileno(FILE* stream) {
    for (int s = 0; s < STREAMS; s++)
        if (streams[s].stream == stream) return streams[s].descriptor;
    return REAL(fileno)(stream);
}
