package zmtp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// MaxQuestion is the longest request that is served, in bytes.
const MaxQuestion = 64 << 10

const (
	// maxClients is the number of connections that are served at once. Further connections are closed, and may try again.
	maxClients = 1024
	// greetTime is how long a client may take to greet, and talkTime how long to read an answer.
	greetTime, talkTime = 10 * time.Second, 10 * time.Second
)

// Serve answers requests of REQ sockets that connect to l, as a ROUTER or REP socket does: answer takes a request of one
// part and returns the parts of its answer, or none to close the connection. Several goroutines call it. A client may send
// one request after the other, with any time in between; a client that violates the protocol is disconnected. Serve returns
// nil when ctx ends, or the error of l. It closes l and all connections.
func Serve(ctx context.Context, l net.Listener, answer func(question []byte) [][]byte) error {
	return accept(ctx, l, func(_ context.Context, conn net.Conn) {
		// An error concerns only this client, which sees that the connection ends.
		_ = talk(conn, answer)
	})
}

// accept has each connection of a listener served by a goroutine until ctx ends. It returns nil then, or the error of l. It closes l and
// all connections.
func accept(ctx context.Context, l net.Listener, serve func(context.Context, net.Conn)) error {
	ctx, cancel := context.WithCancel(ctx)
	var talking sync.WaitGroup
	defer talking.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	places := make(chan struct{}, maxClients)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			l.Close()
			return fmt.Errorf("serving questions on %s: %w", l.Addr(), err)
		}
		select {
		case places <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		talking.Go(func() {
			defer func() { <-places }()
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			serve(ctx, conn)
		})
	}
}

// routerReady is what a ROUTER socket sends after both greetings.
var routerReady = []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00")

var errNoAnswer = errors.New("there is no answer")

// talk serves one connection.
func talk(conn net.Conn, answer func([]byte) [][]byte) error {
	if err := conn.SetDeadline(time.Now().Add(greetTime)); err != nil {
		return err
	}
	if _, err := conn.Write(greeting[:]); err != nil {
		return err
	}
	r := reader{Reader: bufio.NewReader(conn)}
	if err := r.greeting(); err != nil {
		return err
	}
	if _, err := conn.Write(appendFrame(nil, flagCommand, routerReady)); err != nil {
		return err
	}
	for {
		if err := conn.SetDeadline(time.Time{}); err != nil {
			return err
		}
		if err := reply(conn, &r, answer); err != nil {
			return err
		}
	}
}

// reply serves one request.
func reply(conn net.Conn, r *reader, answer func([]byte) [][]byte) error {
	r.left = MaxQuestion
	question, err := r.message()
	if err != nil {
		return err
	}
	if len(question) != 1 {
		return fmt.Errorf("%w: a question of %d parts", ErrProtocol, len(question))
	}
	parts := answer(question[0])
	if len(parts) == 0 {
		return errNoAnswer
	}
	if err := conn.SetWriteDeadline(time.Now().Add(talkTime)); err != nil {
		return err
	}
	return writeMessage(conn, parts)
}

// writeMessage writes a message behind its delimiter.
func writeMessage(w io.Writer, parts [][]byte) error {
	b := appendFrame(nil, flagMore, nil)
	for i, part := range parts {
		flags := byte(flagMore)
		if i == len(parts)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, part)
	}
	_, err := w.Write(b)
	return err
}
