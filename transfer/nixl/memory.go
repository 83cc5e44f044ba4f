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

// piece is a run of bytes in a peer's memory. It is handed to C as it is, so it holds no pointers.
type piece struct{ address, length uint64 }

// outcome makes an error of a status that can be that of a request under way.
func outcome(call *C.char, status C.int) error {
	if status == C.TANDEM_NIXL_PENDING {
		return errPending
	}
	if status == 0 {
		return nil
	}
	return check(C.GoString(call), status)
}

// register makes memory known to the library. It takes any address, also one that is not mapped.
func (l *library) register(agent unsafe.Pointer, e extent) error {
	return l.memory(agent, e, true)
}

// deregister takes back what was registered with just that address and length.
func (l *library) deregister(agent unsafe.Pointer, e extent) error {
	return l.memory(agent, e, false)
}

func (l *library) memory(agent unsafe.Pointer, e extent, add C.bool) error {
	var call *C.char
	status := C.tandem_nixl_memory(l.funcs, agent, C.uintptr_t(e.address), C.size_t(e.length), add, &call)
	return outcome(call, status)
}

// read starts to read pieces into local, one behind the other. The error is errPending as a rule. A request, also one that
// failed, is to be ended; nil means that there is none, and so that nothing moves.
func (l *library) read(agent unsafe.Pointer, peer string, local uintptr, pieces []piece) (unsafe.Pointer, error) {
	name := C.CString(peer)
	defer C.free(unsafe.Pointer(name))
	var call *C.char
	var request unsafe.Pointer
	first := (*C.struct_tandem_nixl_piece)(unsafe.Pointer(unsafe.SliceData(pieces)))
	status := C.tandem_nixl_read(l.funcs, agent, name, C.uintptr_t(local), first, C.size_t(len(pieces)), &request, &call)
	return request, outcome(call, status)
}

// wait asks about a request until it has ended, at most so long. errPending: it has not.
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

// end returns a request back. One that has not ended goes on writing all the same.
func (l *library) end(agent, request unsafe.Pointer) error {
	return check("release_xfer_req", C.tandem_nixl_end(l.funcs, agent, request))
}
