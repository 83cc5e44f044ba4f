package keeper

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/tandem-serving/tandem/transfer"
)

// A frame is its length (4 bytes, big-endian) and that many bytes of JSON.

// maxFrame is the largest frame, in bytes. The largest legitimate one has metadata of MaxMetadata, in base64.
const maxFrame = 2 << 20

// MaxMetadata is the longest metadata that a Keeper accepts, in bytes. Engines have some hundreds, and 44 for each region.
const MaxMetadata = 1 << 20

// op is the operation of a request.
type op string

const (
	opLoad   op = "load"
	opForget op = "forget"
	opNotify op = "notify"
)

// request is a message to the process.
type request struct {
	ID   uint64        `json:"id"`
	Op   op            `json:"op"`
	Peer transfer.Peer `json:"peer,omitempty"`
	Data []byte        `json:"data,omitempty"` // metadata, or the message
}

// reply is a message from the process: first a greeting, then answers to requests, and notifications.
type reply struct {
	Hello  *hello        `json:"hello,omitempty"`
	ID     uint64        `json:"id,omitempty"`
	Peer   transfer.Peer `json:"peer,omitempty"` // the peer that was loaded, or that sent the message
	Data   []byte        `json:"data,omitempty"` // the message
	Error  string        `json:"error,omitempty"`
	Kind   string        `json:"kind,omitempty"` // name of an error of the contract
	Notice bool          `json:"notice,omitempty"`
}

// hello is the greeting of the process: what notifier it has, or why it has none.
type hello struct {
	About string `json:"about"`
	Error string `json:"error,omitempty"`
}

// kinds are the errors of the contract that pass through the socket, by name.
var kinds = map[string]error{
	"unknown-peer":  transfer.ErrUnknownPeer,
	"gone":          transfer.ErrGone,
	"restarted":     transfer.ErrRestarted,
	"busy":          transfer.ErrBusy,
	"invalid":       transfer.ErrInvalid,
	"not-supported": transfer.ErrNotSupported,
	"closed":        transfer.ErrClosed,
	"deadline":      context.DeadlineExceeded,
}

// remoteError is an error of the process: its text, and the error that errors.Is finds in it.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

func (r *reply) setError(err error) {
	r.Error = err.Error()
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			r.Kind = name
		}
	}
}

func (r *reply) err() error {
	if r.Error == "" {
		return nil
	}
	return &remoteError{r.Error, kinds[r.Kind]}
}

func writeFrame(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxFrame {
		return fmt.Errorf("%w: frame of %d bytes, at most %d", transfer.ErrInvalid, len(b), maxFrame)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...))
	return err
}

// readFrame validates everything, because a hostile peer may have taken over the process at the other end.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return fmt.Errorf("reading a frame: %d bytes, at most %d", size, maxFrame)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return fmt.Errorf("reading a frame: %w", err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("reading a frame: %w", err)
	}
	return nil
}
