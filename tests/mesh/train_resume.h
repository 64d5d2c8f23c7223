/* train_resume.h -- a training that is cut in half and goes on from its checkpoint (after train.h). */
#ifndef TRAIN_RESUME_H
#define TRAIN_RESUME_H

#include "tests/mesh/train.h"

/* 4 steps, saved as "whole", are 2 steps, a checkpoint "half", and 2 more to "rest". */
static void resume_half(plan p)
{
    p.name = "resume";
    p.ranks = 4;
    p.save = "whole";
    cr_free(train(p).grad);
    p.last = 2;
    p.save = "half";
    cr_free(train(p).grad);
    p.resume = "half";
    p.first = 2;
    p.last = 4;
    p.save = "rest";
    train(p);
    same_bytes("whole", "rest");
}

#endif
