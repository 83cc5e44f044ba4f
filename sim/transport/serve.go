package transport

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// errShut reports that a region was closed while it was being sent.
var errShut = errors.New("region closed")

// zeroPart replaces the memory of a closed region in an answer, which keeps the length that was sent. Nothing writes to it, so
// it takes address space and no memory.
var zeroPart [maxPart]byte

// session serves one connection that a peer opened. It answers requests one after the other: a peer that wants several at once
// opens several connections, and a peer that does not read its answers blocks no other.
type session struct {
	agent *TCP
	conn  *net.TCPConn
	peer  transfer.Peer
	in    *bufio.Reader
	out   *vectored

	request []byte          // the payload being answered
	spans   []transfer.Span // the spans in it
	answer  [][]byte        // frame header, memory, closing status
	runs    []run
	small   [frameHeader + 1]byte // first and last element of answer
}

// run is a part of an answer that lies in one region, and so is sent under one lock.
type run struct {
	region *region
	end    int // index into answer, exclusive
}

// cut ends the session from another goroutine; serve then returns.
func (s *session) cut() { _ = s.conn.Close() } // an error would say that it is closed already

func (s *session) serve() error {
	config := &s.agent.config
	s.in = bufio.NewReaderSize(s.conn, 4<<10)
	if err := s.conn.SetDeadline(time.Now().Add(config.DialTimeout)); err != nil {
		return err
	}
	h, err := s.greet()
	if err != nil {
		return fmt.Errorf("greeting: %w", err)
	}
	if s.out, err = newVectored(s.conn); err != nil {
		return err
	}
	s.peer = transfer.Peer(h.name)
	for {
		if err := s.conn.SetReadDeadline(time.Now().Add(4 * config.IdleTimeout)); err != nil {
			return err
		}
		op, payload, err := readRequest(s.in, &s.request)
		if err != nil {
			return fmt.Errorf("reading a request: %w", err)
		}
		if err := s.serveOne(op, payload); err != nil {
			return fmt.Errorf("answering: %w", err)
		}
	}
}

// greet answers the peer's hello, even one of another version, so that the peer can report the mismatch.
func (s *session) greet() (hello, error) {
	h, err := readHello(s.in)
	if err != nil {
		return h, err
	}
	own := hello{identity: s.agent.self}
	if _, err := s.conn.Write(own.append(nil)); err != nil {
		return h, err
	}
	if h.version != protocolVersion {
		return h, fmt.Errorf("%w: protocol version %d", transfer.ErrNotSupported, h.version)
	}
	return h, checkName(h.name)
}

func (s *session) serveOne(op byte, payload []byte) error {
	if op == opNotify {
		return s.receive(payload)
	}
	var total int
	var err error
	if s.spans, total, err = parseSpans(s.spans[:0], payload); err != nil {
		return err
	}
	if !s.gather(total) {
		return s.sendStatus(statusRange)
	}
	defer clear(s.answer) // otherwise the memory would live as long as the connection
	from := 0
	for _, r := range s.runs {
		if err := s.send(from, r.end, r.region); err != nil {
			return err
		}
		from = r.end
	}
	return nil
}

func (s *session) receive(message []byte) error {
	err := s.agent.inbox.put(s.peer, message)
	switch {
	case err == nil:
		return s.sendStatus(statusOK)
	case errors.Is(err, transfer.ErrBusy):
		return s.sendStatus(statusBusy)
	}
	return err
}

func (s *session) sendStatus(status byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.agent.config.StallTimeout)); err != nil {
		return err
	}
	_, err := s.conn.Write(appendFrame(s.small[:0], status, 0))
	return err
}

// gather lays out the answer to the spans, directly from registered memory. It returns false if a span is not inside of a
// region; then nothing of the answer may be sent.
func (s *session) gather(total int) bool {
	s.answer = append(s.answer[:0], appendFrame(s.small[:0], statusOK, total))
	s.runs = s.runs[:0]
	var r *region
	for i, span := range s.spans {
		if i == 0 || span.Region != s.spans[i-1].Region {
			r = s.agent.memory.get(span.Region)
			s.runs = append(s.runs, run{region: r})
		}
		mem, ok := r.view(span)
		if !ok {
			return false
		}
		s.answer = append(s.answer, mem)
		s.runs[len(s.runs)-1].end = len(s.answer)
	}
	if len(s.runs) == 0 {
		s.runs = append(s.runs, run{})
	}
	s.small[frameHeader] = statusOK
	s.answer = append(s.answer, s.small[frameHeader:])
	s.runs[len(s.runs)-1].end = len(s.answer)
	return true
}

// send writes a run of the answer. It holds the region's lock while bytes are copied to the socket, and not while it waits for
// space in the socket's buffer.
func (s *session) send(from, to int, guard *region) error {
	at := place{index: from}
	for at.advance(s.answer[:to], 0) {
		if err := s.conn.SetWriteDeadline(time.Now().Add(s.agent.config.StallTimeout)); err != nil {
			return err
		}
		n, err := s.out.write(s.answer[at.index:to], at.skip, guard)
		if errors.Is(err, errShut) {
			s.blank(from, to)
			guard = nil
			continue
		}
		if err != nil {
			return err
		}
		at.advance(s.answer[:to], n)
	}
	return nil
}

// blank replaces the memory of a run by zeros, which the status at the end of the answer reports.
func (s *session) blank(from, to int) {
	last := len(s.answer) - 1
	for i := max(from, 1); i < min(to, last); i++ {
		s.answer[i] = zeroPart[:len(s.answer[i])]
	}
	s.small[frameHeader] = statusRange
}

// place is how far a list of buffers has been sent or filled.
type place struct{ index, skip int }

// advance moves on by n bytes, and past buffers that are full or empty. It returns false if no buffer is left.
func (p *place) advance(bufs [][]byte, n int) bool {
	p.skip += n
	for p.index < len(bufs) && p.skip >= len(bufs[p.index]) {
		p.skip -= len(bufs[p.index])
		p.index++
	}
	return p.index < len(bufs)
}
