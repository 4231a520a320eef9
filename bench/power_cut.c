/* A disk that loses what was not fsynced: a library that is loaded before libc (LD_PRELOAD) and records each fsync.

   Under POWER_CUT_ROOT, fsync and fdatasync of a file copy its bytes, as they are when the call begins, into the folder
   POWER_CUT_SHADOW; of a folder, its listing. bench/power_cut.py makes the folder anew from these records alone.

   A record is named by inode number and time of birth, because file systems give inode numbers away again. It is written
   beside its place and renamed when the real fsync has returned, so a process that is killed leaves the old record or
   the new one. One lock (flock) orders the records of all threads and processes.
   Rule: what is not intercepted (sync, syncfs, msync, O_SYNC) makes nothing durable here, so nothing is forgiven.
   Rule: an fsync that cannot be recorded fails with EIO.

   Rule: locks of the process are left alone: SQLite's end when any descriptor of the file is closed (fcntl).

   POWER_CUT_FAULT is how the disk lies: "all", "files" or "folders" are told that they are durable, and are not; with
   "late" a file that was fsynced more than once is recorded as it was at the fsync before. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEY_BYTES 64
#define PATH_BYTES (PATH_MAX + KEY_BYTES + 16)
#define WANTED (STATX_INO | STATX_TYPE | STATX_MODE | STATX_BTIME)

static int identify(int folder, const char *name, int flags, struct statx *found, char *key)
{
    if (statx(folder, name, flags, WANTED, found))
        return -1;
    if (!(found->stx_mask & STATX_BTIME)) {
        errno = ENOTSUP;
        return -1;
    }
    snprintf(key, KEY_BYTES, "%llu-%lld.%09u", (unsigned long long)found->stx_ino,
             (long long)found->stx_btime.tv_sec, found->stx_btime.tv_nsec);
    return 0;
}

/* Write the name under which the open file is recorded into KEY; return -1 where no time of birth is known. */
int power_cut_key(int file, char *key)
{
    struct statx found;
    return identify(file, "", AT_EMPTY_PATH, &found, key);
}

static int write_all(int to, const char *data, size_t length)
{
    while (length) {
        ssize_t taken = write(to, data, length);
        if (taken < 0)
            return -1;
        data += taken;
        length -= (size_t)taken;
    }
    return 0;
}

/* Copy the file that is open as FILE, and at the path FROM. */
static int copy_file(int file, const char *from, int to)
{
    char data[1 << 16];
    ssize_t length;
    off_t at = 0;
    /* Opened anew only where it cannot be read, and SQLite can read its files. */
    int is_unreadable = (fcntl(file, F_GETFL) & O_ACCMODE) == O_WRONLY;
    int readable = is_unreadable ? open(from, O_RDONLY | O_CLOEXEC) : file;
    if (readable < 0)
        return -1;
    while ((length = pread(readable, data, sizeof data, at)) > 0) {
        at += length;
        if (write_all(to, data, (size_t)length)) {
            length = -1;
            break;
        }
    }
    if (is_unreadable)
        close(readable);
    return length < 0 ? -1 : 0;
}

/* Write each entry as "type mode key name" and a zero byte. */
static int copy_listing(const char *from, int to)
{
    struct dirent *entry;
    struct statx found;
    char key[KEY_BYTES], line[PATH_BYTES];
    int failed = 0;
    DIR *folder = opendir(from);
    if (!folder)
        return -1;
    while (!failed && (entry = readdir(folder))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (identify(dirfd(folder), entry->d_name, AT_SYMLINK_NOFOLLOW, &found, key)) {
            failed = errno != ENOENT; /* another thread has just removed it */
            continue;
        }
        int length = snprintf(line, sizeof line, "%c %o %s %s",
                              S_ISREG(found.stx_mode) ? 'f' : S_ISDIR(found.stx_mode) ? 'd' : 'o',
                              (unsigned)(found.stx_mode & 07777), key, entry->d_name);
        failed = write_all(to, line, (size_t)length + 1);
    }
    closedir(folder);
    return failed ? -1 : 0;
}

static int settle(int file, int number)
{
    return number < 0 ? 0 : (int)syscall(number, file);
}

/* Record the open file in SHADOW and call fsync (its NUMBER, -1 for none); -1 and errno if either fails. */
static int record(int file, const char *shadow, int number, int is_late)
{
    struct statx found;
    char key[KEY_BYTES], from[64], beside[PATH_BYTES], place[PATH_BYTES], pending[PATH_BYTES];
    if (identify(file, "", AT_EMPTY_PATH, &found, key))
        return -1;
    int is_folder = S_ISDIR(found.stx_mode);
    if (!is_folder && !S_ISREG(found.stx_mode))
        return settle(file, number);
    snprintf(from, sizeof from, "/proc/self/fd/%d", file);
    snprintf(beside, sizeof beside, "%s/new", shadow);
    snprintf(place, sizeof place, "%s/%s", shadow, key);
    int copy = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (copy < 0)
        return -1;
    int failed = is_folder ? copy_listing(from, copy) : copy_file(file, from, copy);
    close(copy);
    if (failed || settle(file, number))
        return -1;
    if (is_late && !is_folder && !access(place, F_OK)) {
        snprintf(pending, sizeof pending, "%s/%s.pending", shadow, key);
        if (rename(pending, place) && errno != ENOENT)
            return -1;
        return rename(beside, pending);
    }
    return rename(beside, place);
}

/* Record the open file in SHADOW as it is: for what was there before the process began. */
int power_cut_record(int file, const char *shadow)
{
    return record(file, shadow, -1, 0);
}

static int is_below(int file, const char *root)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    size_t prefix = strlen(root);
    if (length < 0)
        return 0;
    path[length] = 0;
    return !strncmp(path, root, prefix) && (path[prefix] == '/' || !path[prefix]);
}

static int is_swallowed(int file, const char *fault)
{
    struct stat found;
    if (!strcmp(fault, "all"))
        return 1;
    if (fstat(file, &found))
        return 0;
    return !strcmp(fault, S_ISDIR(found.st_mode) ? "folders" : "files");
}

/* End this process if its end is to come now: SHADOW/aim says at the next fsync of what, a file (f) or a folder (d). */
static void die_if_aimed_at(int file, const char *shadow)
{
    struct stat found;
    char path[PATH_BYTES], kind = 0;
    snprintf(path, sizeof path, "%s/aim", shadow);
    int aim = open(path, O_RDONLY | O_CLOEXEC);
    if (aim < 0)
        return;
    if (read(aim, &kind, 1) == 1 && !fstat(file, &found) && kind == (S_ISDIR(found.st_mode) ? 'd' : 'f'))
        kill(getpid(), SIGKILL);
    close(aim);
}

static int synced(int file, int number)
{
    const char *root = getenv("POWER_CUT_ROOT"), *shadow = getenv("POWER_CUT_SHADOW");
    const char *fault = getenv("POWER_CUT_FAULT");
    char path[PATH_BYTES];
    if (!root || !shadow || !is_below(file, root))
        return settle(file, number);
    die_if_aimed_at(file, shadow);
    if (fault && is_swallowed(file, fault))
        return 0;
    snprintf(path, sizeof path, "%s/lock", shadow);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int failed = lock < 0 || flock(lock, LOCK_EX) || record(file, shadow, number, fault && !strcmp(fault, "late"));
    if (failed)
        fprintf(stderr, "power_cut: an fsync was not recorded: %s\n", strerror(errno));
    if (lock >= 0)
        close(lock);
    if (failed)
        errno = EIO;
    return failed ? -1 : 0;
}

int fsync(int file)
{
    return synced(file, SYS_fsync);
}

int fdatasync(int file)
{
    return synced(file, SYS_fdatasync);
}
