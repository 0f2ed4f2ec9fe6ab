/* launch.c - `ordo train|eval|generate`: prepares the environment, then becomes the program ordo-VERB.
 *
 * `ordo plan --estimate` is such a program too, but of one process: it plans for ranks and starts none.
 *
 * What must be true before the program starts is settled here: which BLAS kernels the CPU gets (OpenBLAS picks them while it is being
 * loaded, so setting it later is too late), one BLAS thread per rank, and how many ranks there are. With one rank, or under somebody
 * else's mpirun or srun, this process is replaced by the program; with several it stays as their parent (mpi_run.c).
 */
#include "cli.h"
#include "cpu_core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

enum { MOST_RANKS_PER_CORE = 64 };

const char *cli_libexec(void)
{
  const char *given = getauxval(AT_SECURE) ? NULL : getenv("ORDO_LIBEXEC");
  return given && *given ? given : ORDO_LIBEXECDIR;
}

char *cli_program(const char *verb)
{
  if (strchr(verb, '/') || *verb == '.' || !*verb)
    return NULL;
  g_autofree char *name = g_strconcat("ordo-", verb, NULL);
  char *path = g_build_filename(cli_libexec(), name, NULL);
  if (access(path, X_OK) == 0 && g_file_test(path, G_FILE_TEST_IS_REGULAR))
    return path;
  g_free(path);
  return NULL;
}

static void set_unless_set(const char *name, const char *value, GString *report)
{
  if (getenv(name))
    return;
  setenv(name, value, 1);
  g_string_append_printf(report, "%s%s=%s", report->len ? " " : "", name, value);
}

char *cli_prepare_blas(void)
{
  GString *report = g_string_new(NULL);
  const char *core = cpu_core_openblas(cpu_core_isa(), 0);
  if (core)
    set_unless_set("OPENBLAS_CORETYPE", core, report);
  set_unless_set("OPENBLAS_NUM_THREADS", "1", report);
  set_unless_set("OMP_NUM_THREADS", "1", report);
  return g_string_free(report, FALSE);
}

/* Ranks that somebody else started already: the value of the variable that says how many, 0 if nobody did. */
static int ranks_around_us(const char **launcher)
{
  static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"};
  for (size_t i = 0; i < G_N_ELEMENTS(variables); i++) {
    const char *value = getenv(variables[i]);
    int n = value ? atoi(value) : 0;
    if (n > 0) {
      *launcher = variables[i];
      return n;
    }
  }
  return 0;
}

/* [train] ranks of the configuration file, 0 if there is none; the program reports what is wrong with the file. */
static int ranks_of_file(const char *path)
{
  g_autoptr(GKeyFile) file = g_key_file_new();
  if (!g_file_test(path, G_FILE_TEST_IS_REGULAR) || /* opening a FIFO waits for somebody to write */
      !g_key_file_load_from_file(file, path, G_KEY_FILE_NONE, NULL))
    return 0;
  return MAX(0, g_key_file_get_integer(file, "train", "ranks", NULL));
}

/* How many ranks the words ask for: the last --ranks, else the configuration file, else 0. FALSE: no number of at least 1. */
static gboolean wanted_ranks(int argc, char **argv, int *ranks)
{
  int of_file = 0;
  *ranks = 0;
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
    const char *value = NULL;
    if (!strcmp(argv[i], "--ranks") || !strcmp(argv[i], "--train.ranks"))
      value = i + 1 < argc ? argv[++i] : "";
    else if (g_str_has_prefix(argv[i], "--ranks=") || g_str_has_prefix(argv[i], "--train.ranks="))
      value = strchr(argv[i], '=') + 1;
    else if (g_str_has_suffix(argv[i], ".ini") && *argv[i] != '-')
      of_file = ranks_of_file(argv[i]);
    if (!value)
      continue;
    gint64 n = 0;
    if (!g_ascii_string_to_signed(value, 10, 1, 1000000, &n, NULL))
      return FALSE;
    *ranks = (int)n;
  }
  if (*ranks == 0)
    *ranks = of_file;
  return TRUE;
}

static int not_installed(const ordo_cli *cli, const char *verb, const char *name)
{
  g_autofree char *what = g_strdup_printf("the program of `ordo %s` is not installed", verb);
  g_autofree char *where = g_strdup_printf("%s/ordo-%s", cli_libexec(), name);
  g_autofree char *why = g_strdup_printf("`ordo %s` runs a program of its own, and there is no executable file at that path", verb);
  cli_error(
      cli, "E-RUN-NO-PROGRAM", what, where, why,
      "install Ordo with its trainer (./dev build), or set ORDO_LIBEXEC to the directory that has it\nordo doctor shows what is installed");
  return CLI_FAILED;
}

/* `--many-ranks` is for the launcher only. */
static gboolean take_many_ranks(int *argc, char **argv)
{
  int kept = 0, n = *argc;
  gboolean ended = FALSE, many = FALSE;
  for (int i = 0; i < n; i++) {
    ended |= !strcmp(argv[i], "--");
    if (!ended && !strcmp(argv[i], "--many-ranks"))
      many = TRUE;
    else
      argv[kept++] = argv[i];
  }
  *argc = kept;
  return many;
}

static int too_many(const ordo_cli *cli, const char *verb, int ranks)
{
  int cores = cli_usable_cores();
  g_autofree char *what = g_strdup_printf("%d ranks on %d core%s", ranks, cores, cores == 1 ? "" : "s");
  g_autofree char *where = g_strdup_printf("ordo %s --ranks", verb);
  g_autofree char *why =
      g_strdup_printf("more than %d ranks per core are most likely a mistake, and can bring the machine down", MOST_RANKS_PER_CORE);
  cli_error(cli, "E-RUN-MANY-RANKS", what, where, why, "use fewer ranks, or add --many-ranks if this is meant");
  return CLI_USAGE;
}

/* Becomes the program, or runs it on several ranks. `words` begins with its path. */
static int start(ordo_cli *cli, GPtrArray *words, int ranks)
{
  const char *program = g_ptr_array_index(words, 0);
  if (cli->plugin_path) {
    g_ptr_array_add(words, (gpointer) "--plugin-path");
    g_ptr_array_add(words, cli->plugin_path);
  }
  if (cli->allow_insecure)
    g_ptr_array_add(words, (gpointer) "--allow-insecure-dir");
  g_ptr_array_add(words, NULL);

  g_free(cli_prepare_blas());
  setenv("ORDO_COLOUR_ERRORS", cli->colour_error ? "1" : "0", 1); /* the ranks write into a pipe and cannot see the terminal */
  setenv("HWLOC_HIDE_ERRORS", "2", 0); /* without /sys (containers) the topology library warns on every start, to no use */
  if (ranks > 1)
    return cli_mpi_run(cli, ranks, (const char *const *)words->pdata);
  execv(program, (char *const *)words->pdata);
  cli_error(cli, "E-RUN-NO-PROGRAM", "the program could not be started", program, g_strerror(errno), "ordo doctor shows what is installed");
  return CLI_FAILED;
}

int cli_launch_estimate(ordo_cli *cli, int argc, char **argv)
{
  g_autofree char *program = cli_program("estimate");
  g_autoptr(GPtrArray) words = g_ptr_array_new();
  int code = CLI_DONE;
  if (!program)
    return not_installed(cli, "plan --estimate", "estimate");
  if (!cli_take_colour(cli, "plan", &argc, argv, &code))
    return code;
  g_ptr_array_add(words, program);
  for (int i = 1; i < argc; i++)
    g_ptr_array_add(words, argv[i]);
  return start(cli, words, 1);
}

int cli_launch(ordo_cli *cli, const char *verb, int argc, char **argv)
{
  g_autofree char *program = cli_program(verb);
  g_autoptr(GPtrArray) words = g_ptr_array_new();
  const char *launcher = NULL;
  int ranks = 0, code = CLI_DONE, around = ranks_around_us(&launcher);
  gboolean many;

  if (!strcmp(verb, "estimate")) /* by its own name, too, it is of one process */
    return cli_launch_estimate(cli, argc, argv);
  if (!program)
    return not_installed(cli, verb, verb);
  if (!cli_take_colour(cli, verb, &argc, argv, &code))
    return code;
  many = take_many_ranks(&argc, argv);
  g_ptr_array_add(words, program);
  for (int i = 1; i < argc; i++)
    g_ptr_array_add(words, argv[i]);
  if (!wanted_ranks(argc, argv, &ranks))
    return cli_usage(cli, verb, "--ranks needs a number of at least 1", NULL, NULL);
  if (around && ranks && ranks != around) {
    g_autofree char *what = g_strdup_printf("--ranks %d, but %d ranks were already started", ranks, around);
    return cli_usage(cli, verb, what, launcher, "leave --ranks out, or start as many ranks as it says");
  }
  if (!around && !many && ranks > MOST_RANKS_PER_CORE * cli_usable_cores())
    return too_many(cli, verb, ranks);
  return start(cli, words, around ? 1 : ranks);
}
