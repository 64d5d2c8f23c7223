/* endpoint.c -- see endpoint.h. */
#include "launch/endpoint.h"
#include "base/children.h"
#include "base/json.h"
#include "base/rng.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CLOSING_SECONDS = 5 };

static const char private_prefix[] = "croll:", owner_file[] = "exchange/owner.json",
                  config_key[] = "config";

/* The object of OUTPUT_DIR/exchange/owner.json, or NULL. */
static json_t *read_owner(const char *output_dir)
{
    char *path = cr_path_join(output_dir, owner_file);
    cr_buf text = {0};
    cr_err ignored = {0};
    json_t *owner = NULL;

    if (cr_file_exists(path) && cr_file_read(path, &text, &ignored) == CR_OK)
        cr_note(cr_json_parse(text.data, text.num_bytes, path, &owner, &ignored));
    cr_buf_free(&text);
    cr_free(path);
    return owner;
}

static const char *text_of(const json_t *owner, const char *key)
{
    const char *text = json_string_value(json_object_get(owner, key));

    return text ? text : "";
}

char *cr_endpoint_prefix_beside(const char *config_path)
{
    const char *slash = strrchr(config_path, '/');
    char *folder = slash ? cr_strndup(config_path, (size_t)(slash - config_path)) : cr_strdup(".");
    json_t *owner = read_owner(folder);
    char *prefix =
        cr_strdup(text_of(owner, "prefix")[0] ? text_of(owner, "prefix") : private_prefix);

    json_decref(owner);
    cr_free(folder);
    return prefix;
}

cr_exchange_args cr_endpoint_args(const cr_config *config, const char *url, const char *prefix)
{
    const cr_exchange_keys *c = &config->exchange;

    return (cr_exchange_args){.url = url,
                              .prefix = prefix,
                              .ca_file = c->ca_file,
                              .cert_file = c->cert_file,
                              .key_file = c->key_file,
                              .deadline_s = 2 * c->timeout, /* the launcher gives up first */
                              .may_be_starting = true};
}

cr_status cr_endpoint_open(cr_endpoint *e, const cr_config *config, cr_err *err)
{
    *e = (cr_endpoint){.args = cr_endpoint_args(config, config->exchange.url, "")};
    e->args.deadline_s = config->exchange.timeout;
    e->args.may_be_starting = false;
    return e->args.url ? cr_exchange_open(&e->args, &e->x, err) : CR_OK;
}

static char *new_run_id(void)
{
    return cr_asprintf("%016llx", (unsigned long long)cr_rng_chance());
}

/* "croll:NAME:ID:", with letters, digits and -_. of the experiment's name. */
static char *default_prefix(const char *exp_name, const char *run_id)
{
    char name[41];
    size_t n = 0;

    for (const char *p = exp_name ? exp_name : "run"; *p && n + 1 < sizeof name; p++)
        name[n++] = isalnum((unsigned char)*p) || strchr("-_.", *p) ? *p : '_';
    name[n] = 0;
    return cr_asprintf("croll:%s:%s:", name, run_id);
}

cr_status cr_endpoint_claim(cr_endpoint *e, const cr_config *config, cr_err *err)
{
    char *path = realpath(config->output_dir, NULL), *who;
    const char *wanted = config->exchange.prefix;
    json_t *owner = read_owner(config->output_dir);

    e->of = cr_asprintf("%s:%s", cr_host_name(), path ? path : config->output_dir);
    free(path);
    if (strcmp(text_of(owner, "of"), e->of) == 0 && text_of(owner, "run")[0])
        e->run_id = cr_strdup(text_of(owner, "run"));
    else
        e->run_id = new_run_id();
    json_decref(owner);
    e->prefix = wanted ? cr_strdup(wanted)
                : e->x ? default_prefix(config->exp_name, e->run_id)
                       : cr_strdup(private_prefix);
    e->args.prefix = e->prefix;
    if (!e->x) return CR_OK;
    cr_exchange_set_prefix(e->x, e->prefix);
    e->args.may_be_starting = true; /* it has answered: from now on it may be started again */
    who = cr_asprintf("%s, process %d", e->of, (int)getpid());
    cr_note(cr_heartbeat_hold(&e->args, e->run_id, who, &e->holder, err));
    cr_free(who);
    return err->status;
}

cr_status cr_endpoint_write(const cr_endpoint *e, const char *output_dir, cr_err *err)
{
    char *folder = cr_path_join(output_dir, "exchange"),
         *path = cr_path_join(output_dir, owner_file);
    cr_buf text = {0};
    json_t *owner = json_pack("{s:s,s:s,s:s}", "prefix", e->prefix, "run", e->run_id, "of", e->of);

    if (!owner) /* bytes that are no UTF-8 */
        owner = json_pack("{s:s,s:s}", "prefix", e->prefix, "run", e->run_id);
    if (cr_mkdirs(folder, err) == CR_OK && cr_json_add_value(&text, owner, err) == CR_OK)
        cr_note(cr_file_write_atomic(path, text.data, text.num_bytes, err));
    json_decref(owner);
    cr_buf_free(&text);
    cr_free(folder);
    cr_free(path);
    return err->status;
}

cr_status cr_endpoint_put_config(const cr_endpoint *e, const char *path,
                                 char digest[CR_DIGEST_TEXT], cr_err *err)
{
    cr_buf text = {0};

    if (cr_file_read(path, &text, err) == CR_OK) {
        cr_digest_bytes(text.data, text.num_bytes, digest);
        cr_note(cr_value_set(e->x, config_key, text.data, err));
    }
    cr_buf_free(&text);
    return err->status;
}

cr_status cr_endpoint_get_config(const cr_exchange_args *args, const char *digest, cr_buf *text,
                                 cr_err *err)
{
    const char *const keys[] = {config_key};
    char found[CR_DIGEST_TEXT];
    cr_exchange *x;

    CR_TRY(cr_exchange_open(args, &x, err));
    cr_note(cr_values_get(x, keys, 1, text, err));
    cr_digest_bytes(text->data, text->num_bytes, found);
    if (err->status == CR_OK && strcmp(found, digest) != 0)
        cr_fail(err, CR_ECONFIG,
                "the configuration in Redis at %s has SHA-256 %.16s.., the launcher's has %.16s..: "
                "another run writes the keys %s*",
                cr_exchange_address(x), text->num_bytes ? found : "of nothing", digest,
                args->prefix);
    cr_exchange_close(x);
    return err->status;
}

void cr_endpoint_close(cr_endpoint *e)
{
    cr_err err = {0};
    bool is_held = e->holder && cr_heartbeat_check(e->holder, &err) == CR_OK;

    cr_heartbeat_stop(e->holder);
    if (is_held && !cr_exchange_is_connected(e->x))
        cr_log(CR_LOG_WARN, "run", "keys of this run stay in Redis at %s: it is away",
               cr_exchange_address(e->x));
    else if (is_held) {
        cr_exchange_set_deadline(e->x, CLOSING_SECONDS);
        if (cr_prefix_wipe(e->x, &err) != CR_OK ||
            cr_prefix_release(e->x, e->run_id, &err) != CR_OK)
            cr_log(CR_LOG_WARN, "run", "keys of this run stay in Redis: %s", err.msg);
    }
    cr_exchange_close(e->x);
    cr_free(e->prefix);
    cr_free(e->run_id);
    cr_free(e->of);
    *e = (cr_endpoint){0};
}
