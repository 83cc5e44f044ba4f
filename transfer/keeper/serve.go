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

// SocketFD is the file descriptor of the process's socket.
const SocketFD = 3

// callLimit bounds one call in the process. The Keeper waits a little longer before it kills a hung process.
const callLimit = 4 * time.Second

// Socket returns the process's end of the socket, if a Keeper started the process.
func Socket() (net.Conn, error) {
	f := os.NewFile(SocketFD, "keeper socket")
	defer f.Close()
	return net.FileConn(f)
}

// server is the process's side of the connection.
type server struct {
	conn     net.Conn
	notifier transfer.Notifier
	writing  sync.Mutex
}

// Decline reports to the sidecar why this process cannot serve.
func Decline(conn net.Conn, why error) error {
	return writeFrame(conn, reply{Hello: &hello{Error: why.Error()}})
}

// Serve executes the requests that arrive on conn with n, until the other side closes conn, which is no error. about
// describes n for users. Serve closes neither n nor, before it returns, conn; calls that still run then end by n's own
// deadlines.
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
		// One call at a time, as in the library: a notification must not overtake the previous one.
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

// forward forwards messages from other agents.
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
