//go:build nixl && cgo && linux

package nixl

// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"errors"
	"time"
	"unsafe"
)

// errPending is the outcome of a request that has not ended.
var errPending = errors.New("under way")

// piece is a run of bytes in a peer's memory. C code reads it, so it has no pointers.
type piece struct{ address, length uint64 }

// outcome returns the error for a status, which may be that of a running request.
func outcome(call *C.char, status C.int) error {
	if status == C.TANDEM_NIXL_PENDING {
		return errPending
	}
	if status == 0 {
		return nil
	}
	return check(C.GoString(call), status)
}

// register registers memory with the library. The library accepts any address, even of unmapped memory.
func (l *library) register(agent unsafe.Pointer, e extent) error {
	return l.memory(agent, e, true)
}

// deregister undoes register. Address and length must be the same.
func (l *library) deregister(agent unsafe.Pointer, e extent) error {
	return l.memory(agent, e, false)
}

func (l *library) memory(agent unsafe.Pointer, e extent, add C.bool) error {
	var call *C.char
	status := C.tandem_nixl_memory(l.funcs, agent, C.uintptr_t(e.address), C.size_t(e.length), add, &call)
	return outcome(call, status)
}

// read starts to read pieces into local, one after the other. Usually the error is errPending. The caller must end the request,
// even one that failed; a nil request means that nothing moves.
func (l *library) read(agent unsafe.Pointer, peer string, local uintptr, pieces []piece) (unsafe.Pointer, error) {
	name := C.CString(peer)
	defer C.free(unsafe.Pointer(name))
	var call *C.char
	var request unsafe.Pointer
	first := (*C.struct_tandem_nixl_piece)(unsafe.Pointer(unsafe.SliceData(pieces)))
	status := C.tandem_nixl_read(l.funcs, agent, name, C.uintptr_t(local), first, C.size_t(len(pieces)), &request, &call)
	return request, outcome(call, status)
}

// wait polls a request until it has ended, for at most so long. It returns errPending if the request has not ended.
func (l *library) wait(agent, request unsafe.Pointer, most time.Duration) error {
	status := C.tandem_nixl_wait(l.funcs, agent, request, C.int64_t(most.Nanoseconds()))
	switch status {
	case 0:
		return nil
	case C.TANDEM_NIXL_PENDING:
		return errPending
	}
	return check("get_xfer_status", status)
}

// end releases a request. If it has not ended, its bytes still arrive.
func (l *library) end(agent, request unsafe.Pointer) error {
	return check("release_xfer_req", C.tandem_nixl_end(l.funcs, agent, request))
}
