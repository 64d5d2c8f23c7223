/* parser.c -- bodies to requests: small ones by the thread that wants them, large ones and chats with images by threads of their own, while the model computes. */
#include "serve/server/server_impl.h"

#include "serve/answer.h"

enum { THREADS = 4 }; /* a chat whose images take long holds up no other */

struct cri_parser {
    cr_server *s;
    pthread_t threads[THREADS];
    pthread_mutex_t lock;
    pthread_cond_t has_work;
    cr_serve_job *first, **end; /* under the lock, as is: */
    bool has_ended;
};

void cri_parse(const cr_server *s, cr_serve_job *job)
{
    cr_serve_request *request = CR_NEW(cr_serve_request);

    job->is_parsed = true;
    if (!job->is_cancelled &&
        cr_serve_request_parse(job->route, job->body.data ? job->body.data : "",
                               job->body.num_bytes, s->service, request, &job->error) == CR_OK) {
        cr_serve_job_note(job, request);
        job->request = request;
    } else {
        cr_free(request);
    }
}

static void *run(void *ctx)
{
    cri_parser *p = ctx;

    pthread_mutex_lock(&p->lock);
    while (!p->has_ended) {
        cr_serve_job *job = p->first;
        if (!job) {
            pthread_cond_wait(&p->has_work, &p->lock);
            continue;
        }
        p->first = job->next;
        if (!p->first) p->end = &p->first;
        pthread_mutex_unlock(&p->lock);
        cri_parse(p->s, job);
        cr_serve_queue_put_back(p->s->compute, job);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

cri_parser *cri_parser_open(cr_server *s)
{
    cri_parser *p = CR_NEW(cri_parser);

    p->s = s;
    p->end = &p->first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->has_work, NULL);
    for (int i = 0; i < THREADS; i++)
        CR_CHECK(pthread_create(&p->threads[i], NULL, run, p) == 0, "no thread can be started");
    return p;
}

void cri_parser_put(cri_parser *p, cr_serve_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&p->lock);
    *p->end = job;
    p->end = &job->next;
    pthread_cond_signal(&p->has_work);
    pthread_mutex_unlock(&p->lock);
}

void cri_parser_close(cri_parser *p)
{
    pthread_mutex_lock(&p->lock);
    p->has_ended = true;
    pthread_cond_broadcast(&p->has_work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < THREADS; i++)
        pthread_join(p->threads[i], NULL);
    for (cr_serve_job *job = p->first, *next; job; job = next) {
        next = job->next;
        cr_serve_queue_put_back(p->s->compute, job);
    }
    pthread_cond_destroy(&p->has_work);
    pthread_mutex_destroy(&p->lock);
    cr_free(p);
}
