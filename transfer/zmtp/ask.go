package zmtp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// ErrProtocol means that the other side does not speak ZMTP, or violates it.
var ErrProtocol = errors.New("not a ZeroMQ peer that answers requests")

// Dialer opens connections. A *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Ask sends a message of one part to the ROUTER or REP socket at address (host:port), and returns the parts of the answer,
// at most limit bytes in all. Errors: the dialer's, the context's, those of the connection, and ErrProtocol.
func Ask(ctx context.Context, d Dialer, address string, message []byte, limit int) ([][]byte, error) {
	answer, err := ask(ctx, d, address, message, limit)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // the connection was closed for it
		}
		return nil, fmt.Errorf("asking %s: %w", address, err)
	}
	return answer, nil
}

func ask(ctx context.Context, d Dialer, address string, message []byte, limit int) ([][]byte, error) {
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(greeting[:]); err != nil {
		return nil, err
	}
	// libzmq 4.3 closes the connection if anything follows a greeting before it has sent its own.
	r := reader{bufio.NewReader(conn), limit}
	if err := r.greeting(); err != nil {
		return nil, err
	}
	question := appendFrame(nil, flagCommand, ready)
	question = appendFrame(question, flagMore, nil) // the delimiter with which a REQ socket begins its messages
	if _, err := conn.Write(appendFrame(question, 0, message)); err != nil {
		return nil, err
	}
	parts, err := r.message()
	if err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	return parts, nil
}

// greeting is the first message of both sides: a signature that older versions read as a frame of one byte, version 3.0,
// mechanism NULL.
var greeting = [64]byte{0: 0xff, 8: 1, 9: 0x7f, 10: 3, 11: 0, 12: 'N', 13: 'U', 14: 'L', 15: 'L'}

// ready is the one command of the NULL mechanism: a name, and properties, whose values have lengths of four bytes.
var ready = []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ\x08Identity\x00\x00\x00\x00")

// The flags of a frame. A frame without flags is the last part of a message.
const (
	flagMore    = 1
	flagLong    = 2 // the length has eight bytes instead of one
	flagCommand = 4
)

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// reader reads from the other side and validates everything.
type reader struct {
	*bufio.Reader
	left int // bytes that may still come
}

func (r *reader) greeting() error {
	var g [len(greeting)]byte
	if _, err := io.ReadFull(r, g[:]); err != nil {
		return fmt.Errorf("%w: reading its greeting: %w", ErrProtocol, err)
	}
	if g[0] != 0xff || g[9]&1 == 0 || g[10] < 3 {
		return fmt.Errorf("%w: it greets with %x", ErrProtocol, g[:11])
	}
	if [20]byte(g[12:32]) != [20]byte(greeting[12:32]) {
		return fmt.Errorf("%w: it wants the security mechanism %q", ErrProtocol, g[12:32])
	}
	return nil
}

// message reads a message, removes its delimiter, and skips commands.
func (r *reader) message() (parts [][]byte, err error) {
	for {
		flags, body, err := r.frame()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := refusal(body); err != nil {
				return nil, err
			}
			continue
		}
		parts = append(parts, body)
		if flags&flagMore != 0 {
			continue
		}
		if len(parts[0]) != 0 || len(parts) == 1 {
			return nil, fmt.Errorf("%w: its message has no delimiter", ErrProtocol)
		}
		return parts[1:], nil
	}
}

// refusal returns the error in a command, if it has one.
func refusal(command []byte) error {
	if len(command) > 7 && string(command[:6]) == "\x05ERROR" {
		return fmt.Errorf("%w: it refuses: %q", ErrProtocol, command[7:])
	}
	return nil
}

// frameCost is counted for each frame in addition to its bytes, so that empty frames are limited too.
const frameCost = 16

func (r *reader) frame() (flags byte, body []byte, err error) {
	if flags, err = r.ReadByte(); err != nil {
		return 0, nil, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, nil, fmt.Errorf("%w: a frame with flags %x", ErrProtocol, flags)
	}
	size, err := r.length(flags&flagLong != 0)
	if err != nil {
		return 0, nil, err
	}
	if r.left < frameCost || size > uint64(r.left-frameCost) {
		return 0, nil, fmt.Errorf("%w: its message is too long", ErrProtocol)
	}
	r.left -= int(size) + frameCost
	body = make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, err
	}
	return flags, body, nil
}

func (r *reader) length(long bool) (uint64, error) {
	if !long {
		n, err := r.ReadByte()
		return uint64(n), err
	}
	var b [8]byte
	_, err := io.ReadFull(r, b[:])
	return binary.BigEndian.Uint64(b[:]), err
}
