package transport

import (
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// vectored moves many buffers with one system call. net.Buffers could write them, but waits for the peer inside of its call, so
// that a slow peer would decide how long the memory's lock is held. Here the runtime's poller waits between two calls, and the
// lock is held only within one. For reading, the standard library has no vectored call; with 16 KiB blocks, that makes a factor
// of two or more. A vectored is not for concurrent use; one reader and one writer need one each.
type vectored struct {
	conn net.Conn
	raw  syscall.RawConn
	iov  []syscall.Iovec

	// attempt's operands are fields, because a closure for every call would be garbage after it.
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

// write sends as much of the buffers as the socket accepts, at least one byte, skipping the first bytes of the first one. It
// holds guard, if there is one, while bytes are copied; errShut means that the region has been closed, and nothing was sent.
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

// load turns buffers into the vectors of the kernel. It leaves empty ones out: with nothing but empty vectors, a read would look
// like the end of the stream.
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
	clear(v.iov) // otherwise the buffers would live as long as the connection
	if v.errno != 0 {
		return 0, os.NewSyscallError(call, v.errno)
	}
	return v.n, nil
}
