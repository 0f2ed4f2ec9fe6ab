/* options.c - options of fsdp2, read once and checked together. What belongs to one value alone is checked by the manifest. */
#include "fsdp2.h"

#include <stdlib.h>
#include <string.h>

/* true, false, or the number of ranks among which a group stays sharded; -1: none of them. */
static int64_t reshard_option(const fsdp2 *self)
{
  const char *text = sharding_option_text(self->job, "reshard_after_forward");
  char *end = NULL;
  if (strcmp(text, "true") == 0)
    return 1;
  if (strcmp(text, "false") == 0)
    return 0;
  long long n = strtoll(text, &end, 10);
  return *text != '\0' && *end == '\0' && n >= 2 ? n : -1;
}

void fsdp2_read_options(fsdp2 *self)
{
  static const char *const units[] = {"block", "class", "size", "list", "none", NULL};
  static const char *const prefetch[] = {"none", "pre", "post", NULL};
  sharding_options *options = &self->options.sharding;
  sharding_policy *policy = &self->options.units;
  const int64_t reshard = reshard_option(self);
  policy->kind = sharding_option_word(self->job, "units", units);
  policy->size = sharding_option_int(self->job, "unit_size", 100000000);
  policy->patterns = sharding_option_text(self->job, policy->kind == SHARDING_UNITS_CLASS ? "unit_classes" : "unit_list");
  self->options.ignored = sharding_option_text(self->job, "ignored");
  options->reshard_after_forward = reshard != 0;
  options->reshard_size = reshard >= 2 ? reshard : 0;
  options->backward_prefetch = sharding_option_word(self->job, "backward_prefetch", prefetch);
  options->forward_prefetch = sharding_option_int(self->job, "forward_prefetch", 0) != 0;
  options->limit = sharding_option_int(self->job, "limit_all_gathers", 1) ? 2 : SHARDING_NO_LIMIT;
  options->sync_each = sharding_option_int(self->job, "no_sync", 1) == 0;
  sharding_option_types(self->job, options);
  self->options.output_dtype = (ordo_dtype)sharding_option_int(self->job, "output_dtype", ORDO_F32);
  double factor = 0.0;
  if (self->job->option_real(self->job->ctx, "divide_factor", &factor) == ORDO_OK)
    options->divide_ratio = factor / self->job->axis->size;
  options->poison = sharding_option_int(self->job, "poison", 1) != 0;
  options->offload =
      strcmp(sharding_option_text(self->job, "offload"), "disk") == 0 ? sharding_option_text(self->job, "offload_dir") : NULL;
}

static ordo_status refuse(const fsdp2 *self, const char *hint, const char *text)
{
  return sharding_fail(self->job, ORDO_E_INVALID, hint, "%s", text);
}

static ordo_status check_reshard(const fsdp2 *self)
{
  const int64_t reshard = reshard_option(self);
  const int32_t ranks = self->job->axis->size;
  const char *text = sharding_option_text(self->job, "reshard_after_forward"), *reason;
  if (reshard >= 2 ? reshard < ranks && ranks % reshard == 0 : reshard >= 0)
    return ORDO_OK;
  if (reshard < 0)
    reason = strcmp(text, "1") == 0 ? "one rank would hold all of it: that is 'false'" : "it is neither true, false nor a number of ranks";
  else if (reshard == ranks)
    reason = "all ranks share it already: that is 'true'";
  else
    reason = "the ranks of the axis cannot be divided into parts of that many";
  return sharding_fail(self->job, ORDO_E_INVALID, "true, false, or a number of ranks that divides the axis and is neither 1 nor all of it",
                       "option 'reshard_after_forward' = '%s' on an axis of %d ranks: %s", text, ranks, reason);
}

ordo_status fsdp2_check_options(const fsdp2 *self)
{
  const char *offload = sharding_option_text(self->job, "offload"), *directory = sharding_option_text(self->job, "offload_dir");
  const int disk = strcmp(offload, "disk") == 0;
  if (disk != (directory[0] != '\0'))
    return refuse(self, "write fsdp2:offload=disk:DIR with a directory on a real disk, or leave both out",
                  disk ? "offload=disk without a directory" : "a directory for the cold tier was given, but offload is not disk");
  ordo_status status = sharding_check_units(self->job, "fsdp2", self->options.units.kind);
  return status == ORDO_OK ? check_reshard(self) : status;
}
