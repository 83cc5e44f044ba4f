package transport

import (
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// vectored moves many buffers with one system call. net.Buffers would do for writing, but it waits for the peer inside the
// call: the memory's lock would be held for as long as a slow peer likes. Here the runtime's poller waits between
// two calls, and the lock is held only within one. For reading the standard library has no vectored call at all; with 16 KiB
// blocks it makes the difference of a factor of two or more. Not for concurrent use, but for one reader beside one writer
// with a vectored each.
type vectored struct {
	conn net.Conn
	raw  syscall.RawConn
	iov  []syscall.Iovec

	// What attempt works on: fields, because a closure made for every call would be garbage on every call.
	trap  uintptr
	guard *region
	n     int
	errno syscall.Errno
	shut  bool
	step  func(fd uintptr) bool
}

func newVectored(conn *net.TCPConn) (*vectored, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	v := &vectored{conn: conn, raw: raw}
	v.step = v.attempt
	return v, nil
}

// read fills as much of the buffers as has arrived, at least one byte, skipping the first bytes of the first one.
func (v *vectored) read(bufs [][]byte, skip int) (int, error) {
	v.load(bufs, skip)
	v.trap, v.guard = syscall.SYS_READV, nil
	if err := v.raw.Read(v.step); err != nil {
		return 0, err
	}
	if v.errno == 0 && v.n == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return v.result("readv")
}

// write sends as much of the buffers as the socket takes, at least one byte, skipping the first bytes of the first one.
// It holds guard, if there is one, while bytes are copied; errShut means that the region has been closed, and nothing was sent.
func (v *vectored) write(bufs [][]byte, skip int, guard *region) (int, error) {
	v.load(bufs, skip)
	v.trap, v.guard = syscall.SYS_WRITEV, guard
	if err := v.raw.Write(v.step); err != nil {
		return 0, err
	}
	if v.shut {
		return 0, errShut
	}
	return v.result("writev")
}

// load turns buffers into what the kernel wants. Empty ones are left out: a vector of nothing but those would read as
// the end of the stream.
func (v *vectored) load(bufs [][]byte, skip int) {
	v.iov = v.iov[:0]
	for _, b := range bufs {
		b = b[skip:]
		skip = 0
		if len(b) == 0 {
			continue
		}
		if len(v.iov) == maxSpans {
			break
		}
		e := syscall.Iovec{Base: unsafe.SliceData(b)}
		e.SetLen(len(b))
		v.iov = append(v.iov, e)
	}
	v.n, v.errno, v.shut = 0, 0, false
}

// attempt is one non-blocking system call; false asks the poller to wait and call again.
func (v *vectored) attempt(fd uintptr) bool {
	if v.guard != nil {
		if v.shut = !v.guard.hold(); v.shut {
			return true
		}
		defer v.guard.letGo()
	}
	for {
		n, _, errno := syscall.Syscall(v.trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(v.iov))), uintptr(len(v.iov)))
		if errno == syscall.EINTR {
			continue
		}
		v.n, v.errno = int(n), errno
		runtime.KeepAlive(v.iov)
		return errno != syscall.EAGAIN
	}
}

func (v *vectored) result(call string) (int, error) {
	clear(v.iov) // or the buffers would live as long as the connection
	if v.errno != 0 {
		return 0, os.NewSyscallError(call, v.errno)
	}
	return v.n, nil
}
