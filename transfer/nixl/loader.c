//go:build nixl && cgo && linux

#include "loader.h"

#include <dlfcn.h>
#include <stdio.h>

#define PREFIX "nixl_capi_"

// find looks a function up; the first that is missing is written into why.
static void *find(void *handle, const char *name, char *why, size_t size) {
	void *f = dlsym(handle, name);
	if (f == NULL && why[0] == 0) {
		snprintf(why, size, "has no function %s: it is another version, or another library", name);
	}
	return f;
}

void tandem_nixl_open(const char *path, struct tandem_nixl *lib, char *why, size_t size) {
	why[0] = 0;
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL) {
		const char *reason = dlerror();
		snprintf(why, size, "%s", reason != NULL ? reason : "cannot be opened");
		return;
	}
	lib->is_stub = (bool (*)(void))find(handle, PREFIX "is_stub", why, size);
#define F(name, args, ...) lib->name = (int (*)(__VA_ARGS__))find(handle, PREFIX #name, why, size);
	TANDEM_NIXL_FUNCTIONS(F)
#undef F
	if (why[0] == 0 && lib->is_stub()) {
		snprintf(why, size, "is a stub that can do nothing");
	}
}
