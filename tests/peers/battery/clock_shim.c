/* Adds an offset, a double of seconds in the file that CLOCK_OFFSET names, to the wall clock of a process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *shared;
static int is_tried;

static double offset(void) {
  if (!is_tried) {
    const char *path = getenv("CLOCK_OFFSET");
    is_tried = 1;
    if (path) {
      int file = open(path, O_RDONLY);
      if (file >= 0) {
        void *memory = mmap(0, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        if (memory != MAP_FAILED) shared = memory;
        close(file);
      }
    }
  }
  return shared ? *shared : 0;
}

int clock_gettime(clockid_t clock, struct timespec *when) {
  int result = syscall(SYS_clock_gettime, clock, when);
  double ahead;
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && (ahead = offset())) {
    long long nanoseconds = when->tv_sec * 1000000000LL + when->tv_nsec + (long long)(ahead * 1e9);
    when->tv_sec = nanoseconds / 1000000000;
    when->tv_nsec = nanoseconds % 1000000000;
  }
  return result;
}

int gettimeofday(struct timeval *when, void *zone) {
  struct timespec now;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  (void)zone;
  when->tv_sec = now.tv_sec;
  when->tv_usec = now.tv_nsec / 1000;
  return result;
}

time_t time(time_t *when) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (when) *when = now.tv_sec;
  return now.tv_sec;
}
