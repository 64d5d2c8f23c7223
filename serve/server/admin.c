/* admin.c -- what holders of the scope admin may ask: that nothing is worked on for a while, and which weights there are.
 *
 * While the service is paused new requests for a model are refused (503), those that were taken are answered (mode=wait)
 * or end with 503 (mode=abort, vLLM's default); the pause is answered when none is left. Weights are replaced by the thread
 * of the model (run.c), paused or not. */
#include "serve/server/server_impl.h"

#include "serve/answer.h"

#include <string.h>

static bool has_model_work(const cr_server *s)
{
    for (size_t i = 0; i < s->num_open; i++)
        if (cr_serve_is_for_model(s->open[i]->route)) return true;
    return false;
}

static void answer_text(cr_http_exchange *x, const char *text)
{
    cr_http_answer(x, 200, "application/json", text, strlen(text));
}

static void answer_waiting(cr_server *s, const char *text)
{
    while (s->num_pausing)
        answer_text(s->pausing[--s->num_pausing], text);
}

void cri_admin_collect(cr_server *s)
{
    if (s->num_pausing && !has_model_work(s)) answer_waiting(s, "{\"status\":\"paused\"}\n");
}

void cri_admin_gone(cr_server *s, const cr_http_exchange *x)
{
    for (size_t i = 0; i < s->num_pausing; i++)
        if (s->pausing[i] == x) s->pausing[i--] = s->pausing[--s->num_pausing];
}

void cri_answer_pause(cr_server *s, cr_http_exchange *x)
{
    char mode[16] = "abort";

    cr_http_query(x->request, "mode", mode, sizeof mode);
    if (strcmp(mode, "abort") != 0 && strcmp(mode, "wait") != 0) {
        cr_http_fail(x, 400, "invalid_value", "mode",
                     "mode is abort or wait: a request that is kept could see two versions of the "
                     "weights");
        return;
    }
    s->is_paused = true;
    if (strcmp(mode, "abort") == 0) cri_work_abort(s);
    s->pausing = cr_grow(s->pausing, s->num_pausing, &s->capacity_pausing, sizeof *s->pausing);
    s->pausing[s->num_pausing++] = x;
    cri_admin_collect(s);
}

void cri_answer_resume(cr_server *s, cr_http_exchange *x)
{
    s->is_paused = false;
    answer_waiting(s, "{\"status\":\"resumed\"}\n");
    answer_text(x, "{\"status\":\"resumed\"}\n");
}

void cri_answer_is_paused(cr_server *s, cr_http_exchange *x)
{
    answer_text(x, s->is_paused ? "{\"is_paused\":true}\n" : "{\"is_paused\":false}\n");
}

void cri_answer_versions(cr_server *s, cr_http_exchange *x)
{
    cr_buf body = {0};

    cr_serve_versions_body(s->service, &body);
    answer_text(x, body.data);
    cr_buf_free(&body);
}

void cri_answer_world_size(cr_server *s, cr_http_exchange *x)
{
    char text[64];

    snprintf(text, sizeof text, "{\"world_size\":%d}\n", s->service->num_ranks);
    answer_text(x, text);
}

void cri_refuse_paused(cr_http_exchange *x)
{
    cr_http_set(x, "Retry-After", "1");
    cr_http_fail(x, 503, "paused", NULL, "the service is paused (POST /resume)");
}
