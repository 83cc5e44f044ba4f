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

// MaxQuestion bounds a question that is served, in bytes.
const MaxQuestion = 64 << 10

const (
	// maxClients bounds the connections that are served at once. Who comes then is hung up on, and may try again.
	maxClients = 1024
	// greetTime is how long a client may take until it has greeted, and talkTime until it has taken an answer.
	greetTime, talkTime = 10 * time.Second, 10 * time.Second
)

// Serve answers the questions of REQ sockets that come to l, as a ROUTER or REP socket does: answer gets a question of one
// part, and gives the parts of its answer, or none to hang up. It is called by several goroutines. A client may ask one
// question after the other, and may wait between them for as long as it likes; one that does not speak the protocol is hung
// up on. Serve returns when ctx ends, with nil, or when l fails. It closes l, and no connection is left then.
func Serve(ctx context.Context, l net.Listener, answer func(question []byte) [][]byte) error {
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
			// Whatever ends the talk, it is the client's affair, and it sees that it has ended.
			_ = talk(conn, answer)
		})
	}
}

// routerReady is what a ROUTER socket says once both sides have greeted.
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

// reply serves one question.
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
