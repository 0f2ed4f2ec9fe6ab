/* doctor_checks.c - what `ordo doctor` looks at: programs, MPI, memory between ranks, BLAS.
 *
 * Each check returns one line of text and a verdict. A check that cannot be made says so and is a warning, never a silent pass.
 */
#include "doctor.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/statvfs.h>
#include <unistd.h>

void doctor_add(GPtrArray *checks, int verdict, const char *topic, const char *format, ...)
{
  doctor_check *check = g_new0(doctor_check, 1);
  va_list args;
  va_start(args, format);
  check->verdict = verdict;
  check->topic = topic;
  check->text = g_strdup_vprintf(format, args);
  va_end(args);
  g_strchomp(check->text);
  g_ptr_array_add(checks, check);
}

void doctor_check_free(gpointer data)
{
  doctor_check *check = data;
  g_free(check->text);
  g_free(check);
}

/* Standard output of a command, null if it could not be run or failed. */
static char *output_of(const char *const *command, char **errors)
{
  char *text = NULL;
  int status = 0;
  if (!g_spawn_sync(NULL, (char **)command, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, &text, errors, &status, NULL))
    return NULL;
  if (g_spawn_check_wait_status(status, NULL))
    return text;
  g_free(text);
  return NULL;
}

void doctor_process(GPtrArray *checks, const char *program)
{
  g_autofree char *example = NULL;
  gboolean privileged = getauxval(AT_SECURE) != 0;
  cpu_set_t set;
  int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;

  doctor_add(checks, privileged ? DOCTOR_WARNING : DOCTOR_GOOD, "privilege",
             privileged ? "uid %u, privileged: environment and home are ignored" : "uid %u, not privileged", (unsigned)geteuid());
  doctor_add(checks, usable ? DOCTOR_GOOD : DOCTOR_WARNING, "cores", "%d usable by this process, %ld in the machine", usable,
             sysconf(_SC_NPROCESSORS_ONLN));
  int exported = cli_elf_exports(program ? program : "/proc/self/exe", &example);
  if (exported < 0)
    doctor_add(checks, program ? DOCTOR_BROKEN : DOCTOR_WARNING, "exports", "%s is no ELF file of this machine: not checked",
               program ? program : "/proc/self/exe");
  else if (exported == 0)
    doctor_add(checks, DOCTOR_GOOD, "exports", "the program offers no functions to plugins");
  else
    doctor_add(checks, DOCTOR_WARNING, "exports",
               "%s offers %d functions to plugins (such as %s): one of the same name replaces the plugin's own; link it without -rdynamic",
               program ? program : "ordo", exported, example);
}

void doctor_mpi(GPtrArray *checks)
{
  const char *const info[] = {"ompi_info", "--parsable", "-c", NULL};
  char version[512] = "";
  int length = 0;
  void *library = dlopen("libmpi.so.40", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  int (*get_version)(char *, int *) = NULL;
  if (library)
    *(void **)&get_version = dlsym(library, "MPI_Get_library_version");
  if (get_version && get_version(version, &length) == 0)
    doctor_add(checks, DOCTOR_GOOD, "mpi", "%.*s", (int)strcspn(version, ",\n"), version);
  else
    doctor_add(checks, DOCTOR_BROKEN, "mpi", "libmpi could not be loaded (package libopenmpi3 or libopenmpi40)");

  g_autofree char *mpirun = g_find_program_in_path("mpirun");
  if (mpirun)
    doctor_add(checks, DOCTOR_GOOD, "mpirun", "%s", mpirun);
  else
    doctor_add(checks, DOCTOR_BROKEN, "mpirun", "not on PATH: only one rank can be run (package openmpi-bin)");

  g_autofree char *errors = NULL;
  g_autofree char *text = output_of(info, &errors);
  if (!text)
    doctor_add(checks, DOCTOR_WARNING, "mpi threads", "unknown: ompi_info could not be run");
  else if (strstr(text, "MPI_THREAD_MULTIPLE: yes") || strstr(text, "thread_multiple:yes") || strstr(text, "threads:mpi:yes"))
    doctor_add(checks, DOCTOR_GOOD, "mpi threads", "up to MPI_THREAD_MULTIPLE; Ordo needs MPI_THREAD_FUNNELED");
  else
    doctor_add(checks, DOCTOR_GOOD, "mpi threads", "below MPI_THREAD_MULTIPLE; Ordo needs MPI_THREAD_FUNNELED");
}

void doctor_shared_memory(GPtrArray *checks)
{
  struct statvfs shm;
  const double mib = 1024.0 * 1024.0, least = 256.0;
  if (statvfs("/dev/shm", &shm) != 0) {
    doctor_add(checks, DOCTOR_WARNING, "/dev/shm", "missing: ranks exchange through slower paths");
    return;
  }
  double free_mib = (double)shm.f_bavail * (double)shm.f_frsize / mib;
  doctor_add(checks, free_mib < least ? DOCTOR_WARNING : DOCTOR_GOOD, "/dev/shm",
             free_mib < least ? "%.0f MiB free: gradients of a large model do not fit; make it larger (docker run --shm-size 2g)"
                              : "%.0f MiB free for windows shared by ranks",
             free_mib);
}

void doctor_environment(GPtrArray *checks)
{
  static const char *const prefixes[] = {"ORDO_", "OPENBLAS_", "OMP_", "OMPI_MCA_", "SLURM_NTASKS", "XDG_DATA_HOME", "NO_COLOR"};
  g_auto(GStrv) names = g_listenv();
  g_autoptr(GString) text = g_string_new(NULL);
  for (char **name = names; *name; name++)
    for (size_t i = 0; i < G_N_ELEMENTS(prefixes); i++)
      if (g_str_has_prefix(*name, prefixes[i]))
        g_string_append_printf(text, "%s%s=%s", text->len ? "  " : "", *name, g_getenv(*name));
  doctor_add(checks, DOCTOR_GOOD, "environment", "%s", text->len ? text->str : "no variable that Ordo, OpenBLAS or Open MPI reads is set");
}

void doctor_programs(GPtrArray *checks)
{
  static const char *const programs[] = {"train", "eval", "generate"};
  for (size_t i = 0; i < G_N_ELEMENTS(programs); i++) {
    g_autofree char *path = cli_program(programs[i]);
    if (!path)
      doctor_add(checks, DOCTOR_BROKEN, "program", "ordo-%s is not in %s (./dev build installs it)", programs[i], cli_libexec());
  }
}

void doctor_blas(GPtrArray *checks)
{
  g_autofree char *train = cli_program("train");
  g_autofree char *set = cli_prepare_blas();
  g_autofree char *errors = NULL;
  if (!train) {
    doctor_add(checks, DOCTOR_WARNING, "blas", "not checked: ordo-train is not installed. A run would get %s",
               *set ? set : "what is set already");
    return;
  }
  const char *const command[] = {train, "--blas-info", NULL};
  g_autofree char *text = output_of(command, &errors);
  if (text) {
    doctor_add(checks, strstr(text, "FALLBACK") ? DOCTOR_BROKEN : DOCTOR_GOOD, "blas", "%s", text);
    doctor_add(checks, DOCTOR_GOOD, "blas setting", "%s", *set ? set : "as in the environment");
  } else {
    doctor_add(checks, DOCTOR_BROKEN, "blas", "the self-test failed: %s",
               errors && *errors ? g_strchomp(errors) : "ordo-train --blas-info could not be run");
  }
}
