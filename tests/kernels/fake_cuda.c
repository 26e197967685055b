/* A driver that notes what it is told, for tests on machines without a device. */
#include <stdint.h>
#include <string.h>
static int64_t noted[64];
static int num_noted, contextless;
int64_t *notes(void) { return noted; }
int num_notes(void) { return num_noted; }
void lose_context(void) { contextless = 1; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(1000 + device); return 0; }
int cuCtxPushCurrent_v2(void *context) { (void)context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = 0; return 0; }
int cuCtxSetCurrent(void *context) { contextless = 0; return context ? 0 : 1; }
int cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return 0; }
int cuModuleLoadData(void **module, const char *image) { *module = (void *)7; return strcmp(image, "device code") ? 200 : 0; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = (void *)(uintptr_t)(strlen(name) + (uintptr_t)module);
    return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; return attribute == 8 && value > 49152 ? 0 : 1; }
int cuGetErrorName(int status, const char **name) { *name = status == 200 ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR_UNKNOWN"; return 0; }
/* Notes the launch, then six arguments: four of eight bytes, one of four, one of eight. */
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **given, void **extra)
{
    if (contextless) return 201;
    int64_t launch[] = {(int64_t)(uintptr_t)function, gx, gy, gz, bx, by, bz, shared, (int64_t)(uintptr_t)stream, extra != 0};
    memcpy(noted, launch, sizeof launch);
    num_noted = sizeof launch / 8;
    for (int i = 0; i < 6; i++)
        noted[num_noted++] = i == 4 ? *(int32_t *)given[i] : *(int64_t *)given[i];
    return 0;
}
