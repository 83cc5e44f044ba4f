package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// dialSession opens a session with the agent of an identity. It returns ErrRestarted if another agent answers.
func dialSession(ctx context.Context, md metadata, self identity, timeout time.Duration) (*net.TCPConn, error) {
	conn, err := connect(ctx, md.address, timeout)
	if err != nil {
		return nil, err
	}
	err = bounded(ctx, conn, timeout, func() error {
		peer, err := exchangeHellos(conn, hello{identity: self})
		if err == nil && peer.identity != md.identity {
			err = transfer.ErrRestarted
		}
		return err
	})
	if err != nil {
		_ = conn.Close() // the first error matters
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

func exchangeHellos(conn io.ReadWriter, own hello) (hello, error) {
	if _, err := conn.Write(own.append(nil)); err != nil {
		return hello{}, err
	}
	peer, err := readHello(conn)
	if err != nil {
		return hello{}, err
	}
	if peer.version != protocolVersion {
		return hello{}, fmt.Errorf("%w: peer speaks protocol version %d, this program %d", transfer.ErrNotSupported, peer.version, protocolVersion)
	}
	return peer, nil
}

func connect(ctx context.Context, addr string, timeout time.Duration) (net.Conn, error) {
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, peerError(ctx, err)
	}
	return conn, nil
}

// bounded runs a function that uses conn, within the context and the timeout. After an error conn cannot be used.
func bounded(ctx context.Context, conn net.Conn, timeout time.Duration, use func() error) error {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return peerError(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) }) // fails only on a closed connection
	err := use()
	if !stop() {
		return ctx.Err()
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return peerError(ctx, err)
	}
	return nil
}

// peerError returns the error of the contract for a failure of a connection. It wraps the cause.
func peerError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded) && expired(ctx):
		// The dialer's timer fired a moment before the context's, which has the same deadline.
		return context.DeadlineExceeded
	case errors.Is(err, transfer.ErrRestarted), errors.Is(err, transfer.ErrNotSupported):
		return err
	}
	return fmt.Errorf("%w: %w", transfer.ErrGone, err)
}

func expired(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}
