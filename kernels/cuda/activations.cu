/* activations.cu -- SwiGLU, GELU and GeGLU, forward and backward.
 *
 * Mapping: as in flat.cu a thread takes 8 neighbouring elements; an element's result depends on that element alone.
 * Bytes an element in bf16: gelu 4, gelu_grad 6, swiglu and geglu 6, their gradients 10 (12 with h). All are bound by memory on H100 and H200; gelu by erfc takes about 40
 * FLOPs an element, a tenth of what fp32 units do in that time. No shared memory; below 64 registers.
 */
#include "kernels/cuda/op.h"

#include <math.h>

/* ---- activations: act(x), and its slope ---- */

struct silu {
    static __device__ __forceinline__ float value(float x)
    {
        return x * (1.0f / (1.0f + expf(-x)));
    }
    static __device__ __forceinline__ float slope(float x)
    {
        float s = 1.0f / (1.0f + expf(-x));
        return s * fmaf(x, 1.0f - s, 1.0f);
    }
};

struct gelu_erf {
    static __device__ __forceinline__ float below(float x)
    {
        return 0.5f * erfcf(x * -0.70710678118654752f);
    }
    static __device__ __forceinline__ float value(float x)
    {
        return x * below(x);
    }
    static __device__ __forceinline__ float slope(float x)
    {
        return fmaf(x * expf(x * x * -0.5f), 0.398942280f, below(x));
    }
};

/* (1 + tanh u) / 2 for u = sqrt(2 / pi) (x + 0.044715 x^3) is the logistic function of 2 u. */
struct gelu_tanh {
    static __device__ __forceinline__ float below(float x)
    {
        return 1.0f / (1.0f + expf(-(x * fmaf(x * x, 0.0713548163f, 1.59576912f))));
    }
    static __device__ __forceinline__ float value(float x)
    {
        return x * below(x);
    }
    static __device__ __forceinline__ float slope(float x)
    {
        float s = below(x);
        return fmaf(x * s * (1.0f - s), fmaf(x * x, 0.214064449f, 1.59576912f), s);
    }
};

/* y = act(x), or act(x), rounded, times up. */
template <class T, class Act, bool IS_GATED> struct act_op {
    const T *x, *up;
    T *y;
    bool is_fast;

    __device__ void operator()(int64_t i, int64_t num) const
    {
        float f[PER], u[PER];
        load8(f, x, i, num, is_fast);
        if (IS_GATED) load8(u, up, i, num, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            f[e] = IS_GATED ? rounded<T>(Act::value(f[e])) * u[e] : Act::value(f[e]);
        store8(y, i, num, is_fast, f);
    }
};

/* dx = dy act'(x); gated: dx = dy up act'(x), dup = dy act(x), and y of the forward if it is not NULL. */
template <class T, class Act, bool IS_GATED> struct act_grad_op {
    const T *x, *up, *dy;
    T *dx, *dup, *y;
    bool is_fast;

    __device__ void operator()(int64_t i, int64_t num) const
    {
        float f[PER], u[PER], g[PER], d[PER];
        load8(f, x, i, num, is_fast);
        load8(g, dy, i, num, is_fast);
        if (IS_GATED) load8(u, up, i, num, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++) {
            d[e] = IS_GATED ? g[e] * u[e] * Act::slope(f[e]) : g[e] * Act::slope(f[e]);
            f[e] = Act::value(f[e]);
            g[e] *= f[e];
            if (IS_GATED) u[e] *= rounded<T>(f[e]);
        }
        store8(dx, i, num, is_fast, d);
        if (IS_GATED) store8(dup, i, num, is_fast, g);
        if (IS_GATED && y) store8(y, i, num, is_fast, u);
    }
};

/* up NULL: not gated. */
template <class T, class Act>
static cudaError_t forward(cr_device *dev, const cr_mem *x, const cr_mem *up, cr_mem *y, size_t num)
{
    bool is_fast = is_wide(x) && is_wide(up) && is_wide(y);
    const act_op<T, Act, true> gated = {in<T>(x), in<T>(up), out<T>(y), is_fast};
    const act_op<T, Act, false> plain = {in<T>(x), NULL, out<T>(y), is_fast};

    return up ? on_each(dev, gated, num) : on_each(dev, plain, num);
}

template <class T, class Act>
static cudaError_t backward(cr_device *dev, const cr_mem *x, const cr_mem *up, const cr_mem *dy,
                            cr_mem *dx, cr_mem *dup, cr_mem *y, size_t num)
{
    bool is_fast =
        is_wide(x) && is_wide(up) && is_wide(dy) && is_wide(dx) && is_wide(dup) && is_wide(y);
    const act_grad_op<T, Act, true> gated = {in<T>(x),    in<T>(up), in<T>(dy), out<T>(dx),
                                             out<T>(dup), out<T>(y), is_fast};
    const act_grad_op<T, Act, false> plain = {in<T>(x), NULL, in<T>(dy), out<T>(dx),
                                              NULL,     NULL, is_fast};

    return up ? on_each(dev, gated, num) : on_each(dev, plain, num);
}

template <class T> static cudaError_t swiglu(cr_device *dev, const cr_swiglu_args *a)
{
    return forward<T, silu>(dev, a->gate, a->up, a->h, a->num);
}

cr_status cri_cuda_swiglu(cr_device *dev, const cr_swiglu_args *a, cr_err *err)
{
    return launched("swiglu", CRI_BY_DTYPE(a->dtype, swiglu, dev, a), err);
}

template <class T> static cudaError_t swiglu_grad(cr_device *dev, const cr_swiglu_grad_args *a)
{
    return backward<T, silu>(dev, a->gate, a->up, a->dh, a->dgate, a->dup, a->h, a->num);
}

cr_status cri_cuda_swiglu_grad(cr_device *dev, const cr_swiglu_grad_args *a, cr_err *err)
{
    return launched("swiglu_grad", CRI_BY_DTYPE(a->dtype, swiglu_grad, dev, a), err);
}

template <class T> static cudaError_t gelu(cr_device *dev, const cr_gelu_args *a)
{
    return a->kind == CR_GELU_ERF ? forward<T, gelu_erf>(dev, a->x, NULL, a->y, a->num)
                                  : forward<T, gelu_tanh>(dev, a->x, NULL, a->y, a->num);
}

cr_status cri_cuda_gelu(cr_device *dev, const cr_gelu_args *a, cr_err *err)
{
    return launched("gelu", CRI_BY_DTYPE(a->dtype, gelu, dev, a), err);
}

template <class T> static cudaError_t gelu_grad(cr_device *dev, const cr_gelu_grad_args *a)
{
    return a->kind == CR_GELU_ERF
               ? backward<T, gelu_erf>(dev, a->x, NULL, a->dy, a->dx, NULL, NULL, a->num)
               : backward<T, gelu_tanh>(dev, a->x, NULL, a->dy, a->dx, NULL, NULL, a->num);
}

cr_status cri_cuda_gelu_grad(cr_device *dev, const cr_gelu_grad_args *a, cr_err *err)
{
    return launched("gelu_grad", CRI_BY_DTYPE(a->dtype, gelu_grad, dev, a), err);
}

template <class T> static cudaError_t geglu(cr_device *dev, const cr_geglu_args *a)
{
    return a->kind == CR_GELU_ERF ? forward<T, gelu_erf>(dev, a->gate, a->up, a->h, a->num)
                                  : forward<T, gelu_tanh>(dev, a->gate, a->up, a->h, a->num);
}

cr_status cri_cuda_geglu(cr_device *dev, const cr_geglu_args *a, cr_err *err)
{
    return launched("geglu", CRI_BY_DTYPE(a->dtype, geglu, dev, a), err);
}

template <class T> static cudaError_t geglu_grad(cr_device *dev, const cr_geglu_grad_args *a)
{
    return a->kind == CR_GELU_ERF
               ? backward<T, gelu_erf>(dev, a->gate, a->up, a->dh, a->dgate, a->dup, NULL, a->num)
               : backward<T, gelu_tanh>(dev, a->gate, a->up, a->dh, a->dgate, a->dup, NULL, a->num);
}

cr_status cri_cuda_geglu_grad(cr_device *dev, const cr_geglu_grad_args *a, cr_err *err)
{
    return launched("geglu_grad", CRI_BY_DTYPE(a->dtype, geglu_grad, dev, a), err);
}
