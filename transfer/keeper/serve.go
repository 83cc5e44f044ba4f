package keeper

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// SocketFD is the file descriptor under which the process finds its socket.
const SocketFD = 3

// callLimit bounds one call in the process. The Keeper waits a little longer before it takes the process for hung.
const callLimit = 4 * time.Second

// Socket is the process's end of the socket, when it was started by a Keeper.
func Socket() (net.Conn, error) {
	f := os.NewFile(SocketFD, "keeper socket")
	defer f.Close()
	return net.FileConn(f)
}

// server is the process's side of one socket.
type server struct {
	conn     net.Conn
	notifier transfer.Notifier
	writing  sync.Mutex
}

// Decline tells the other side why this process cannot serve.
func Decline(conn net.Conn, why error) error {
	return writeFrame(conn, reply{Hello: &hello{Error: why.Error()}})
}

// Serve does what the other side of conn asks for, with n, until it hangs up, which is no error. about says what n is, for
// people. It closes neither n nor, before it returns, conn; what runs then, ends with n's own deadlines.
func Serve(conn net.Conn, n transfer.Notifier, about string) error {
	s := &server{conn: conn, notifier: n}
	if err := s.write(reply{Hello: &hello{About: about}}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	working.Go(func() { s.forward(ctx) })
	for {
		var r request
		if err := readFrame(conn, &r); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		// One at a time, as the library takes them: a notification must not overtake the one before.
		if err := s.write(s.do(ctx, r)); err != nil {
			return err
		}
	}
}

func (s *server) do(ctx context.Context, r request) reply {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	answer := reply{ID: r.ID}
	var err error
	switch r.Op {
	case opLoad:
		answer.Peer, err = s.notifier.Load(ctx, r.Data)
	case opForget:
		s.notifier.Forget(r.Peer)
	case opNotify:
		err = s.notifier.Notify(ctx, r.Peer, r.Data)
	default:
		err = transfer.ErrNotSupported
	}
	if err != nil {
		answer.setError(err)
	}
	return answer
}

// forward passes on what others send.
func (s *server) forward(ctx context.Context) {
	for {
		select {
		case n, ok := <-s.notifier.Notifications():
			if !ok || s.write(reply{Notice: true, Peer: n.From, Data: n.Message}) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (s *server) write(r reply) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return writeFrame(s.conn, r)
}
