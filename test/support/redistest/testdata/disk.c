/* Preloaded into a process, this makes its disk full or hang: the file $DISK_STATE holds 0, 1 or 2 as 8 bytes in the order of the
 * machine. At 1 nothing can be written to files, at 2 nothing that writes or flushes one returns until it is 0 or 1. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int64_t *state;

__attribute__((constructor)) static void map(void) {
	const char *path = getenv("DISK_STATE");
	int file = path ? open(path, O_RDONLY) : -1;
	void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *state, PROT_READ, MAP_SHARED, file, 0);
	if (at == MAP_FAILED)
		abort();
	state = at;
}

/* Waits while the disk hangs, and reports whether it is full. */
static int full(int fd) {
	struct stat about;
	if (!state || !*state || fstat(fd, &about) || !S_ISREG(about.st_mode))
		return 0;
	while (*state == 2)
		usleep(2000);
	return *state == 1;
}

ssize_t write(int fd, const void *bytes, size_t size) {
	if (full(fd)) {
		errno = ENOSPC;
		return -1;
	}
	return syscall(SYS_write, fd, bytes, size);
}

int fsync(int fd) {
	full(fd);
	return syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
	full(fd);
	return syscall(SYS_fdatasync, fd);
}
