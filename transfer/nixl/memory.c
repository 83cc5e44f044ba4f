//go:build nixl && cgo && linux

#include "loader.h"

#include <sched.h>
#include <time.h>

#define DRAM 0 // the kind of memory: the host's
#define READ 0 // the direction: from the peer to here

// TRY runs one step, unless an earlier one failed, and notes which one did.
#define TRY(function, ...) \
	do { \
		if (status == 0 && (status = lib->function(__VA_ARGS__)) != 0) { \
			*call = #function; \
		} \
	} while (0)

int tandem_nixl_memory(const struct tandem_nixl *lib, void *agent, uintptr_t address, size_t length,
		bool add, const char **call) {
	void *list = NULL;
	int status = 0;
	TRY(create_reg_dlist, DRAM, &list);
	TRY(reg_dlist_add_desc, list, address, length, 0, NULL, 0);
	if (add) {
		TRY(register_mem, agent, list, NULL);
	} else {
		TRY(deregister_mem, agent, list, NULL);
	}
	if (list != NULL) {
		lib->destroy_reg_dlist(list);
	}
	return status;
}

int tandem_nixl_read(const struct tandem_nixl *lib, void *agent, const char *peer, uintptr_t local,
		const struct tandem_nixl_piece *pieces, size_t count, void **request, const char **call) {
	void *to = NULL, *from = NULL;
	int status = 0;
	TRY(create_xfer_dlist, DRAM, &to);
	TRY(create_xfer_dlist, DRAM, &from);
	for (size_t i = 0; i < count && status == 0; i++) {
		TRY(xfer_dlist_add_desc, to, local, pieces[i].length, 0);
		TRY(xfer_dlist_add_desc, from, pieces[i].address, pieces[i].length, 0);
		local += pieces[i].length;
	}
	TRY(create_xfer_req, agent, READ, to, from, peer, request, NULL);
	TRY(post_xfer_req, agent, *request, NULL); // fails with TANDEM_NIXL_PENDING as a rule
	if (to != NULL) {
		lib->destroy_xfer_dlist(to);
	}
	if (from != NULL) {
		lib->destroy_xfer_dlist(from);
	}
	return status;
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int tandem_nixl_wait(const struct tandem_nixl *lib, void *agent, void *request, int64_t nanoseconds) {
	for (int64_t end = now() + nanoseconds;;) {
		int status = lib->get_xfer_status(agent, request);
		if (status != TANDEM_NIXL_PENDING || now() >= end) {
			return status;
		}
		sched_yield(); // to the library's own thread, which may need this core to get on
	}
}

int tandem_nixl_end(const struct tandem_nixl *lib, void *agent, void *request) {
	int status = lib->release_xfer_req(agent, request);
	return status != 0 ? status : lib->destroy_xfer_req(request);
}
