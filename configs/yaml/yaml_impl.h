/* yaml_impl.h -- shared by the loader's files (configs/ only). */
#ifndef CR_YAML_IMPL_H
#define CR_YAML_IMPL_H

#include "configs/yaml/yaml.h"

/* NULL after a diagnostic, or for an empty document. */
cr_node *cri_yaml_parse(cr_yaml *yaml, const char *text, size_t num_bytes, const char *file,
                        cr_diagnostics *d);
cr_node *cri_node_copy(cr_yaml *yaml, const cr_node *n);
/* As Python's str() would print it. */
void cri_node_text(const cr_node *n, cr_buf *out);
void cri_real_text(double x, cr_buf *out);
/* A key whose value is a secret: it is masked when a tree is written. */
bool cri_is_secret(const char *key);

#endif
