/* A stand-in for libnvidia-ml.so.1, driven by a text file.
 *
 * DDPTOP_STUB_NVML_STATE names the state file (format: driver.py beside this file), which is read
 * again whenever it changed. DDPTOP_STUB_NVML_LOG, where set, names a file that gets one line per
 * call: `<monotonic ms> <pid> <function> <device index or -> <status>`.
 *
 * A handle that has seen its device lost stays dead, even when the device is back: as with the real
 * driver, a client has to look the device up again.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 96
#define MAX_PROCESSES 96
#define MAX_ERRORS 48
#define MAX_XIDS 64
#define MAX_HANDLES 16384

typedef int nvml_t;
enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  TIMEOUT = 10,
  GPU_IS_LOST = 15,
  VERSION_MISMATCH = 25,
};
/* instead of a status: the call never returns, or ends the process */
enum { HANG = -1, CRASH = -2 };
#define XID_EVENT 8ULL

typedef struct {
  unsigned pid, util_pid; /* the latter in the driver's own namespace, for the utilization */
  long long mem;
  int graphics, sm_util;
} process_t;

typedef struct {
  char function[80];
  int status;
} forced_t;

typedef struct {
  unsigned long long seq, code;
} xid_t;

/* every number: -1 means that the device does not support the query */
typedef struct {
  char name[96], uuid[96], parent[96], pci[32], serial[32];
  int index, minor, lost;
  long long mem_total, mem_used, mem_reserved, power_mw, power_limit_mw, power_default_mw;
  long long util, mem_util, temperature, temperature_slowdown, fan, pstate, sm_clock, mem_clock;
  long long max_sm_clock, max_mem_clock, reasons, ecc_uncorrected, ecc_corrected, persistence;
  long long compute_mode, display_active, mig_mode, encoder, decoder, pcie_kbps, pcie_rx_kbps;
  long long energy_mj, remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed;
  long long nvlink_count, nvlink_tx_kib, nvlink_rx_kib, util_age_ms, xid_events;
  int n_processes, n_errors, n_xids;
  process_t processes[MAX_PROCESSES];
  forced_t errors[MAX_ERRORS];
  xid_t xids[MAX_XIDS];
} gpu_t;

typedef struct {
  char driver[80];
  int cuda, init_status, slow_ms, generation, stale_status, v3_of_535, overrun, n_gpus, n_errors;
  forced_t errors[MAX_ERRORS];
  gpu_t gpus[MAX_GPUS];
} state_t;

typedef struct {
  char uuid[96];
  int dead;
} handle_t;

typedef struct {
  handle_t *device;
  unsigned long long seen;
} watch_t;

typedef struct {
  int n;
  watch_t watches[MAX_GPUS];
} event_set_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static state_t state;
static int initialized, generation; /* the driver's, when this process started NVML */
static struct stat loaded;
static handle_t handles[MAX_HANDLES];
static int n_handles;
static __thread gpu_t gpu; /* the device of the call in progress, copied under the lock */

static const struct {
  const char *key;
  size_t offset;
} NUMBERS[] = {
#define N(field) {#field, offsetof(gpu_t, field)}
    N(mem_total), N(mem_used), N(mem_reserved), N(power_mw), N(power_limit_mw),
    N(power_default_mw), N(util), N(mem_util), N(temperature), N(temperature_slowdown), N(fan),
    N(pstate), N(sm_clock), N(mem_clock), N(max_sm_clock), N(max_mem_clock), N(reasons),
    N(ecc_uncorrected), N(ecc_corrected), N(persistence), N(compute_mode), N(display_active),
    N(mig_mode), N(encoder), N(decoder), N(pcie_kbps), N(pcie_rx_kbps), N(energy_mj),
    N(remapped_correctable), N(remapped_uncorrectable), N(remap_pending), N(remap_failed),
    N(nvlink_count), N(nvlink_tx_kib), N(nvlink_rx_kib), N(util_age_ms), N(xid_events),
#undef N
};

static void set_text(char *to, size_t size, const char *value) { snprintf(to, size, "%s", value); }

static void add_error(forced_t *errors, int *n, const char *value) {
  if (*n < MAX_ERRORS && sscanf(value, "%79s %d", errors[*n].function, &errors[*n].status) == 2)
    (*n)++;
}

static void parse_gpu_line(gpu_t *g, const char *key, const char *value) {
  if (!strcmp(key, "name")) set_text(g->name, sizeof g->name, value);
  else if (!strcmp(key, "uuid")) set_text(g->uuid, sizeof g->uuid, value);
  else if (!strcmp(key, "parent")) set_text(g->parent, sizeof g->parent, value);
  else if (!strcmp(key, "pci")) set_text(g->pci, sizeof g->pci, value);
  else if (!strcmp(key, "serial")) set_text(g->serial, sizeof g->serial, value);
  else if (!strcmp(key, "minor")) g->minor = atoi(value);
  else if (!strcmp(key, "lost")) g->lost = atoi(value);
  else if (!strcmp(key, "error")) add_error(g->errors, &g->n_errors, value);
  else if (!strcmp(key, "xid")) {
    xid_t *x = &g->xids[g->n_xids];
    if (g->n_xids < MAX_XIDS && sscanf(value, "%llu %llu", &x->seq, &x->code) == 2) g->n_xids++;
  } else if (!strcmp(key, "process")) {
    process_t *p = &g->processes[g->n_processes];
    char kind[16];
    if (g->n_processes < MAX_PROCESSES &&
        sscanf(value, "%u %lld %15s %d %u", &p->pid, &p->mem, kind, &p->sm_util, &p->util_pid) == 5) {
      p->graphics = !strcmp(kind, "graphics");
      g->n_processes++;
    }
  } else {
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
      if (!strcmp(key, NUMBERS[i].key))
        *(long long *)((char *)g + NUMBERS[i].offset) = atoll(value);
  }
}

static void load(void) {
  const char *path = getenv("DDPTOP_STUB_NVML_STATE");
  struct stat now;
  if (!path || stat(path, &now)) return;
  if (now.st_ino == loaded.st_ino && now.st_size == loaded.st_size &&
      now.st_mtim.tv_sec == loaded.st_mtim.tv_sec && now.st_mtim.tv_nsec == loaded.st_mtim.tv_nsec)
    return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  static state_t next;
  memset(&next, 0, sizeof next);
  gpu_t *g = NULL;
  char line[512];
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    char *value = strchr(line, ' ');
    if (!value) continue;
    *value++ = 0;
    if (!strcmp(line, "gpu")) {
      if (next.n_gpus == MAX_GPUS) break;
      g = &next.gpus[next.n_gpus++];
      g->index = g->minor = atoi(value);
      for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        *(long long *)((char *)g + NUMBERS[i].offset) = -1;
    } else if (g) parse_gpu_line(g, line, value);
    else if (!strcmp(line, "driver")) set_text(next.driver, sizeof next.driver, value);
    else if (!strcmp(line, "cuda")) next.cuda = atoi(value);
    else if (!strcmp(line, "init")) next.init_status = atoi(value);
    else if (!strcmp(line, "slow_ms")) next.slow_ms = atoi(value);
    else if (!strcmp(line, "generation")) next.generation = atoi(value);
    else if (!strcmp(line, "stale_status")) next.stale_status = atoi(value);
    else if (!strcmp(line, "v3_of_535")) next.v3_of_535 = atoi(value);
    else if (!strcmp(line, "overrun")) next.overrun = atoi(value);
    else if (!strcmp(line, "error")) add_error(next.errors, &next.n_errors, value);
  }
  fclose(file);
  loaded = now;
  state = next;
}

static void write_log(const char *function, const char *device, nvml_t status) {
  const char *path = getenv("DDPTOP_STUB_NVML_LOG");
  if (!path) return;
  int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  char line[200];
  int n = snprintf(line, sizeof line, "%lld %d %s %s %d\n",
                   (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000, (int)getpid(), function,
                   device, status);
  if (write(fd, line, (size_t)n) < 0) { /* a lost line only makes a count too small */ }
  close(fd);
}

/* waits as long as the driver takes, for ever, or ends the process */
static nvml_t leave(nvml_t status, int slow_ms) {
  if (slow_ms > 0) usleep((useconds_t)slow_ms * 1000);
  if (status == CRASH) raise(SIGSEGV);
  while (status == HANG) pause();
  return status;
}

static nvml_t forced(const forced_t *errors, int n, const char *function) {
  for (int i = 0; i < n; i++)
    if (!strcmp(errors[i].function, function)) return errors[i].status;
  return SUCCESS;
}

static gpu_t *find(const char *uuid) {
  for (int i = 0; i < state.n_gpus; i++)
    if (!strcmp(state.gpus[i].uuid, uuid)) return &state.gpus[i];
  return NULL;
}

/* What every call does first. With a device, `gpu` holds its state when this returns SUCCESS. */
static nvml_t enter(const char *function, handle_t *device) {
  pthread_mutex_lock(&lock);
  load();
  nvml_t status = forced(state.errors, state.n_errors, function);
  char name[16] = "-";
  if (!status && !initialized) status = UNINITIALIZED;
  if (!status && generation != state.generation) status = state.stale_status;
  if (device) {
    const gpu_t *g = find(device->uuid);
    if (g) snprintf(name, sizeof name, "%d", g->index);
    if (!g || g->lost) device->dead = 1;
    if (!status && device->dead) status = GPU_IS_LOST;
    if (g) {
      gpu = *g;
      if (!status) status = forced(g->errors, g->n_errors, function);
    }
  }
  int slow_ms = state.slow_ms;
  write_log(function, name, status);
  pthread_mutex_unlock(&lock);
  return leave(status, slow_ms);
}

#define ENTER(device)                                  \
  do {                                                 \
    nvml_t entered = enter(__func__, device);          \
    if (entered) return entered;                       \
  } while (0)

/* what is told of whole devices only */
#define ENTER_WHOLE(device)                  \
  do {                                       \
    ENTER(device);                           \
    if (is_mig(&gpu)) return NOT_SUPPORTED;  \
  } while (0)

static int is_mig(const gpu_t *g) { return g->parent[0] != 0; }

static nvml_t put(unsigned *out, long long value) {
  if (value < 0) return NOT_SUPPORTED;
  *out = (unsigned)value;
  return SUCCESS;
}

static nvml_t copy(char *out, unsigned size, const char *text) {
  if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
  strcpy(out, text);
  return SUCCESS;
}

/* ---- library ---- */

EXPORT nvml_t nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  load();
  int status = state.init_status, slow_ms = state.slow_ms;
  int stale = generation != state.generation && state.stale_status == UNINITIALIZED;
  if (!status && (!initialized++ || stale)) generation = state.generation;
  write_log("nvmlInitWithFlags", "-", status);
  pthread_mutex_unlock(&lock);
  return leave(status, slow_ms);
}
EXPORT nvml_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT nvml_t nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT nvml_t nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  nvml_t status = initialized ? SUCCESS : UNINITIALIZED;
  if (initialized) initialized--;
  write_log(__func__, "-", status);
  pthread_mutex_unlock(&lock);
  return status;
}

EXPORT const char *nvmlErrorString(nvml_t status) {
  switch (status) {
    case SUCCESS: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case 13: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}

EXPORT nvml_t nvmlSystemGetDriverVersion(char *out, unsigned size) {
  ENTER(NULL);
  return copy(out, size, state.driver);
}
EXPORT nvml_t nvmlSystemGetNVMLVersion(char *out, unsigned size) {
  ENTER(NULL);
  return copy(out, size, state.driver);
}
EXPORT nvml_t nvmlSystemGetCudaDriverVersion(int *out) {
  ENTER(NULL);
  *out = state.cuda;
  return SUCCESS;
}
EXPORT nvml_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
  return nvmlSystemGetCudaDriverVersion(out);
}

/* ---- devices ---- */

static nvml_t hand_out(const gpu_t *g, handle_t **out) {
  if (!g) return NOT_FOUND;
  if (g->lost) return GPU_IS_LOST;
  for (int i = 0; i < n_handles; i++)
    if (!handles[i].dead && !strcmp(handles[i].uuid, g->uuid)) {
      *out = &handles[i];
      return SUCCESS;
    }
  if (n_handles == MAX_HANDLES) return 999;
  *out = &handles[n_handles++];
  set_text((*out)->uuid, sizeof(*out)->uuid, g->uuid);
  return SUCCESS;
}

EXPORT nvml_t nvmlDeviceGetCount_v2(unsigned *out) {
  ENTER(NULL);
  *out = 0;
  for (int i = 0; i < state.n_gpus; i++) *out += !is_mig(&state.gpus[i]);
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

EXPORT nvml_t nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t **out) {
  ENTER(NULL);
  for (int i = 0; i < state.n_gpus; i++) {
    const gpu_t *g = &state.gpus[i];
    if (is_mig(g) || g->index != (int)index) continue;
    nvml_t status = forced(g->errors, g->n_errors, __func__);
    return status ? status : hand_out(g, out);
  }
  return INVALID_ARGUMENT;
}
EXPORT nvml_t nvmlDeviceGetHandleByIndex(unsigned index, handle_t **out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}
EXPORT nvml_t nvmlDeviceGetHandleByUUID(const char *uuid, handle_t **out) {
  ENTER(NULL);
  return hand_out(find(uuid), out);
}
EXPORT nvml_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, handle_t **out) {
  ENTER(NULL);
  for (int i = 0; i < state.n_gpus; i++)
    if (!strcasecmp(state.gpus[i].pci, bus_id)) return hand_out(&state.gpus[i], out);
  return NOT_FOUND;
}
EXPORT nvml_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, handle_t **out) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, out);
}
EXPORT nvml_t nvmlDeviceGetName(handle_t *d, char *out, unsigned size) {
  ENTER(d);
  return copy(out, size, gpu.name);
}
EXPORT nvml_t nvmlDeviceGetUUID(handle_t *d, char *out, unsigned size) {
  ENTER(d);
  return copy(out, size, gpu.uuid);
}
EXPORT nvml_t nvmlDeviceGetSerial(handle_t *d, char *out, unsigned size) {
  ENTER(d);
  return gpu.serial[0] ? copy(out, size, gpu.serial) : NOT_SUPPORTED;
}
EXPORT nvml_t nvmlDeviceGetIndex(handle_t *d, unsigned *out) {
  ENTER(d);
  return put(out, gpu.index);
}
EXPORT nvml_t nvmlDeviceGetMinorNumber(handle_t *d, unsigned *out) {
  ENTER(d);
  return put(out, gpu.minor);
}

typedef struct {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
} pci_t;

EXPORT nvml_t nvmlDeviceGetPciInfo_v3(handle_t *d, pci_t *out) {
  ENTER(d);
  memset(out, 0, sizeof *out);
  if (sscanf(gpu.pci, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return NOT_SUPPORTED;
  out->device_id = 0x233010DE;
  snprintf(out->bus_id, sizeof out->bus_id, "%s", gpu.pci);
  snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0",
           out->domain & 0xFFFF, out->bus & 0xFF, out->device & 0xFF);
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceGetPciInfo_v2(handle_t *d, pci_t *out) {
  return nvmlDeviceGetPciInfo_v3(d, out);
}

typedef struct {
  unsigned long long total, free, used;
} memory_v1_t;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} memory_v2_t;

EXPORT nvml_t nvmlDeviceGetMemoryInfo(handle_t *d, memory_v1_t *out) {
  ENTER(d);
  if (gpu.mem_total < 0 || gpu.mem_used < 0) return NOT_SUPPORTED;
  long long reserved = gpu.mem_reserved > 0 ? gpu.mem_reserved : 0;
  out->total = (unsigned long long)gpu.mem_total;
  out->used = (unsigned long long)(gpu.mem_used + reserved);
  out->free = out->total - out->used;
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceGetMemoryInfo_v2(handle_t *d, memory_v2_t *out) {
  ENTER(d);
  if (out->version != (sizeof *out | (2u << 24))) return VERSION_MISMATCH;
  if (gpu.mem_total < 0 || gpu.mem_used < 0) return NOT_SUPPORTED;
  out->total = (unsigned long long)gpu.mem_total;
  out->reserved = (unsigned long long)(gpu.mem_reserved > 0 ? gpu.mem_reserved : 0);
  out->used = (unsigned long long)gpu.mem_used;
  out->free = out->total - out->reserved - out->used;
  return SUCCESS;
}

typedef struct {
  unsigned long long total, free, used;
} bar1_t;
EXPORT nvml_t nvmlDeviceGetBAR1MemoryInfo(handle_t *d, bar1_t *out) {
  ENTER(d);
  out->total = 128ull << 30;
  out->used = 1 << 20;
  out->free = out->total - out->used;
  return SUCCESS;
}

typedef struct {
  unsigned gpu, memory;
} utilization_t;

EXPORT nvml_t nvmlDeviceGetUtilizationRates(handle_t *d, utilization_t *out) {
  ENTER_WHOLE(d);
  if (gpu.util < 0 || gpu.mig_mode > 0) return NOT_SUPPORTED;
  out->gpu = (unsigned)gpu.util;
  out->memory = (unsigned)(gpu.mem_util > 0 ? gpu.mem_util : 0);
  return SUCCESS;
}

typedef struct {
  unsigned version, sensor;
  int temperature;
} temperature_t;

EXPORT nvml_t nvmlDeviceGetTemperature(handle_t *d, unsigned sensor, unsigned *out) {
  (void)sensor;
  ENTER_WHOLE(d);
  return put(out, gpu.temperature);
}
EXPORT nvml_t nvmlDeviceGetTemperatureV(handle_t *d, temperature_t *out) {
  ENTER_WHOLE(d);
  if (gpu.temperature < 0) return NOT_SUPPORTED;
  out->temperature = (int)gpu.temperature;
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceGetTemperatureThreshold(handle_t *d, unsigned kind, unsigned *out) {
  (void)kind;
  ENTER_WHOLE(d);
  return put(out, gpu.temperature_slowdown);
}

#define NUMBER(function, value)                              \
  EXPORT nvml_t function(handle_t *d, unsigned *out) {       \
    ENTER_WHOLE(d);                                                \
    return put(out, value);                                  \
  }
NUMBER(nvmlDeviceGetPowerUsage, gpu.power_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, gpu.power_limit_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, gpu.power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, gpu.power_default_mw)
NUMBER(nvmlDeviceGetFanSpeed, gpu.fan)
NUMBER(nvmlDeviceGetPerformanceState, gpu.pstate)
NUMBER(nvmlDeviceGetPersistenceMode, gpu.persistence)
NUMBER(nvmlDeviceGetComputeMode, gpu.compute_mode)
NUMBER(nvmlDeviceGetDisplayActive, gpu.display_active)
NUMBER(nvmlDeviceGetDisplayMode, gpu.display_active)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, gpu.mig_mode < 0 ? 0 : 7)

EXPORT nvml_t nvmlDeviceGetPowerManagementLimitConstraints(handle_t *d, unsigned *low,
                                                           unsigned *high) {
  ENTER(d);
  nvml_t status = put(low, gpu.power_default_mw < 0 ? -1 : gpu.power_default_mw / 3);
  return status ? status : put(high, gpu.power_default_mw);
}

/* clock kinds: 0 graphics, 1 SM, 2 memory, 3 video */
EXPORT nvml_t nvmlDeviceGetClockInfo(handle_t *d, unsigned kind, unsigned *out) {
  ENTER_WHOLE(d);
  return put(out, kind == 2 ? gpu.mem_clock : gpu.sm_clock);
}
EXPORT nvml_t nvmlDeviceGetMaxClockInfo(handle_t *d, unsigned kind, unsigned *out) {
  ENTER_WHOLE(d);
  return put(out, kind == 2 ? gpu.max_mem_clock : gpu.max_sm_clock);
}

EXPORT nvml_t nvmlDeviceGetCurrentClocksEventReasons(handle_t *d, unsigned long long *out) {
  ENTER_WHOLE(d);
  if (gpu.reasons < 0) return NOT_SUPPORTED;
  *out = (unsigned long long)gpu.reasons;
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceGetCurrentClocksThrottleReasons(handle_t *d, unsigned long long *out) {
  ENTER_WHOLE(d);
  if (gpu.reasons < 0) return NOT_SUPPORTED;
  *out = (unsigned long long)gpu.reasons;
  return SUCCESS;
}

/* kind 0 corrected, 1 uncorrected; only the volatile counters are known */
EXPORT nvml_t nvmlDeviceGetTotalEccErrors(handle_t *d, unsigned kind, unsigned counter,
                                          unsigned long long *out) {
  ENTER(d);
  long long value = kind == 1 ? gpu.ecc_uncorrected : gpu.ecc_corrected;
  if (counter != 0 || value < 0) return NOT_SUPPORTED;
  *out = (unsigned long long)value;
  return SUCCESS;
}

EXPORT nvml_t nvmlDeviceGetEncoderUtilization(handle_t *d, unsigned *out, unsigned *period_us) {
  ENTER_WHOLE(d);
  *period_us = 167000;
  return put(out, gpu.encoder);
}
EXPORT nvml_t nvmlDeviceGetDecoderUtilization(handle_t *d, unsigned *out, unsigned *period_us) {
  ENTER_WHOLE(d);
  *period_us = 167000;
  return put(out, gpu.decoder);
}
/* counter 0 sent, 1 received; the driver looks at the bus for 20 ms */
EXPORT nvml_t nvmlDeviceGetPcieThroughput(handle_t *d, unsigned counter, unsigned *out) {
  ENTER_WHOLE(d);
  if (gpu.pcie_kbps < 0) return NOT_SUPPORTED;
  usleep(20000);
  return put(out, counter == 1 && gpu.pcie_rx_kbps >= 0 ? gpu.pcie_rx_kbps : gpu.pcie_kbps);
}
EXPORT nvml_t nvmlDeviceGetTotalEnergyConsumption(handle_t *d, unsigned long long *out) {
  ENTER_WHOLE(d);
  if (gpu.energy_mj < 0) return NOT_SUPPORTED;
  *out = (unsigned long long)gpu.energy_mj;
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceGetRemappedRows(handle_t *d, unsigned *correctable, unsigned *uncorrectable,
                                        unsigned *pending, unsigned *failed) {
  ENTER_WHOLE(d);
  if (gpu.remapped_uncorrectable < 0) return NOT_SUPPORTED;
  *correctable = (unsigned)(gpu.remapped_correctable > 0 ? gpu.remapped_correctable : 0);
  *uncorrectable = (unsigned)gpu.remapped_uncorrectable;
  *pending = gpu.remap_pending > 0;
  *failed = gpu.remap_failed > 0;
  return SUCCESS;
}

typedef struct {
  unsigned field, scope;
  long long at_us, latency_us;
  unsigned kind, status;
  union {
    double number;
    unsigned ui;
    unsigned long long ull;
  } value;
} field_value_t;
enum { LINK_COUNT = 91, DATA_TX = 138, DATA_RX = 139 };

/* the counters of a device are shared out evenly over its links */
static void read_field(field_value_t *v) {
  long long count = gpu.nvlink_count;
  v->status = SUCCESS;
  if (v->field == LINK_COUNT && count >= 0) {
    v->kind = 1;
    v->value.ui = (unsigned)count;
  } else if ((v->field == DATA_TX || v->field == DATA_RX) && count > 0) {
    long long total = v->field == DATA_TX ? gpu.nvlink_tx_kib : gpu.nvlink_rx_kib;
    if (v->scope >= count) v->status = INVALID_ARGUMENT;
    else if (total < 0) v->status = NOT_SUPPORTED;
    else {
      v->kind = 3;
      v->value.ull = (unsigned long long)(total / count + (v->scope == 0 ? total % count : 0));
    }
  } else v->status = NOT_SUPPORTED;
}
EXPORT nvml_t nvmlDeviceGetFieldValues(handle_t *d, int count, field_value_t *values) {
  ENTER_WHOLE(d);
  for (int i = 0; i < count; i++) read_field(&values[i]);
  /* real drivers were seen to write one entry too many */
  if (state.overrun) memset(&values[count], 0x5a, sizeof *values);
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceGetDriverModel(handle_t *d, unsigned *now, unsigned *pending) {
  (void)now, (void)pending;
  ENTER(d);
  return NOT_SUPPORTED;
}
EXPORT nvml_t nvmlDeviceGetDriverModel_v2(handle_t *d, unsigned *now, unsigned *pending) {
  return nvmlDeviceGetDriverModel(d, now, pending);
}
EXPORT nvml_t nvmlDeviceGetCudaComputeCapability(handle_t *d, int *major, int *minor) {
  ENTER(d);
  *major = 9;
  *minor = 0;
  return SUCCESS;
}

/* ---- MIG ---- */

EXPORT nvml_t nvmlDeviceIsMigDeviceHandle(handle_t *d, unsigned *out) {
  ENTER(d);
  *out = (unsigned)is_mig(&gpu);
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceGetMigMode(handle_t *d, unsigned *now, unsigned *pending) {
  ENTER_WHOLE(d);
  if (gpu.mig_mode < 0) return NOT_SUPPORTED;
  *now = *pending = (unsigned)gpu.mig_mode;
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceGetMigDeviceHandleByIndex(handle_t *d, unsigned index, handle_t **out) {
  ENTER(d);
  for (int i = 0; i < state.n_gpus; i++)
    if (!strcmp(state.gpus[i].parent, gpu.uuid) && state.gpus[i].minor == (int)index)
      return hand_out(&state.gpus[i], out);
  return NOT_FOUND;
}
EXPORT nvml_t nvmlDeviceGetGpuInstanceId(handle_t *d, unsigned *out) {
  ENTER(d);
  return put(out, is_mig(&gpu) ? gpu.minor + 1 : -1);
}
EXPORT nvml_t nvmlDeviceGetComputeInstanceId(handle_t *d, unsigned *out) {
  ENTER(d);
  return put(out, is_mig(&gpu) ? 0 : -1);
}
EXPORT nvml_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle_t *d, handle_t **out) {
  ENTER(d);
  return is_mig(&gpu) ? hand_out(find(gpu.parent), out) : INVALID_ARGUMENT;
}

/* ---- processes ---- */

typedef struct {
  unsigned pid;
  unsigned long long mem;
} process_v1_t;
typedef struct {
  unsigned pid;
  unsigned long long mem;
  unsigned gpu_instance, compute_instance;
} process_v2_t;

typedef struct {
  unsigned pid;
  unsigned long long mem;
  unsigned gpu_instance, compute_instance;
  unsigned long long protected_mem;
} process_535_t;

static nvml_t list_processes(int graphics, unsigned *count, void *out, int version) {
  unsigned n = 0;
  for (int i = 0; i < gpu.n_processes; i++) n += gpu.processes[i].graphics == graphics;
  if (n == 0 || *count < n || !out) {
    unsigned had = *count;
    *count = n;
    if (n == 0) return SUCCESS;
    if (!out || had < n) return INSUFFICIENT_SIZE;
  }
  unsigned written = 0;
  for (int i = 0; i < gpu.n_processes; i++) {
    const process_t *p = &gpu.processes[i];
    if (p->graphics != graphics) continue;
    unsigned long long mem = p->mem < 0 ? ~0ULL : (unsigned long long)p->mem;
    if (version == 1)
      ((process_v1_t *)out)[written++] = (process_v1_t){p->pid, mem};
    else if (version == 3 && state.v3_of_535)
      ((process_535_t *)out)[written++] = (process_535_t){p->pid, mem, ~0u, ~0u, 0};
    else
      ((process_v2_t *)out)[written++] = (process_v2_t){p->pid, mem, ~0u, ~0u};
  }
  *count = written;
  return SUCCESS;
}

#define PROCESSES(function, graphics, version)                           \
  EXPORT nvml_t function(handle_t *d, unsigned *count, void *out) {      \
    ENTER(d);                                                            \
    return list_processes(graphics, count, out, version);                \
  }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, 0, 1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 0, 2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 0, 3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, 1, 1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 1, 2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 1, 3)

typedef struct {
  unsigned pid;
  unsigned long long time_us;
  unsigned sm, mem, encoder, decoder;
} process_util_t;

EXPORT nvml_t nvmlDeviceGetProcessUtilization(handle_t *d, process_util_t *out, unsigned *count,
                                              unsigned long long since_us) {
  (void)since_us; /* real drivers return older samples as well */
  ENTER_WHOLE(d);
  if (gpu.mig_mode > 0) return NOT_SUPPORTED;
  unsigned n = 0;
  for (int i = 0; i < gpu.n_processes; i++) n += gpu.processes[i].sm_util >= 0;
  if (n == 0) return NOT_FOUND;
  if (!out || *count < n) {
    *count = n;
    return INSUFFICIENT_SIZE;
  }
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  unsigned long long at_us = (unsigned long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
  if (gpu.util_age_ms > 0) at_us -= (unsigned long long)gpu.util_age_ms * 1000;
  n = 0;
  for (int i = 0; i < gpu.n_processes; i++)
    if (gpu.processes[i].sm_util >= 0)
      out[n++] = (process_util_t){gpu.processes[i].util_pid, at_us,
                                  (unsigned)gpu.processes[i].sm_util, 0, 0, 0};
  *count = n;
  return SUCCESS;
}

/* ---- events ---- */

typedef struct {
  handle_t *device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
} event_t;

EXPORT nvml_t nvmlDeviceGetSupportedEventTypes(handle_t *d, unsigned long long *out) {
  ENTER_WHOLE(d);
  *out = gpu.xid_events ? XID_EVENT : 0;
  return SUCCESS;
}
EXPORT nvml_t nvmlEventSetCreate(event_set_t **out) {
  ENTER(NULL);
  *out = calloc(1, sizeof **out);
  return SUCCESS;
}
EXPORT nvml_t nvmlEventSetFree(event_set_t *set) {
  ENTER(NULL);
  free(set);
  return SUCCESS;
}
EXPORT nvml_t nvmlDeviceRegisterEvents(handle_t *d, unsigned long long types, event_set_t *set) {
  ENTER(d);
  if (!(types & XID_EVENT) || set->n == MAX_GPUS) return NOT_SUPPORTED;
  watch_t *watch = &set->watches[set->n++];
  watch->device = d;
  for (int i = 0; i < gpu.n_xids; i++)
    if (gpu.xids[i].seq > watch->seen) watch->seen = gpu.xids[i].seq;
  return SUCCESS;
}
EXPORT nvml_t nvmlEventSetWait_v2(event_set_t *set, event_t *out, unsigned timeout_ms) {
  ENTER(NULL);
  int lost = 0;
  for (unsigned waited_ms = 0;; waited_ms += 10) {
    pthread_mutex_lock(&lock);
    load();
    for (int w = 0; w < set->n; w++) {
      const gpu_t *g = find(set->watches[w].device->uuid);
      for (int i = 0; g && i < g->n_xids; i++)
        if (g->xids[i].seq > set->watches[w].seen) {
          set->watches[w].seen = g->xids[i].seq;
          *out = (event_t){set->watches[w].device, XID_EVENT, g->xids[i].code, ~0u, ~0u};
          pthread_mutex_unlock(&lock);
          return SUCCESS;
        }
      lost |= !g || g->lost;
    }
    pthread_mutex_unlock(&lock);
    if (lost) return GPU_IS_LOST;
    if (waited_ms >= timeout_ms) return TIMEOUT;
    usleep(10000);
  }
}
EXPORT nvml_t nvmlEventSetWait(event_set_t *set, event_t *out, unsigned timeout_ms) {
  return nvmlEventSetWait_v2(set, out, timeout_ms);
}
