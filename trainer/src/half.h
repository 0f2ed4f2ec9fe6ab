/* half.h - fp32 from and to the 16-bit formats, round to nearest even (IEEE 754). For files; the kernels have their own. */
#ifndef ORDO_TRAINER_HALF_H
#define ORDO_TRAINER_HALF_H

#include <stdint.h>

float ordo_half_from_bf16(uint16_t bits);
float ordo_half_from_f16(uint16_t bits);
uint16_t ordo_half_to_bf16(float value);
uint16_t ordo_half_to_f16(float value);

#endif
