//go:build !linux

package transport

import "net"

// vectored moves buffers one by one, where Linux moves them with one system call. It is slower, for development on other
// systems.
type vectored struct {
	conn   net.Conn
	bounce []byte
}

func newVectored(conn *net.TCPConn) (*vectored, error) {
	return &vectored{conn: conn, bounce: make([]byte, 64<<10)}, nil
}

// read fills as much of the first buffer with room as has arrived, at least one byte, skipping the first bytes of the first.
func (v *vectored) read(bufs [][]byte, skip int) (int, error) {
	return v.conn.Read(firstFull(bufs, skip))
}

// write sends some of the first buffer that is not empty, at least one byte, skipping the first bytes of the first one. It
// copies under the guard and sends without it, so that a slow peer does not hold the region; errShut means that the region has
// been closed, and nothing was sent.
func (v *vectored) write(bufs [][]byte, skip int, guard *region) (int, error) {
	if guard != nil && !guard.hold() {
		return 0, errShut
	}
	n := copy(v.bounce, firstFull(bufs, skip))
	if guard != nil {
		guard.letGo()
	}
	return v.conn.Write(v.bounce[:n])
}

func firstFull(bufs [][]byte, skip int) []byte {
	for _, b := range bufs {
		if b = b[skip:]; len(b) > 0 {
			return b
		}
		skip = 0
	}
	return nil
}
