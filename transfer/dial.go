package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// fetchTimeout bounds Fetch if its context does not.
const fetchTimeout = 10 * time.Second

// Fetch gets the metadata of the TCP agent that listens on addr (host:port). It is what NIXL users have a side channel
// for: an address is all that a decode engine is told about the engine that holds its KV cache.
// Errors: ErrGone if nobody answers there, ErrNotSupported if it is no agent or one of another protocol version, the context's.
func Fetch(ctx context.Context, addr string) ([]byte, error) {
	blob, err := fetch(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("fetching metadata from %s: %w", addr, err)
	}
	return blob, nil
}

func fetch(ctx context.Context, addr string) (blob []byte, err error) {
	conn, err := connect(ctx, addr, fetchTimeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // what was wanted has been read, or the first error matters
	err = bounded(ctx, conn, fetchTimeout, func() error {
		if _, err := exchangeHellos(conn, hello{purpose: purposeFetch}); err != nil {
			return err
		}
		blob, err = readMetadata(conn)
		return err
	})
	return blob, err
}

func readMetadata(r io.Reader) ([]byte, error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	status, length := parseFrame(head)
	if err := statusErr(status); err != nil {
		return nil, err
	}
	if length > uint32(maxMetadata) {
		return nil, fmt.Errorf("%w: metadata of %d bytes, at most %d", ErrNotSupported, length, maxMetadata)
	}
	blob := make([]byte, length)
	_, err := io.ReadFull(r, blob)
	return blob, err
}

// dialSession opens a session with the agent of that identity. Error also: ErrRestarted if somebody else answers.
func dialSession(ctx context.Context, md metadata, self identity, timeout time.Duration) (*net.TCPConn, error) {
	conn, err := connect(ctx, md.address, timeout)
	if err != nil {
		return nil, err
	}
	err = bounded(ctx, conn, timeout, func() error {
		peer, err := exchangeHellos(conn, hello{purpose: purposeSession, identity: self})
		if err == nil && peer.identity != md.identity {
			err = ErrRestarted
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
		return hello{}, fmt.Errorf("%w: peer speaks protocol version %d, this program %d", ErrNotSupported, peer.version, protocolVersion)
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

// bounded runs what uses conn within the context and the timeout. After an error conn is of no use.
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

// peerError sorts what went wrong with a connection into the errors of the contract, keeping the cause.
func peerError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded) && expired(ctx):
		// The dialer's timer ran out a moment before the context's, which was set to the same instant.
		return context.DeadlineExceeded
	case errors.Is(err, ErrRestarted), errors.Is(err, ErrNotSupported):
		return err
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}

func expired(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}
