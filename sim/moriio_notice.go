package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"net"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// moriioNotice is a message to a notify port, in msgpack over ZeroMQ.
type moriioNotice struct {
	Type     string
	Transfer string
	Request  string // of the decode engine
	Blocks   []int
	Rank     int // data-parallel rank of the decode engine
	Readers  int // tensor-parallel ranks of the decode engine
}

// The types of notices.
const (
	noticeBlocks  = "remote_blocks" // decode has blocks for a transfer
	noticeRelease = "release"       // decode has read, or will not read
	noticeDone    = "write_done"    // prefill has written
)

// pack returns the message.
func (n moriioNotice) pack() []byte {
	switch n.Type {
	case noticeBlocks:
		b := appendText(appendText(appendText(appendText([]byte{0x85}, "req_id"), n.Request), "transfer_id"), n.Transfer)
		b = appendLength(appendText(b, "block_notify_list"), len(n.Blocks))
		for _, id := range n.Blocks {
			b = appendNumber(b, uint32(id))
		}
		b = appendNumber(appendText(b, "decode_rank"), uint32(n.Rank))
		return appendText(appendText(b, "type"), n.Type)
	}
	b := appendText(appendText(appendText(appendText([]byte{0x83}, "type"), n.Type), "transfer_id"), n.Transfer)
	return appendNumber(appendText(b, "consumer_tp_size"), 1)
}

var errNotice = errors.New("not a notice")

// readNotice reads a message. It knows the msgpack that engines write: a map of texts, numbers that are not negative, and lists of them.
func readNotice(b []byte) (n moriioNotice, err error) {
	u := noticeReader{rest: b}
	head := u.byte()
	if head&0xf0 != 0x80 {
		return n, errNotice
	}
	for range head & 0xf {
		key := u.text()
		switch key {
		case "type":
			n.Type = u.text()
		case "transfer_id":
			n.Transfer = u.text()
		case "req_id":
			n.Request = u.text()
		case "decode_rank":
			n.Rank = u.number()
		case "consumer_tp_size":
			n.Readers = u.number()
		case "block_notify_list":
			for range u.length() {
				if n.Blocks = append(n.Blocks, u.number()); u.failed {
					break
				}
			}
		default:
			u.failed = true
		}
	}
	if u.failed || len(u.rest) > 0 {
		return n, errNotice
	}
	return n, nil
}

// noticeReader reads msgpack. After a failure it returns zeros.
type noticeReader struct {
	rest   []byte
	failed bool
}

func (u *noticeReader) take(n int) []byte {
	if n > len(u.rest) {
		u.failed, u.rest = true, nil
		return make([]byte, min(n, 8))
	}
	b := u.rest[:n]
	u.rest = u.rest[n:]
	return b
}

func (u *noticeReader) byte() byte { return u.take(1)[0] }

// uint reads a number of size bytes.
func (u *noticeReader) uint(size int) int {
	var b [8]byte
	copy(b[8-size:], u.take(size))
	return int(binary.BigEndian.Uint64(b[:]))
}

func (u *noticeReader) number() int {
	switch head := u.byte(); {
	case head < 0x80:
		return int(head)
	case head >= 0xcc && head <= 0xce:
		return u.uint(1 << (head - 0xcc))
	}
	u.failed = true
	return 0
}

func (u *noticeReader) text() string {
	switch head := u.byte(); {
	case head&0xe0 == 0xa0:
		return string(u.take(int(head & 0x1f)))
	case head >= 0xd9 && head <= 0xdb:
		return string(u.take(u.uint(1 << (head - 0xd9))))
	}
	u.failed = true
	return ""
}

func (u *noticeReader) length() int {
	switch head := u.byte(); {
	case head&0xf0 == 0x90:
		return int(head & 0xf)
	case head == 0xdc || head == 0xdd:
		return u.uint(2 << (head - 0xdc))
	}
	u.failed = true
	return 0
}

// notice sends a notice, until the notify port takes it or notifyTimeout has passed.
func (m *moriio) notice(address string, n moriioNotice) {
	m.core.Spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
		defer cancel()
		for {
			err := sendNotice(ctx, address, n)
			if err == nil {
				return
			}
			if core.Sleep(ctx, handshakeRetry) != nil {
				m.log.Warn("notice was not delivered", "address", address, "type", n.Type, "error", err)
				return
			}
		}
	})
}

// sendNotice sends a notice once.
func sendNotice(ctx context.Context, address string, n moriioNotice) error {
	c, err := zmtp.Dial(ctx, new(net.Dialer), address, zmtp.Dealer, zmtp.MaxQuestion)
	if err != nil {
		return err
	}
	return errors.Join(c.Send(n.pack()), c.Close())
}

// serveNotices takes notices until ctx ends.
func (m *moriio) serveNotices(ctx context.Context) {
	err := zmtp.Reply(ctx, m.listener, func(request [][]byte, _ func(...[]byte) error) error {
		if len(request) != 1 {
			return errNotice
		}
		n, err := readNotice(request[0])
		m.core.Post(func() { m.noticed(n, err) })
		return nil
	})
	if err != nil {
		m.log.Error("serving notices", "error", err)
	}
}

// noticed takes a notice. One that the engine does not expect ends the thread that reads them, and with it all hand-offs.
func (m *moriio) noticed(n moriioNotice, err error) {
	if m.deaf {
		return
	}
	toPrefill := n.Type == noticeBlocks || n.Type == noticeRelease
	if err != nil || toPrefill != m.producer() || !toPrefill && n.Type != noticeDone || n.Type == noticeBlocks && len(n.Blocks) == 0 {
		m.deaf = true
		m.log.Error("a notice has ended the thread that reads notices", "type", n.Type, "error", err)
		return
	}
	switch n.Type {
	case noticeRelease:
		if m.finished[n.Transfer] == nil {
			m.released[n.Transfer] = true
			return
		}
		m.release(n.Transfer)
	case noticeBlocks:
		if m.released[n.Transfer] {
			return
		}
		m.told[n.Transfer] = n
		m.write(n.Transfer)
	}
}
