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

#endif
