/* columns.h -- rows of other tools' files: columns that data_args.columns makes of others (docs/data.md).
 *
 * Flow 2 of 7. A path is names of members and indices of lists with dots between them; a member whose name has dots is found before
 * a shorter one. An object or a list that is written as JSON text is entered, too.
 */
#ifndef CR_COLUMNS_H
#define CR_COLUMNS_H

#include "configs/configs.h"
#include "data/data.h"

/* Give the row the columns that `from` makes, in row->json and row->text; a column of that name is replaced, the others stay.
 * All are made of the row as it was read. CR_EFORMAT: one cannot be made: its name, and where its path ends. */
CR_MUST cr_status cr_columns_make(const cr_data_args *from, cr_row *row, cr_err *err);
/* A row of rlvr without the column tag (data_args.tag is not given) has its data_source as its tag, as ROLL's vision-language rows do
 * and verl's; a data_source that no block includes is none where there is one block, which needs no tags. */
CR_MUST cr_status cr_columns_add_tag(const cr_config *c, const cr_data_args *from, cr_row *row,
                                     cr_err *err);

#endif
