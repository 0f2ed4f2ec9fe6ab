/* test_plan.c - plans as an embedder asks for them: expressions, meshes, default strategy, digest, reports, refusals. */
#include "../base/plugin_files.h"
#include "json_check.h"
#include "session.h"
#include <ordo/ordo.h>
#include <time.h>

static const char *const ids[] = {"ddp",   "fsdp1",          "fsdp2", "tp",       "zero1", "apex_amp", "jointx",   "jointx_tp", "scaler",
                                  "watch", "watch_restores", "lora",  "teststep", "picky", "passive",  "tp_plain", "prepare"};

typedef struct world {
  char *directory;
  ordo_context *context;
} world;

static void write_fake(const char *directory, const char *file, const char *manifest)
{
  g_autofree char *text = g_strconcat("abi=1.0\n", manifest, NULL);
  g_autofree char *path = g_strdup_printf("%s/%s.so", directory, file);
  write_elf(path, &(elf_recipe){.manifest = text});
}

static ordo_context *open_directory(const char *directory)
{
  ordo_context_options options = {
      .struct_size = sizeof options, .plugin_path = directory, .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH};
  ordo_context *context = NULL;
  assert_int_equal(ordo_context_create(&options, &context), ORDO_OK);
  return context;
}

static int set_up(void **state)
{
  world *w = g_new0(world, 1);
  w->directory = scratch_new();
  for (size_t i = 0; i < G_N_ELEMENTS(ids); i++)
    write_fake(w->directory, ids[i], fake_manifest(ids[i]));
  w->context = open_directory(w->directory);
  *state = w;
  return 0;
}

static int tear_down(void **state)
{
  world *w = *state;
  ordo_context_destroy(w->context);
  scratch_free(w->directory);
  g_free(w);
  return 0;
}

static ordo_status make(ordo_context *context, const char *strategy, const char *precision, int ranks, uint32_t flags, ordo_plan **plan)
{
  ordo_plan_request request = {.struct_size = sizeof request, .strategy = strategy, .precision = precision, .ranks = ranks, .flags = flags};
  return ordo_plan_create(context, &request, plan);
}

static ordo_plan *legal(ordo_context *context, const char *strategy, const char *precision, int ranks, uint32_t flags)
{
  ordo_plan *plan = NULL;
  ordo_status status = make(context, strategy, precision, ranks, flags, &plan);
  if (status != ORDO_OK)
    print_message("%s with %s: %s\n", strategy, precision, ordo_last_error(context)->what);
  assert_int_equal(status, ORDO_OK);
  assert_true(ordo_plan_is_legal(plan));
  return plan;
}

static void render_is(const ordo_plan *plan, uint32_t form, const char *expected)
{
  char *text = ordo_plan_render(plan, form, 0);
  assert_string_equal(text, expected);
  ordo_string_free(text);
}

static void render_has(const ordo_plan *plan, uint32_t form, const char *const *parts)
{
  char *text = ordo_plan_render(plan, form, 0);
  for (; *parts; parts++) {
    if (!strstr(text, *parts))
      fail_msg("not in the report: %s\n%s", *parts, text);
  }
  ordo_string_free(text);
}

static void refused(ordo_context *context, const char *strategy, const char *precision, int ranks, uint32_t flags, ordo_status expected,
                    const char *code)
{
  ordo_plan *plan = NULL;
  ordo_status status = make(context, strategy, precision, ranks, flags, &plan);
  const ordo_error *error = ordo_last_error(context);
  assert_int_equal(status, expected);
  assert_non_null(error);
  assert_string_equal(error->code, code);
  assert_int_equal(plan != NULL, expected == ORDO_E_CONFLICT);
  ordo_plan_destroy(plan);
}

static void test_steps(void **state)
{
  world *w = *state;
  ordo_plan *plan = legal(w->context, "tp=2+fsdp2", "apex_amp:O2", 4, ORDO_PLAN_RESUME);
  render_is(plan, ORDO_RENDER_STEPS,
            "mesh.init\nmodel.build\nprecision.convert_model\nstrategy.partition\noptimizer.create\nstrategy.prepare_joint\nweights.load_"
            "sharded\n"
            "precision.wrap_optimizer\nscheduler.create\nrestore.optimizer\nrestore.precision\nrestore.scheduler\nrestore.data\nrestore."
            "rng\nverify\n");
  assert_int_equal(ordo_plan_n_nodes(plan), 15);
  assert_null(ordo_plan_node_at(plan, 15));
  const ordo_plan_node *node = ordo_plan_node_at(plan, 5);
  assert_string_equal(node->name, "strategy.prepare_joint");
  assert_string_equal(node->provider, "fsdp2");
  assert_string_equal(node->reason, "after optimizer.create(embedder) [ordering rule 6]");
  assert_int_equal(ordo_plan_n_events(plan), 9);
  assert_string_equal(ordo_plan_event_at(plan, 0)->name, "step.reduce");
  assert_string_equal(ordo_plan_event_at(plan, 8)->name, "step.scheduler");
  assert_null(ordo_plan_event_at(plan, 9));
  ordo_plan_destroy(plan);
}

static void test_moves_are_shown(void **state)
{
  world *w = *state;
  ordo_plan *plan = legal(w->context, "fsdp1", "none", 2, 0);
  const ordo_plan_node *node = ordo_plan_node_at(plan, 3);
  assert_string_equal(node->name, "optimizer.create");
  assert_int_equal(node->phase, ORDO_PHASE_PRE_DISPATCH);
  assert_int_equal(node->default_phase, ORDO_PHASE_SETUP);
  assert_string_equal(
      node->reason, "after strategy.wrap(fsdp1) [flag setup_optimizers_in_pre_dispatch (fsdp1 manifest line 8)]; moved from setup by that");
  ordo_plan_destroy(plan);
}

static void test_text(void **state)
{
  world *w = *state;
  ordo_plan *plan = legal(w->context, "ddp", "none", 2, 0);
  g_autofree char *expected =
      g_strdup_printf("plan ddp with none   2 ranks   8 steps   digest %s\n"
                      "mesh ddp=2 (data)\n"
                      "\n"
                      "phase         #  step              provider  why here\n"
                      "setup         1  mesh.init         host      nothing has to come before it\n"
                      "              2  model.build       embedder  after mesh.init(host) [ordering rule 1]\n"
                      "              3  weights.load      embedder  after model.build(embedder) [ordering rule 1]\n"
                      "              4  weights.sync      host      after weights.load(embedder) [ordering rule 3]\n"
                      "              5  optimizer.create  embedder  after weights.sync(host) [ordering rule 3]\n"
                      "pre_dispatch  6  strategy.wrap     ddp       after weights.sync(host) [ordering rule 3], then default order\n"
                      "              7  scheduler.create  embedder  after strategy.wrap(ddp) [ordering rule 9]\n"
                      "              8  verify            host      after scheduler.create(embedder) [ordering rule 1]\n"
                      "\n"
                      "inside a training step\n"
                      "  step.reduce     ddp       it reduces gradients [ddp manifest line 9]\n"
                      "  step.divide     host      after step.reduce(ddp) [ordering, inside a training step]\n"
                      "  step.grad_norm  host      after step.divide(host) [ordering, inside a training step]\n"
                      "  step.clip       host      after step.grad_norm(host) [ordering, inside a training step]\n"
                      "  step.optimizer  embedder  after step.clip(host) [ordering, inside a training step]\n"
                      "  step.scheduler  embedder  after step.optimizer(embedder) [ordering, inside a training step]\n",
                      ordo_plan_digest(plan));
  render_is(plan, ORDO_RENDER_TEXT, expected);
  char *plain = ordo_plan_render(plan, ORDO_RENDER_TEXT, 0), *coloured = ordo_plan_render(plan, ORDO_RENDER_TEXT, ORDO_RENDER_COLOUR);
  assert_null(strchr(plain, '\033'));
  assert_non_null(strchr(coloured, '\033'));
  ordo_string_free(plain);
  ordo_string_free(coloured);
  ordo_plan_destroy(plan);
}

static void test_explained(void **state)
{
  world *w = *state;
  ordo_plan *plan = legal(w->context, "ddp:hook=bf16", "apex_amp:O2", 2, 0);
  static const char *const parts[] = {"\nselected\n",
                                      "--strategy ddp:hook=bf16",
                                      "hook=bf16, bucket_mb=25",
                                      "opt_level=O2, loss_scale unset",
                                      "\nnot selected\n",
                                      "fsdp1 1.0.0",
                                      "not asked for",
                                      "after precision.convert_model(apex_amp) [ordering rule 4]",
                                      NULL};
  render_has(plan, ORDO_RENDER_EXPLAIN, parts);
  ordo_plan_destroy(plan);
  plan = legal(w->context, "ddp+teststep", "none", 2, 0);
  ordo_plan_destroy(plan);
}

static void test_ignored_constraints_are_shown(void **state)
{
  g_autofree char *directory = scratch_new();
  (void)state;
  write_fake(directory, "a", FAKE_DDP);
  write_fake(directory, "b", FAKE_TESTSTEP "before[strategy.wrap]=?org.q.ema\nafter[strategy.wrap]=?scheduler.create\n");
  ordo_context *context = open_directory(directory);
  ordo_plan *plan = legal(context, "ddp+teststep", "none", 2, 0);
  static const char *const parts[] = {"\nignored constraints\n",
                                      "before[strategy.wrap]=?org.q.ema (teststep manifest line 9): nobody selected provides org.q.ema",
                                      "soft, left out because it would close a cycle", NULL};
  render_has(plan, ORDO_RENDER_TEXT, parts);
  ordo_plan_destroy(plan);
  ordo_context_destroy(context);
  scratch_free(g_steal_pointer(&directory));
}

static void test_meshes(void **state)
{
  world *w = *state;
  static const struct {
    const char *strategy, *mesh;
    int ranks;
    uint32_t flags;
  } fits[] = {
      {"tp=2+fsdp2", "mesh fsdp2=2 (data) x tp=2 (model), outermost axis first", 4, 0},
      {"ddp=2+fsdp2=3", "mesh fsdp2=3 (data) x ddp=2 (data), outermost axis first", 6, 0},
      {"tp+ddp=2", "mesh ddp=2 (data) x tp=2 (model), outermost axis first", 4, 0},
      {"tp+fsdp2=1", "mesh fsdp2=1 (data) x tp=4 (model), outermost axis first", 4, 0},
      {"ddp", "mesh ddp=1 (data)", 1, 0},
      {"lora+ddp", "mesh ddp=2 (data)", 2, 0},
      {"none", "mesh data=2 (data)", 2, ORDO_PLAN_EVAL},
      {"tp=2", "mesh data=2 (data) x tp=2 (model), outermost axis first", 4, ORDO_PLAN_EVAL},
  };
  for (size_t i = 0; i < G_N_ELEMENTS(fits); i++) {
    ordo_plan *plan = legal(w->context, fits[i].strategy, "none", fits[i].ranks, fits[i].flags);
    g_autofree char *line = g_strdup_printf("\n%s\n", fits[i].mesh);
    render_has(plan, ORDO_RENDER_TEXT, (const char *const[]){line, NULL});
    ordo_plan_destroy(plan);
  }
  refused(w->context, "tp=3+fsdp2", "none", 4, 0, ORDO_E_INVALID, "E-MESH-SIZE");
  refused(w->context, "tp=2+fsdp2=2", "none", 6, 0, ORDO_E_INVALID, "E-MESH-SIZE");
  refused(w->context, "tp=2+fsdp2=2", "none", 8, 0, ORDO_E_INVALID, "E-MESH-SIZE");
  refused(w->context, "tp=2+fsdp2=2", "none", 2, 0, ORDO_E_INVALID, "E-MESH-SIZE");
  refused(w->context, "ddp=2147483647+fsdp2=2147483647", "none", 4, 0, ORDO_E_INVALID, "E-MESH-SIZE");
  refused(w->context, "none", "none", 2, 0, ORDO_E_INVALID, "E-MESH-SIZE");
  refused(w->context, "lora", "none", 2, 0, ORDO_E_INVALID, "E-MESH-SIZE");
  refused(w->context, "tp=3", "none", 4, ORDO_PLAN_EVAL, ORDO_E_INVALID, "E-MESH-SIZE");
  refused(w->context, "passive", "none", 2, 0, ORDO_E_CONFLICT, "E-PLAN-REDUCER");
}

static ordo_status with_default(ordo_context *context, const char *strategy, int ranks, ordo_plan **plan)
{
  ordo_plan_request request = {.struct_size = sizeof request, .strategy = strategy, .default_strategy = "ddp", .ranks = ranks};
  return ordo_plan_create(context, &request, plan);
}

static void test_default_strategy(void **state)
{
  world *w = *state;
  static const struct {
    const char *strategy, *mesh; /* null: E-MESH-SIZE, nothing was added */
    int ranks;
  } cases[] = {
      {NULL, "mesh ddp=4 (data)", 4},
      {"lora", "mesh ddp=4 (data)", 4},
      {"tp_plain=2", "mesh ddp=2 (data) x tp_plain=2 (model), outermost axis first", 4},
      {"tp=2", NULL, 4},    /* self_sharded */
      {"fsdp2=2", NULL, 4}, /* reduces */
  };
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    ordo_plan *plan = NULL;
    ordo_status status = with_default(w->context, cases[i].strategy, cases[i].ranks, &plan);
    assert_int_equal(status, cases[i].mesh ? ORDO_OK : ORDO_E_INVALID);
    if (plan)
      render_has(plan, ORDO_RENDER_TEXT, (const char *const[]){cases[i].mesh, NULL});
    else
      assert_string_equal(ordo_last_error(w->context)->code, "E-MESH-SIZE");
    ordo_plan_destroy(plan);
  }
  ordo_plan *plan = NULL;
  assert_int_equal(with_default(w->context, "tp", 4, &plan), ORDO_OK);
  render_has(plan, ORDO_RENDER_TEXT, (const char *const[]){"plan tp with none", "mesh tp=4 (model)\n", NULL});
  ordo_plan_destroy(plan);
  assert_int_equal(with_default(w->context, NULL, 1, &plan), ORDO_OK);
  render_has(plan, ORDO_RENDER_TEXT, (const char *const[]){"plan none with none   1 rank   ", NULL});
  ordo_plan_destroy(plan);
}

static void test_requests(void **state)
{
  world *w = *state;
  ordo_plan *plan = NULL;
  ordo_plan_request request = {.struct_size = 8, .ranks = 1};
  assert_int_equal(ordo_plan_create(w->context, &request, &plan), ORDO_E_INVALID);
  assert_string_equal(ordo_last_error(w->context)->code, "E-PLAN-REQUEST");
  refused(w->context, "ddp", "none", 0, 0, ORDO_E_INVALID, "E-PLAN-REQUEST");
  refused(w->context, "ddp", "none", 2, 128, ORDO_E_INVALID, "E-PLAN-REQUEST");
  refused(w->context, "dpd", "none", 2, 0, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN");
  refused(w->context, "apex_amp", "none", 2, 0, ORDO_E_INVALID, "E-PLUGIN-KIND");
  refused(w->context, "ddp:hok=bf16", "none", 2, 0, ORDO_E_INVALID, "E-OPTION-UNKNOWN");
  assert_int_equal(ordo_plan_create(NULL, &request, &plan), ORDO_E_INVALID);
  /* a caller compiled before the models existed */
  request = (ordo_plan_request){
      .struct_size = ORDO_SIZE_THROUGH(ordo_plan_request, flags), .strategy = "ddp", .ranks = 2, .models = (void *)8, .n_models = 9};
  assert_int_equal(ordo_plan_create(w->context, &request, &plan), ORDO_OK);
  ordo_plan_destroy(plan);
}

static void test_models(void **state)
{
  world *w = *state;
  ordo_plan_model models[] = {{sizeof(ordo_plan_model), "policy", 1, 0}, {sizeof(ordo_plan_model), "reference", 0, 0}};
  ordo_plan_request request = {.struct_size = sizeof request, .strategy = "fsdp2", .ranks = 2, .models = models, .n_models = 2};
  ordo_plan *plan = NULL;
  assert_int_equal(ordo_plan_create(w->context, &request, &plan), ORDO_OK);
  render_is(plan, ORDO_RENDER_STEPS,
            "mesh.init\nmodel.build\nmodel.build@reference\noptimizer.create\nstrategy.prepare_joint\nstrategy.prepare_joint@reference\n"
            "weights.load_sharded\nweights.load_sharded@reference\nscheduler.create\nverify\n");
  assert_int_equal(ordo_plan_node_at(plan, 2)->model, 1);
  ordo_plan_destroy(plan);
  models[1].name = "policy";
  assert_int_equal(ordo_plan_create(w->context, &request, &plan), ORDO_E_INVALID);
  assert_string_equal(ordo_last_error(w->context)->code, "E-PLAN-REQUEST");
  request.n_models = 33;
  assert_int_equal(ordo_plan_create(w->context, &request, &plan), ORDO_E_INVALID);
}

static void test_digest(void **state)
{
  world *w = *state;
  static const struct {
    const char *strategy, *precision;
    int ranks;
    uint32_t flags;
  } inputs[] = {
      {"ddp", "none", 2, 0},
      {"ddp", "none", 3, 0},
      {"ddp", "none", 2, ORDO_PLAN_RESUME},
      {"ddp", "none", 2, ORDO_PLAN_EVAL},
      {"ddp:hook=bf16", "none", 2, 0},
      {"fsdp2", "none", 2, 0},
      {"ddp", "apex_amp:O2", 2, 0},
      {"ddp", "apex_amp:O5", 2, 0},
      {"tp=2+fsdp2=3", "none", 6, 0},
      {"tp=3+fsdp2=2", "none", 6, 0},
  };
  g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  for (size_t i = 0; i < G_N_ELEMENTS(inputs); i++) {
    ordo_plan *plan = legal(w->context, inputs[i].strategy, inputs[i].precision, inputs[i].ranks, inputs[i].flags);
    assert_int_equal(strlen(ordo_plan_digest(plan)), 16);
    assert_int_equal(strspn(ordo_plan_digest(plan), "0123456789abcdef"), 16);
    assert_true(g_hash_table_add(seen, g_strdup(ordo_plan_digest(plan)))); /* all differ */
    ordo_plan_destroy(plan);
  }
  /* written differently, meaning the same */
  ordo_plan *a = legal(w->context, "ddp", "apex_amp:O2", 2, 0), *b = legal(w->context, "ddp=2:hook=none", "amp_o2", 2, 0);
  assert_string_equal(ordo_plan_digest(a), ordo_plan_digest(b));
  g_autofree char *line = g_strdup_printf("%s\n", ordo_plan_digest(a));
  render_is(a, ORDO_RENDER_DIGEST, line);
  ordo_plan_destroy(a);
  ordo_plan_destroy(b);
}

/* The same plugins under other file names, found in another order: the same reports, byte for byte. */
static void test_order_of_files(void **state)
{
  world *w = *state;
  static const char *const pairs[][2] = {{"tp=2+fsdp2", "apex_amp:O2"}, {"fsdp1", "jointx"}, {"ddp=2+fsdp2", "jointx"}};
  GRand *random = g_rand_new_with_seed(5);
  for (int round = 0; round < 10; round++) {
    g_autofree char *directory = scratch_new();
    for (size_t i = 0; i < G_N_ELEMENTS(ids); i++) {
      g_autofree char *file = g_strdup_printf("%08x%s", g_rand_int(random), ids[i]);
      write_fake(directory, file, fake_manifest(ids[i]));
    }
    ordo_context *context = open_directory(directory);
    for (size_t i = 0; i < G_N_ELEMENTS(pairs); i++) {
      ordo_plan *a = NULL, *b = NULL;
      make(w->context, pairs[i][0], pairs[i][1], 4, 0, &a);
      make(context, pairs[i][0], pairs[i][1], 4, 0, &b);
      char *x = ordo_plan_render(a, ORDO_RENDER_TEXT, 0), *y = ordo_plan_render(b, ORDO_RENDER_TEXT, 0);
      char *x_see = strstr(x, "see it:"), *y_see = strstr(y, "see it:"); /* that command names the directory */
      if (x_see && y_see)
        *x_see = *y_see = '\0';
      assert_string_equal(x, y);
      ordo_string_free(x);
      ordo_string_free(y);
      ordo_plan_destroy(a);
      ordo_plan_destroy(b);
    }
    ordo_context_destroy(context);
    scratch_free(g_steal_pointer(&directory));
  }
  g_rand_free(random);
}

static void test_conflict(void **state)
{
  world *w = *state;
  ordo_plan *plan = NULL;
  char *text = NULL;
  assert_int_equal(make(w->context, "fsdp1", "jointx", 2, 0, &plan), ORDO_E_CONFLICT);
  assert_false(ordo_plan_is_legal(plan));
  assert_int_equal(ordo_plan_n_nodes(plan), 0);
  assert_int_equal(ordo_n_errors(w->context), 1);
  assert_string_equal(ordo_last_error(w->context)->code, "E-PLAN-CYCLE");
  assert_int_equal(ordo_plan_why_not(plan, ORDO_RENDER_TEXT, &text), ORDO_OK);
  static const char cycle[] =
      "    .-> optimizer.create(embedder)    before  precision.initialize(jointx)  flag initializes_jointly (jointx manifest line 7)\n"
      "    |   precision.initialize(jointx)  before  strategy.wrap(fsdp1)          flag initializes_jointly (jointx manifest line 7)\n"
      "    `-- strategy.wrap(fsdp1)          before  optimizer.create(embedder)    flag setup_optimizers_in_pre_dispatch (fsdp1 manifest "
      "line 8)\n";
  assert_contains(text, cycle);
  assert_contains(text, "single changes that were tried and work:\n  - leave out the precision plugin jointx\n");
  ordo_string_free(text);
  render_is(plan, ORDO_RENDER_STEPS, "");
  render_has(plan, ORDO_RENDER_TEXT, (const char *const[]){"CONFLICT, 1 finding   digest ", cycle, NULL});
  render_has(plan, ORDO_RENDER_DOT, (const char *const[]){"digraph plan {", "conflict", "color=red", NULL});
  ordo_plan_destroy(plan);
  plan = legal(w->context, "ddp", "none", 2, 0);
  assert_int_equal(ordo_plan_why_not(plan, ORDO_RENDER_TEXT, &text), ORDO_OK);
  assert_string_equal(text, "ddp with none has an order: ordo plan shows it\n");
  ordo_string_free(text);
  ordo_plan_destroy(plan);
}

static void test_option_fixes(void **state)
{
  world *w = *state;
  ordo_plan *plan = NULL;
  assert_int_equal(make(w->context, "fsdp2:param_dtype=bf16", "apex_amp:O2", 2, 0, &plan), ORDO_E_CONFLICT);
  render_has(plan, ORDO_RENDER_TEXT,
             (const char *const[]){"  - choose apex_amp:opt_level=O0\n", "  - choose fsdp2:param_dtype=f32\n",
                                   "  - leave out the precision plugin apex_amp\n", NULL});
  char *text = ordo_plan_render(plan, ORDO_RENDER_TEXT, 0);
  assert_null(strstr(text, "opt_level=O1")); /* converts the model as well, so it does not help */
  ordo_string_free(text);
  ordo_plan_destroy(plan);
}

static void test_offers(void **state)
{
  g_autofree char *directory = scratch_new();
  ordo_plan *plan = NULL;
  (void)state;
  write_fake(directory, "picky", FAKE_PICKY);
  write_fake(directory, "scaler", FAKE_SCALER "provides=masters\n");
  ordo_context *context = open_directory(directory);
  assert_int_equal(make(context, "picky", "none", 1, 0, &plan), ORDO_E_CONFLICT);
  assert_string_equal(ordo_last_error(context)->code, "E-PLAN-REQUIRES");
  assert_string_equal(ordo_last_error(context)->next, "add one of these: scaler");
  ordo_plan_destroy(plan);
  ordo_plan_destroy(legal(context, "picky", "scaler", 1, 0));
  ordo_context_destroy(context);
  scratch_free(g_steal_pointer(&directory));
}

static void why_is(const ordo_plan *plan, const char *a, const char *b, const char *expected)
{
  char *text = NULL;
  assert_int_equal(ordo_plan_why(plan, a, b, ORDO_RENDER_TEXT, &text), ORDO_OK);
  assert_string_equal(text, expected);
  ordo_string_free(text);
}

static void test_why(void **state)
{
  world *w = *state;
  char *text = NULL;
  ordo_plan *plan = legal(w->context, "ddp", "apex_amp:O2", 2, 0);
  why_is(plan, "weights.load", "strategy.wrap",
         "weights.load(embedder) comes before strategy.wrap(ddp):\n"
         "  weights.load(embedder) before weights.sync(host)   [ordering rule 3]\n"
         "  weights.sync(host) before strategy.wrap(ddp)   [ordering rule 3]\n");
  why_is(plan, "strategy.wrap(ddp)", "precision.convert_model",
         "strategy.wrap(ddp) comes after precision.convert_model(apex_amp):\n"
         "  precision.convert_model(apex_amp) before strategy.wrap(ddp)   [ordering rule 4]\n");
  why_is(plan, "optimizer.create", "strategy.wrap",
         "optimizer.create(embedder) and strategy.wrap(ddp) are unordered; default order puts optimizer.create(embedder) first\n");
  why_is(plan, "strategy.wrap", "optimizer.create",
         "strategy.wrap(ddp) and optimizer.create(embedder) are unordered; default order puts optimizer.create(embedder) first\n");
  assert_int_equal(ordo_plan_why(plan, "strategy.warp", "verify", ORDO_RENDER_TEXT, &text), ORDO_E_NOT_FOUND);
  assert_string_equal(ordo_last_error(w->context)->code, "E-PLAN-STEP");
  assert_string_equal(ordo_last_error(w->context)->next, "did you mean 'strategy.wrap'?");
  assert_int_equal(ordo_plan_why(plan, "weights.load_sharded", "restore.rng", ORDO_RENDER_TEXT, &text), ORDO_E_NOT_FOUND);
  assert_int_equal(ordo_n_errors(w->context), 2); /* both are missing, both are told */
  assert_int_equal(ordo_plan_why(plan, "weights.load", "verify", ORDO_RENDER_JSON, &text), ORDO_OK);
  assert_true(json_is_valid(text));
  assert_contains(text, "\"relation\": \"before\"");
  ordo_string_free(text);
  ordo_plan_destroy(plan);
}

static void test_json(void **state)
{
  world *w = *state;
  static const char *const pairs[][2] = {{"tp=2+fsdp2", "apex_amp:O2"}, {"fsdp1", "jointx"}, {"none", "none"}};
  static const char *const keys[] = {"schema",   "legal", "digest", "strategy", "precision",   "ranks",  "resume",
                                     "eval",     "axes",  "models", "plugins",  "steps",       "events", "constraints",
                                     "findings", "cycle", "fixes",  "ignored",  "not_selected"};
  for (size_t i = 0; i < G_N_ELEMENTS(pairs); i++) {
    ordo_plan *plan = NULL;
    make(w->context, pairs[i][0], pairs[i][1], i == 2 ? 1 : 4, ORDO_PLAN_RESUME, &plan);
    char *text = ordo_plan_render(plan, ORDO_RENDER_JSON, 0);
    assert_true(json_is_valid(text));
    for (size_t k = 0; k < G_N_ELEMENTS(keys); k++) {
      g_autofree char *key = g_strdup_printf("\n  \"%s\": ", keys[k]);
      assert_contains(text, key);
    }
    ordo_string_free(text);
    ordo_plan_destroy(plan);
  }
}

static void test_dot_of_a_plan(void **state)
{
  world *w = *state;
  ordo_plan *plan = legal(w->context, "ddp", "none", 2, 0);
  char *text = ordo_plan_render(plan, ORDO_RENDER_DOT, 0);
  assert_contains(text, "label=\"strategy.wrap(ddp)\\npre_dispatch\"");
  assert_contains(text, "n3 -> n5 [label=\"ordering rule 3\"]");
  assert_null(strstr(text, "n0 -> n7")); /* mesh.init before verify follows from others */
  assert_null(strstr(text, "red"));
  ordo_string_free(text);
  ordo_plan_destroy(plan);
}

/* The table has the row, whatever the widths of its columns. */
static void assert_row(const char *text, const char *row)
{
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  for (char **line = lines; *line; line++) {
    g_autoptr(GPtrArray) words = g_ptr_array_new();
    g_auto(GStrv) parts = g_strsplit(*line, " ", -1);
    for (char **part = parts; *part; part++)
      if (**part)
        g_ptr_array_add(words, *part);
    g_ptr_array_add(words, NULL);
    g_autofree char *joined = g_strjoinv(" ", (char **)words->pdata);
    if (strcmp(joined, row) == 0)
      return;
  }
  fail_msg("no row '%s' in\n%s", row, text);
}

static void test_matrix(void **state)
{
  world *w = *state;
  char *text = NULL;
  assert_int_equal(ordo_plan_matrix(w->context, 2, ORDO_RENDER_TEXT, 0, &text), ORDO_OK);
  assert_row(text, "strategy none apex_amp jointx jointx_tp scaler");
  assert_row(text, "fsdp1 legal legal E-PLAN-CYCLE E-PLAN-CYCLE legal");
  assert_row(text, "none legal legal legal legal legal");
  assert_row(text, "tp legal legal E-PLAN-CYCLE legal legal");
  assert_row(text, "tp+ddp legal legal E-PLAN-CYCLE legal legal");
  assert_row(text, "tp+ddp+fsdp2 legal legal E-PLAN-CYCLE E-PLAN-CYCLE legal");
  assert_row(text, "fsdp1+fsdp2 E-PLAN-CONFLICTS E-PLAN-CONFLICTS E-PLAN-CONFLICTS E-PLAN-CONFLICTS E-PLAN-CONFLICTS");
  assert_contains(text, "\n  passive         ");
  assert_contains(text, "fsdp2 with jointx: no order satisfies these 2 constraints: ");
  assert_contains(text, "\n  tp+fsdp2 with none: strategy.partition(tp) > optimizer.create(embedder) > strategy.prepare_joint(fsdp2) > "
                        "weights.load_sharded(host)\n");
  assert_null(strstr(text, "tp+fsdp1+fsdp2")); /* one of its pairs has no order */
  ordo_string_free(text);
  assert_int_equal(ordo_n_errors(w->context), 0);
  assert_int_equal(ordo_plan_matrix(w->context, 2, ORDO_RENDER_JSON, 0, &text), ORDO_OK);
  assert_true(json_is_valid(text));
  ordo_string_free(text);
  assert_int_equal(ordo_plan_matrix(w->context, 0, ORDO_RENDER_TEXT, 0, &text), ORDO_E_INVALID);
}

/* Not under a sanitizer or valgrind, which multiply every time. */
static gboolean runs_at_full_speed(void)
{
#if defined(__SANITIZE_ADDRESS__)
  return FALSE;
#else
  const char *preloaded = g_getenv("LD_PRELOAD");
  return !preloaded || !strstr(preloaded, "vgpreload");
#endif
}

/* Finding 200 plugins and planning a conflict with all of its fixes: below 50 ms of processor time (issue 2). The measure is processor
 * time, best of five, so that a busy machine does not turn the test red. */
static void test_two_hundred_plugins(void **state)
{
  g_autofree char *directory = scratch_new();
  double best = 1e9;
  (void)state;
  for (int i = 0; i < 183; i++) {
    g_autofree char *file = g_strdup_printf("p%03d", i), *id = g_strdup_printf("third.p%03d", i);
    g_autofree char *rest = g_strdup(strchr(fake_manifest(ids[i % (int)G_N_ELEMENTS(ids)]), '\n'));
    g_autofree char *manifest = g_strdup_printf("id=%s%s", id, rest);
    char *alias = strstr(manifest, "\nalias");
    if (alias) /* several plugins must not share an alias */
      memset(alias + 1, '#', 1);
    write_fake(directory, file, manifest);
  }
  for (size_t i = 0; i < G_N_ELEMENTS(ids); i++)
    write_fake(directory, ids[i], fake_manifest(ids[i]));
  for (int round = 0; round < 5; round++) {
    clock_t start = clock();
    ordo_context *context = open_directory(directory);
    ordo_plan *plan = NULL;
    assert_int_equal(ordo_context_n_plugins(context), 200);
    assert_int_equal(make(context, "tp=2+fsdp1", "jointx", 4, ORDO_PLAN_RESUME, &plan), ORDO_E_CONFLICT);
    char *text = ordo_plan_render(plan, ORDO_RENDER_EXPLAIN, 0);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    best = MIN(best, seconds);
    ordo_string_free(text);
    ordo_plan_destroy(plan);
    ordo_context_destroy(context);
  }
  print_message("200 plugins found, a conflict planned and explained: %.1f ms\n", best * 1e3);
  if (runs_at_full_speed())
    assert_true(best < 0.050);
  scratch_free(g_steal_pointer(&directory));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_steps),
      cmocka_unit_test(test_moves_are_shown),
      cmocka_unit_test(test_text),
      cmocka_unit_test(test_explained),
      cmocka_unit_test(test_ignored_constraints_are_shown),
      cmocka_unit_test(test_meshes),
      cmocka_unit_test(test_default_strategy),
      cmocka_unit_test(test_requests),
      cmocka_unit_test(test_models),
      cmocka_unit_test(test_digest),
      cmocka_unit_test(test_order_of_files),
      cmocka_unit_test(test_conflict),
      cmocka_unit_test(test_option_fixes),
      cmocka_unit_test(test_offers),
      cmocka_unit_test(test_why),
      cmocka_unit_test(test_json),
      cmocka_unit_test(test_dot_of_a_plan),
      cmocka_unit_test(test_matrix),
      cmocka_unit_test(test_two_hundred_plugins),
  };
  return cmocka_run_group_tests_name("plan", tests, set_up, tear_down);
}
