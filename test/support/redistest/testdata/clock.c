/* Preloaded into a process, this moves its wall clock by the seconds that the file $CLOCK_OFFSET holds as 8 bytes in the order of
 * the machine, as they are at each moment. Redis reads that clock by gettimeofday and time, Envoy by clock_gettime; the monotonic
 * clock is left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map(void) {
	const char *path = getenv("CLOCK_OFFSET");
	int file = path ? open(path, O_RDONLY) : -1;
	void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
	if (at == MAP_FAILED)
		abort();
	offset = at;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
	(void)zone;
	struct timespec now;
	if (syscall(SYS_clock_gettime, CLOCK_REALTIME, &now))
		return -1;
	tv->tv_sec = now.tv_sec + (offset ? *offset : 0);
	tv->tv_usec = now.tv_nsec / 1000;
	return 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
	if (syscall(SYS_clock_gettime, id, now))
		return -1;
	if (id == CLOCK_REALTIME)
		now->tv_sec += offset ? *offset : 0;
	return 0;
}

time_t time(time_t *at) {
	struct timeval now;
	gettimeofday(&now, NULL);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}
