package zmtp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// The kinds of sockets of which a Conn may be one.
const (
	Sub    = "SUB"
	Pub    = "PUB"
	Dealer = "DEALER"
	Router = "ROUTER"
)

const (
	maxParts = 64
	// step is how much of a long message is read before memory for more is used, since a length may be a lie.
	step = 1 << 20
)

// Conn is a connection between two sockets. One goroutine may call Receive and Wait, and another one Send; any may call the other methods.
type Conn struct {
	conn  net.Conn
	in    reader
	limit int
	body  []byte   // of the message that was received last
	ends  []int    // of its parts
	parts [][]byte // the same
	out   []byte
}

// Dial connects a socket of a kind to the one at address (host:port). limit is the longest message that it receives, in bytes.
func Dial(ctx context.Context, d Dialer, address, kind string, limit int) (*Conn, error) {
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c, err := Accept(ctx, conn, kind, limit)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", address, err)
	}
	return c, nil
}

// Accept makes a connection one of a socket of a kind, at either end. It closes it if it returns an error.
func Accept(ctx context.Context, conn net.Conn, kind string, limit int) (*Conn, error) {
	c := &Conn{conn: conn, in: reader{Reader: bufio.NewReaderSize(conn, 64<<10)}, limit: limit}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := c.greet(kind)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return c, nil
}

func (c *Conn) greet(kind string) error {
	if err := c.conn.SetDeadline(time.Now().Add(greetTime)); err != nil {
		return err
	}
	if _, err := c.conn.Write(greeting[:]); err != nil {
		return err
	}
	if err := c.in.greeting(); err != nil {
		return err
	}
	command := binary.BigEndian.AppendUint32([]byte("\x05READY\x0bSocket-Type"), uint32(len(kind)))
	command = append(append(command, kind...), "\x08Identity\x00\x00\x00\x00"...)
	if _, err := c.conn.Write(appendFrame(nil, flagCommand, command)); err != nil {
		return err
	}
	c.in.left = MaxQuestion
	flags, body, err := c.in.frame()
	switch {
	case err != nil:
		return fmt.Errorf("%w: reading its first command: %w", ErrProtocol, err)
	case flags&flagCommand == 0:
		return fmt.Errorf("%w: it sends messages before it is ready", ErrProtocol)
	}
	if err := refusal(body); err != nil {
		return err
	}
	return c.conn.SetDeadline(time.Time{})
}

// Subscribe asks a PUB socket for the messages that begin with a topic.
func (c *Conn) Subscribe(topic string) error { return c.Send(append([]byte{1}, topic...)) }

// Send sends a message.
func (c *Conn) Send(parts ...[]byte) error {
	c.out = c.out[:0]
	for i, part := range parts {
		flags := byte(flagMore)
		if i == len(parts)-1 {
			flags = 0
		}
		c.out = appendFrame(c.out, flags, part)
	}
	_, err := c.conn.Write(c.out)
	return err
}

// Receive returns the parts of the next message, which are valid until it is called again.
func (c *Conn) Receive() ([][]byte, error) {
	if cap(c.body) > 8*step { // one long message must not keep its memory for ever
		c.body = nil
	}
	c.body, c.ends, c.parts = c.body[:0], c.ends[:0], c.parts[:0]
	for {
		flags, err := c.in.ReadByte()
		if err != nil {
			return nil, err
		}
		if flags&^(flagMore|flagLong|flagCommand) != 0 {
			return nil, fmt.Errorf("%w: a frame with flags %x", ErrProtocol, flags)
		}
		size, err := c.in.length(flags&flagLong != 0)
		if err != nil {
			return nil, err
		}
		before := len(c.body)
		if size > uint64(c.limit-before) || len(c.ends) == maxParts {
			return nil, fmt.Errorf("%w: its message is too long", ErrProtocol)
		}
		if err := c.read(int(size)); err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := c.command(c.body[before:]); err != nil {
				return nil, err
			}
			c.body = c.body[:before]
			continue
		}
		c.ends = append(c.ends, len(c.body))
		if flags&flagMore == 0 {
			break
		}
	}
	at := 0
	for _, end := range c.ends {
		c.parts = append(c.parts, c.body[at:end:end])
		at = end
	}
	return c.parts, nil
}

// read appends n bytes to the body.
func (c *Conn) read(n int) error {
	for n > 0 {
		now, at := min(n, step), len(c.body)
		if cap(c.body) < at+now {
			c.body = append(make([]byte, 0, max(2*cap(c.body), at+now)), c.body...)
		}
		c.body = c.body[:at+now]
		if _, err := io.ReadFull(c.in, c.body[at:]); err != nil {
			return err
		}
		n -= now
	}
	return nil
}

// command answers a ping, and ignores other commands but errors.
func (c *Conn) command(body []byte) error {
	const ping, ttl = "\x04PING", 2
	if len(body) >= len(ping)+ttl && string(body[:len(ping)]) == ping {
		_, err := c.conn.Write(appendFrame(nil, flagCommand, append([]byte("\x04PONG"), body[len(ping)+ttl:]...)))
		return err
	}
	return refusal(body)
}

// Wait waits until something of a message has come, for Receive to read, or a time has passed: then it returns false. No byte is lost. The time replaces
// what SetReadDeadline has set.
func (c *Conn) Wait(d time.Duration) (come bool, err error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		return false, err
	}
	_, err = c.in.Peek(1)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	} else {
		come = err == nil
	}
	return come, errors.Join(err, c.conn.SetReadDeadline(time.Time{}))
}

// SetReadDeadline sets the time at which Receive fails.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.conn.SetReadDeadline(t) }

// Close closes the connection. Receive and Send then fail.
func (c *Conn) Close() error { return c.conn.Close() }
