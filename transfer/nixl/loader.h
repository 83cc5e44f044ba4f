// The C interface of NIXL as far as it is used here, declared by this package, since the wheels bring no header. Names and
// arguments are the same in versions 0.10.1 to 1.5.1.
#ifndef TANDEM_NIXL_LOADER_H
#define TANDEM_NIXL_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tandem_nixl_config {
	bool progress;
	bool listen;
	int listen_port;
	int sync; // 0 none, 1 strict, 2 read-write
	unsigned workers;
	uint64_t progress_us;
	uint64_t listen_us;
	bool telemetry;
};

// All functions that return a status: F(name, (arguments), parameters...).
#define TANDEM_NIXL_FUNCTIONS(F) \
	F(create_configured_agent, (name, config, agent), const char *name, const struct tandem_nixl_config *config, void **agent) \
	F(destroy_agent, (agent), void *agent) \
	F(create_params, (params), void **params) \
	F(destroy_params, (params), void *params) \
	F(create_backend, (agent, kind, params, backend), void *agent, const char *kind, void *params, void **backend) \
	F(destroy_backend, (backend), void *backend) \
	F(get_local_md, (agent, data, length), void *agent, void **data, size_t *length) \
	F(load_remote_md, (agent, data, length, name), void *agent, const void *data, size_t length, char **name) \
	F(invalidate_remote_md, (agent, name), void *agent, const char *name) \
	F(agent_make_connection, (agent, name, options), void *agent, const char *name, void *options) \
	F(gen_notif, (agent, name, data, length, options), void *agent, const char *name, const void *data, size_t length, void *options) \
	F(create_notif_map, (map), void **map) \
	F(destroy_notif_map, (map), void *map) \
	F(get_notifs, (agent, map, options), void *agent, void *map, void *options) \
	F(notif_map_size, (map, size), void *map, size_t *size) \
	F(notif_map_get_agent_at, (map, index, name), void *map, size_t index, const char **name) \
	F(notif_map_get_notifs_size, (map, name, size), void *map, const char *name, size_t *size) \
	F(notif_map_get_notif, (map, name, index, data, length), \
		void *map, const char *name, size_t index, const void **data, size_t *length) \
	F(notif_map_clear, (map), void *map) \
	F(params_add, (params, key, value), void *params, const char *key, const char *value) \
	F(create_reg_dlist, (kind, list), int kind, void **list) \
	F(reg_dlist_add_desc, (list, address, length, device, data, size), \
		void *list, uintptr_t address, size_t length, uint64_t device, const void *data, size_t size) \
	F(destroy_reg_dlist, (list), void *list) \
	F(register_mem, (agent, list, options), void *agent, void *list, void *options) \
	F(deregister_mem, (agent, list, options), void *agent, void *list, void *options) \
	F(create_xfer_dlist, (kind, list), int kind, void **list) \
	F(xfer_dlist_add_desc, (list, address, length, device), void *list, uintptr_t address, size_t length, uint64_t device) \
	F(destroy_xfer_dlist, (list), void *list) \
	F(create_xfer_req, (agent, op, local, remote, name, request, options), \
		void *agent, int op, void *local, void *remote, const char *name, void **request, void *options) \
	F(post_xfer_req, (agent, request, options), void *agent, void *request, void *options) \
	F(get_xfer_status, (agent, request), void *agent, void *request) \
	F(release_xfer_req, (agent, request), void *agent, void *request) \
	F(destroy_xfer_req, (request), void *request)

struct tandem_nixl {
	bool (*is_stub)(void);
#define F(name, args, ...) int (*name)(__VA_ARGS__);
	TANDEM_NIXL_FUNCTIONS(F)
#undef F
};

// Go cannot call a pointer: tandem_nixl_NAME calls the library's function of that name.
#define F(name, args, ...) \
	static inline int tandem_nixl_##name(const struct tandem_nixl *lib, __VA_ARGS__) { return lib->name args; }
TANDEM_NIXL_FUNCTIONS(F)
#undef F

// tandem_nixl_open opens the library at path and finds its functions. It writes into why what went wrong, or nothing. A
// library is never closed: it leaves threads behind that run its code.
void tandem_nixl_open(const char *path, struct tandem_nixl *lib, char *why, size_t size);

// What a status above 0 means: a transfer that has not ended.
#define TANDEM_NIXL_PENDING 1

// A run of bytes in a peer's memory.
struct tandem_nixl_piece {
	uint64_t address;
	uint64_t length;
};

// tandem_nixl_memory registers memory, or gives it back. On failure call is the function that failed.
int tandem_nixl_memory(const struct tandem_nixl *lib, void *agent, uintptr_t address, size_t length,
		bool add, const char **call);

// tandem_nixl_read starts to read pieces of a peer's memory into local, one behind the other. The request is to be given to
// tandem_nixl_end, also when posting it failed; it is NULL if there is none. On failure call is the function that failed.
int tandem_nixl_read(const struct tandem_nixl *lib, void *agent, const char *peer, uintptr_t local,
	const struct tandem_nixl_piece *pieces, size_t count, void **request, const char **call);

// tandem_nixl_wait asks for a request's status until it has ended, or for so many nanoseconds.
int tandem_nixl_wait(const struct tandem_nixl *lib, void *agent, void *request, int64_t nanoseconds);

// tandem_nixl_end gives a request back. It does not stop one that has not ended.
int tandem_nixl_end(const struct tandem_nixl *lib, void *agent, void *request);

#endif
