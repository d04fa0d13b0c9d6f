/* A wrong clock for a program and all that it starts: LD_PRELOAD this and set CLOCK_OFF_BY to seconds, or
   CLOCK_OFF_FILE to a file that holds them and may change. Only the time of day is off; clocks by which programs
   wait are as they are. (With libfaketime 0.9.10, Python's time.sleep is an error then.) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off(void) {
  const char *text = getenv("CLOCK_OFF_BY"), *name = getenv("CLOCK_OFF_FILE");
  char found[32] = {0};
  int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
  if (file >= 0) {
    if (read(file, found, sizeof found - 1) > 0) text = found;
    close(file);
  }
  return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  if (!failed && clock == CLOCK_REALTIME) now->tv_sec += off();
  return failed;
}

time_t time(time_t *place) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (place) *place = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
