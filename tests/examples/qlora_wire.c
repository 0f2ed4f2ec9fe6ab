/* qlora_wire.c - examples/qlora with a packer: a frozen 4-bit base in the same groups as parameters that are packed on their way.
 *
 * What is packed is turned over byte by byte and a byte longer, so training has the numbers of qlora and other counts of bytes. A leaf of
 * the base must not be offered: its bits are no numbers, and a packer of numbers would change them.
 *
 * Its manifest does not say that it conflicts with strategies that cut layers, so they have to find out.
 */
#include <ordo/manifest.h>
#include <ordo/plugin.h>

/* The example has its own table and entry; here it lends everything but them. */
#undef ORDO_PLUGIN_ENTRY
#define ORDO_PLUGIN_ENTRY(...) struct qlora_wire_has_another
#pragma push_macro("ORDO_MANIFEST")
#undef ORDO_MANIFEST
#define ORDO_MANIFEST(...) struct qlora_wire_has_another_too
#define get_extension qlora_get_extension

#include "../../examples/qlora/qlora.c"

#undef get_extension
#pragma pop_macro("ORDO_MANIFEST")

ORDO_MANIFEST("id=qlora\n"
              "kind=precision\n"
              "version=1.0.0\n"
              "summary=frozen 4-bit base, packed on its way\n"
              "license=Apache-2.0\n"
              "steps=model.inject\n"
              "positional=rank\n"
              "option=rank|int|8|1..1024|rank of the adapters\n"
              "option=alpha|real|16|0.0..|adapters are multiplied by alpha / rank\n"
              "option=block|int|32|8..4096|elements with one magnitude\n"
              "option=targets|string|q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj||layers\n");

static int64_t wire_bytes(void *self, const ordo_leaf *leaf, int64_t n)
{
  (void)self;
  (void)leaf;
  return n * (int64_t)sizeof(float) + 1;
}

static void turn(const unsigned char *from, int64_t n, unsigned char *to)
{
  for (int64_t i = 0; i < n * (int64_t)sizeof(float); i++)
    to[i] = from[i] ^ 0xffu;
}

static ordo_status pre_all_gather(void *instance, const ordo_leaf *leaf, const void *src, int64_t n, void *wire)
{
  if (leaf == NULL || leaf->opaque != NULL)
    return fail(instance, ORDO_E_INVALID, "asked to pack %s", leaf != NULL ? leaf->name : "a piece without a leaf", "see qlora_wire.c");
  turn(src, n, wire);
  ((unsigned char *)wire)[n * (int64_t)sizeof(float)] = 42;
  return ORDO_OK;
}

static ordo_status post_all_gather(void *instance, const ordo_leaf *leaf, const void *wire, int64_t n, void *dst)
{
  if (((const unsigned char *)wire)[n * (int64_t)sizeof(float)] != 42)
    return fail(instance, ORDO_E_INVALID, "a piece of %s does not end where it should", leaf->name, "see qlora_wire.c");
  turn(wire, n, dst);
  return ORDO_OK;
}

static const ordo_precision with_wire = {.struct_size = sizeof with_wire,
                                         .create = create,
                                         .validate = validate,
                                         .destroy = destroy,
                                         .inject = inject,
                                         .pre_all_gather = pre_all_gather,
                                         .post_all_gather = post_all_gather,
                                         .wire_bytes = wire_bytes};

static const void *get_extension(const char *id)
{
  return qlora_get_extension(id) != NULL ? &with_wire : NULL;
}

extern ORDO_EXPORT const ordo_plugin ordo_plugin_entry;
const ordo_plugin ordo_plugin_entry = {ORDO_PLUGIN_MAGIC, ORDO_ABI_MAJOR, ORDO_ABI_MINOR, 0u,   sizeof(ordo_plugin),
                                       "qlora",           "1.0.0",        NULL,           NULL, get_extension};
