//go:build nixl && cgo && linux

package nixl

// #cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"
)

// library is an open library. Its functions may be called from any thread.
type library struct {
	path  string
	funcs *C.struct_tandem_nixl
}

// Open libraries, by path. They stay open until the process ends.
var (
	openMu sync.Mutex
	opened = map[string]*library{}
)

// openLibrary opens the first library that can be opened, after it has set the environment that the library reads.
func openLibrary(named string) (*library, error) {
	openMu.Lock()
	defer openMu.Unlock()
	if err := setEnvironment(); err != nil {
		return nil, err
	}
	var looked []string
	for _, path := range candidates(named) {
		lib, err := open(path)
		if err == nil {
			return lib, nil
		}
		looked = append(looked, path+" ("+err.Error()+")")
	}
	return nil, notFound(looked)
}

func open(path string) (*library, error) {
	path, err := absolute(path)
	if err != nil {
		return nil, err
	}
	if lib, ok := opened[path]; ok {
		return lib, nil
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	funcs := (*C.struct_tandem_nixl)(C.calloc(1, C.sizeof_struct_tandem_nixl))
	var why [512]C.char
	C.tandem_nixl_open(name, funcs, &why[0], C.size_t(len(why)))
	if why[0] != 0 {
		C.free(unsafe.Pointer(funcs))
		return nil, errors.New(C.GoString(&why[0]))
	}
	opened[path] = &library{path, funcs}
	return opened[path], nil
}

// notFound lists where the library was searched for, and what was wrong there.
func notFound(looked []string) error {
	return fmt.Errorf("%w: name %s with %s, or install the wheel nixl-cu12 or nixl-cu13; looked at %s",
		ErrNoLibrary, soname, EnvLibrary, strings.Join(looked, "; "))
}

// check returns the error for a status.
func check(call string, status C.int) error {
	if status == 0 {
		return nil
	}
	return &CallError{Call: call, Status: Status(status)}
}

// start creates an agent with the UCX backend. After a failure it destroys what it has created.
func (l *library) start(c Config, name string) (agent, backend unsafe.Pointer, err error) {
	config := C.struct_tandem_nixl_config{
		progress: true, progress_us: C.uint64_t(c.Progress.Microseconds()),
		sync:      2,      // others of this program may use the library at the same time
		listen_us: 100000, // the thread is off; 0 would spin, if a version turned it on
	}
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	if err := check("create_configured_agent", C.tandem_nixl_create_configured_agent(l.funcs, n, &config, &agent)); err != nil {
		return nil, nil, err
	}
	if backend, err = l.backend(agent, c.TLS); err != nil {
		C.tandem_nixl_destroy_agent(l.funcs, agent)
		return nil, nil, err
	}
	return agent, backend, nil
}

func (l *library) backend(agent unsafe.Pointer, tls string) (backend unsafe.Pointer, err error) {
	var params unsafe.Pointer
	if err := check("create_params", C.tandem_nixl_create_params(l.funcs, &params)); err != nil {
		return nil, err
	}
	defer C.tandem_nixl_destroy_params(l.funcs, params)
	if tls != "" {
		key, value := C.CString("engine_config"), C.CString("TLS="+tls)
		defer C.free(unsafe.Pointer(key))
		defer C.free(unsafe.Pointer(value))
		if err := check("params_add", C.tandem_nixl_params_add(l.funcs, params, key, value)); err != nil {
			return nil, err
		}
	}
	kind := C.CString("UCX")
	defer C.free(unsafe.Pointer(kind))
	return backend, check("create_backend", C.tandem_nixl_create_backend(l.funcs, agent, kind, params, &backend))
}

func (l *library) stop(agent, backend unsafe.Pointer) error {
	return errors.Join(check("destroy_backend", C.tandem_nixl_destroy_backend(l.funcs, backend)),
		check("destroy_agent", C.tandem_nixl_destroy_agent(l.funcs, agent)))
}

// metadata returns the metadata that peers load to reach the agent.
func (l *library) metadata(agent unsafe.Pointer) ([]byte, error) {
	var data unsafe.Pointer
	var size C.size_t
	if err := check("get_local_md", C.tandem_nixl_get_local_md(l.funcs, agent, &data, &size)); err != nil {
		return nil, err
	}
	defer C.free(data)
	return C.GoBytes(data, C.int(size)), nil
}

// load makes a remote agent known, under the name that its metadata begins with.
func (l *library) load(agent unsafe.Pointer, blob []byte) error {
	var name *C.char
	data := C.CBytes(blob)
	defer C.free(data)
	err := check("load_remote_md", C.tandem_nixl_load_remote_md(l.funcs, agent, data, C.size_t(len(blob)), &name))
	if err != nil {
		return err
	}
	C.free(unsafe.Pointer(name))
	return nil
}

// invalidate makes the library forget a remote agent. Its error is ignored, because versions report an unknown agent in
// different ways.
func (l *library) invalidate(agent unsafe.Pointer, name string) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	C.tandem_nixl_invalidate_remote_md(l.funcs, agent, n)
}

func (l *library) connect(agent unsafe.Pointer, name string) error {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return check("agent_make_connection", C.tandem_nixl_agent_make_connection(l.funcs, agent, n, nil))
}

func (l *library) notify(agent unsafe.Pointer, name string, message []byte) error {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	data := C.CBytes(message)
	defer C.free(data)
	return check("gen_notif", C.tandem_nixl_gen_notif(l.funcs, agent, n, data, C.size_t(len(message)), nil))
}

// inbox creates the library's list of received messages.
func (l *library) inbox() (list unsafe.Pointer, err error) {
	return list, check("create_notif_map", C.tandem_nixl_create_notif_map(l.funcs, &list))
}

func (l *library) freeInbox(list unsafe.Pointer) { C.tandem_nixl_destroy_notif_map(l.funcs, list) }

// fetch passes new messages to take, one by one. take may keep them.
func (l *library) fetch(agent, list unsafe.Pointer, take func(from string, message []byte)) error {
	if err := check("get_notifs", C.tandem_nixl_get_notifs(l.funcs, agent, list, nil)); err != nil {
		return err
	}
	var senders C.size_t
	if err := check("notif_map_size", C.tandem_nixl_notif_map_size(l.funcs, list, &senders)); err != nil || senders == 0 {
		return err
	}
	// The next fetch appends to the list, so messages that stay in it would be received twice.
	defer C.tandem_nixl_notif_map_clear(l.funcs, list)
	for i := range senders {
		if err := l.fetchFrom(list, i, take); err != nil {
			return err
		}
	}
	return nil
}

func (l *library) fetchFrom(list unsafe.Pointer, sender C.size_t, take func(from string, message []byte)) error {
	var name *C.char
	if err := check("notif_map_get_agent_at", C.tandem_nixl_notif_map_get_agent_at(l.funcs, list, sender, &name)); err != nil {
		return err
	}
	var count C.size_t
	if err := check("notif_map_get_notifs_size", C.tandem_nixl_notif_map_get_notifs_size(l.funcs, list, name, &count)); err != nil {
		return err
	}
	from := C.GoString(name)
	for i := range count {
		var data unsafe.Pointer
		var size C.size_t
		if err := check("notif_map_get_notif", C.tandem_nixl_notif_map_get_notif(l.funcs, list, name, i, &data, &size)); err != nil {
			return err
		}
		take(from, C.GoBytes(data, C.int(size)))
	}
	return nil
}
