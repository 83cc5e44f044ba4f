// A library with NIXL's C interface that fails on command, for failures that the real one will not produce. The file that
// FAKE_NIXL names holds lines "function status": a call of that function returns that status, or, for "hang", sleeps. Agents
// of this process reach each other by name; metadata is what the real library makes as far as a reader goes: the name.
//
// Built with -DSTUB it says it is a stub; with -DOLD a function is missing.
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX 64

struct message {
	char from[256], to[256];
	size_t length;
	void *data;
	bool full;
};

struct agent {
	char name[256];
};

struct list {
	struct message *messages[MAX];
	size_t count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct message post[MAX];

// verdict is what the command file says about a function.
static int verdict(const char *function) {
	const char *path = getenv("FAKE_NIXL");
	FILE *f = path != NULL ? fopen(path, "r") : NULL;
	if (f == NULL) {
		return 0;
	}
	char name[64], what[64];
	int status = 0;
	while (fscanf(f, "%63s %63s", name, what) == 2) {
		if (strcmp(name, function) != 0) {
			continue;
		}
		if (strcmp(what, "hang") == 0) {
			fclose(f);
			while (access(path, F_OK) == 0) {
				usleep(1000);
			}
			return 0;
		}
		status = atoi(what);
	}
	fclose(f);
	return status;
}

#define FAIL() \
	do { \
		int status = verdict(__func__ + strlen("nixl_capi_")); \
		if (status != 0) { \
			return status; \
		} \
	} while (0)

bool nixl_capi_is_stub(void) {
#ifdef STUB
	return true;
#else
	return false;
#endif
}

int nixl_capi_create_configured_agent(const char *name, const void *config, void **agent) {
	(void)config;
	FAIL();
	struct agent *a = calloc(1, sizeof *a);
	snprintf(a->name, sizeof a->name, "%s", name);
	*agent = a;
	return 0;
}

int nixl_capi_destroy_agent(void *agent) {
	FAIL();
	free(agent);
	return 0;
}

int nixl_capi_create_params(void **params) {
	FAIL();
	*params = malloc(1);
	return 0;
}

int nixl_capi_destroy_params(void *params) {
	free(params);
	return 0;
}

int nixl_capi_create_backend(void *agent, const char *kind, void *params, void **backend) {
	(void)agent;
	FAIL();
	if (params == NULL || strcmp(kind, "UCX") != 0) {
		return -1;
	}
	*backend = malloc(1);
	return 0;
}

int nixl_capi_destroy_backend(void *backend) {
	FAIL();
	free(backend);
	return 0;
}

int nixl_capi_get_local_md(void *agent, void **data, size_t *length) {
	FAIL();
	const char *name = ((struct agent *)agent)->name;
	uint64_t size = strlen(name);
	char *p = malloc(32 + size);
	memcpy(p, "nixlSerDes|Agent", 16);
	memcpy(p + 16, &size, 8);
	memcpy(p + 24, name, size);
	p[24 + size] = '|';
	*data = p;
	*length = 25 + size;
	return 0;
}

int nixl_capi_load_remote_md(void *agent, const void *data, size_t length, char **name) {
	(void)agent;
	FAIL();
	*name = strndup((const char *)data + 24, length - 25);
	return 0;
}

int nixl_capi_invalidate_remote_md(void *agent, const char *name) {
	(void)agent, (void)name;
	FAIL();
	return 0;
}

int nixl_capi_agent_make_connection(void *agent, const char *name, void *options) {
	(void)agent, (void)name, (void)options;
	FAIL();
	return 0;
}

int nixl_capi_gen_notif(void *agent, const char *name, const void *data, size_t length, void *options) {
	(void)options;
	FAIL();
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < MAX; i++) {
		struct message *m = &post[i];
		if (m->full) {
			continue;
		}
		m->full = true;
		snprintf(m->from, sizeof m->from, "%s", ((struct agent *)agent)->name);
		snprintf(m->to, sizeof m->to, "%s", name);
		m->data = malloc(length + 1);
		memcpy(m->data, data, length);
		m->length = length;
		break;
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

#ifndef OLD
int nixl_capi_create_notif_map(void **map) {
	FAIL();
	*map = calloc(1, sizeof(struct list));
	return 0;
}
#endif

int nixl_capi_destroy_notif_map(void *map) {
	free(map);
	return 0;
}

int nixl_capi_get_notifs(void *agent, void *map, void *options) {
	(void)options;
	FAIL();
	struct list *l = map;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < MAX; i++) {
		if (post[i].full && strcmp(post[i].to, ((struct agent *)agent)->name) == 0) {
			l->messages[l->count++] = &post[i];
		}
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

int nixl_capi_notif_map_size(void *map, size_t *size) {
	FAIL();
	*size = ((struct list *)map)->count;
	return 0;
}

int nixl_capi_notif_map_get_agent_at(void *map, size_t index, const char **name) {
	FAIL();
	*name = ((struct list *)map)->messages[index]->from;
	return 0;
}

// Every message is a sender's only one: the list may name a sender twice, unlike the real one.
int nixl_capi_notif_map_get_notifs_size(void *map, const char *name, size_t *size) {
	(void)map, (void)name;
	FAIL();
	*size = 1;
	return 0;
}

int nixl_capi_notif_map_get_notif(void *map, const char *name, size_t index, const void **data, size_t *length) {
	(void)index;
	FAIL();
	struct list *l = map;
	for (size_t i = 0; i < l->count; i++) {
		if (l->messages[i]->from == name) {
			*data = l->messages[i]->data;
			*length = l->messages[i]->length;
			return 0;
		}
	}
	return -6;
}

int nixl_capi_notif_map_clear(void *map) {
	struct list *l = map;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < l->count; i++) {
		free(l->messages[i]->data);
		l->messages[i]->full = false;
	}
	pthread_mutex_unlock(&lock);
	l->count = 0;
	FAIL();
	return 0;
}

int nixl_capi_params_add(void *params, const char *key, const char *value) {
	(void)params, (void)key, (void)value;
	FAIL();
	return 0;
}

// Memory: a transfer that is asked about and may end copies its bytes then, and not before.
struct run {
	uintptr_t address;
	size_t length;
};

struct runs {
	struct run runs[2048];
	size_t count;
};

struct transfer {
	struct runs local, remote;
	bool ended;
};

static void add(struct runs *l, uintptr_t address, size_t length) {
	l->runs[l->count++] = (struct run){address, length};
}

int nixl_capi_create_reg_dlist(int kind, void **list) {
	(void)kind;
	FAIL();
	*list = calloc(1, sizeof(struct runs));
	return 0;
}

int nixl_capi_reg_dlist_add_desc(void *list, uintptr_t address, size_t length, uint64_t device, const void *data, size_t size) {
	(void)device, (void)data, (void)size;
	FAIL();
	add(list, address, length);
	return 0;
}

int nixl_capi_destroy_reg_dlist(void *list) {
	free(list);
	return 0;
}

int nixl_capi_register_mem(void *agent, void *list, void *options) {
	(void)agent, (void)list, (void)options;
	FAIL();
	return 0;
}

int nixl_capi_deregister_mem(void *agent, void *list, void *options) {
	(void)agent, (void)list, (void)options;
	FAIL();
	return 0;
}

int nixl_capi_create_xfer_dlist(int kind, void **list) {
	(void)kind;
	FAIL();
	*list = calloc(1, sizeof(struct runs));
	return 0;
}

int nixl_capi_xfer_dlist_add_desc(void *list, uintptr_t address, size_t length, uint64_t device) {
	(void)device;
	FAIL();
	add(list, address, length);
	return 0;
}

int nixl_capi_destroy_xfer_dlist(void *list) {
	free(list);
	return 0;
}

int nixl_capi_create_xfer_req(void *agent, int op, void *local, void *remote, const char *name, void **request, void *options) {
	(void)agent, (void)op, (void)name, (void)options;
	FAIL();
	struct transfer *t = calloc(1, sizeof *t);
	t->local = *(struct runs *)local;
	t->remote = *(struct runs *)remote;
	*request = t;
	return 0;
}

int nixl_capi_post_xfer_req(void *agent, void *request, void *options) {
	(void)agent, (void)request, (void)options;
	FAIL();
	return 1;
}

int nixl_capi_get_xfer_status(void *agent, void *request) {
	(void)agent;
	FAIL();
	struct transfer *t = request;
	for (size_t i = 0; i < t->local.count && !t->ended; i++) {
		memcpy((void *)t->local.runs[i].address, (const void *)t->remote.runs[i].address, t->local.runs[i].length);
	}
	t->ended = true;
	return 0;
}

int nixl_capi_release_xfer_req(void *agent, void *request) {
	(void)agent, (void)request;
	FAIL();
	return 0;
}

int nixl_capi_destroy_xfer_req(void *request) {
	free(request);
	return 0;
}
