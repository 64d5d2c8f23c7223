/* doctor_impl.h -- parts of doctor.c. */
#ifndef CRI_DOCTOR_H
#define CRI_DOCTOR_H

#include "launch/doctor/doctor.h"

void cri_doctor_gpus(cr_doctor *d);

#endif
