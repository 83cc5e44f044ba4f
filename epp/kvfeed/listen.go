package kvfeed

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/tandem-serving/tandem/epp/kvevents"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

const (
	// maxMessage is the longest message that is read (bytes): 4 million tokens stored at once.
	maxMessage = 32 << 20
	// maxConnections bounds the engines that may connect, ranks counted one by one.
	maxConnections = 4096
	// greeting is how long a peer may take to greet.
	greeting = 10 * time.Second
	// acceptPause is the pause after a failed accept, which would otherwise fail again at once and use a whole core.
	acceptPause = time.Second
)

// listen takes connections of engines until the feed is closed.
func (f *Feed) listen() {
	l := f.open()
	if l == nil {
		return
	}
	f.accept(l)
}

// accept serves the engines that connect to a listener until the feed is closed, which closes the listener.
func (f *Feed) accept(l net.Listener) {
	defer context.AfterFunc(f.ctx, func() { l.Close() })()
	slots := make(chan struct{}, maxConnections)
	for {
		conn, err := l.Accept()
		if err != nil {
			if f.ctx.Err() != nil {
				return
			}
			// Most likely there are too many open files. The next engine waits in the kernel.
			f.log.Error("no engine can connect for KV events: trying again", "address", f.options.Listen, "error", err)
			select {
			case <-f.ctx.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			f.warn.Warn("too many engines connect for KV events", "limit", maxConnections)
			conn.Close()
			continue
		}
		f.work.Go(func() {
			defer func() { <-slots }()
			if err := f.serve(conn); err != nil && f.ctx.Err() == nil {
				f.log.Debug("an engine's connection for KV events has ended", "peer", conn.RemoteAddr().String(), "error", err)
			}
		})
	}
}

// open opens the listener, and tries again as long as that fails. It returns nil when the feed is closed.
func (f *Feed) open() net.Listener {
	for pause := firstPause; ; pause = min(2*pause, askAgain) {
		l, err := (&net.ListenConfig{}).Listen(f.ctx, "tcp", f.options.Listen)
		if err == nil {
			return l
		}
		if f.ctx.Err() != nil {
			return nil
		}
		f.log.Error("engines cannot connect for KV events: trying again", "address", f.options.Listen, "error", err)
		select {
		case <-f.ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// serve reads what an engine publishes that has connected.
func (f *Feed) serve(raw net.Conn) error {
	ctx, cancel := context.WithTimeout(f.ctx, greeting)
	conn, err := zmtp.Accept(ctx, raw, zmtp.Sub, maxMessage)
	cancel()
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(f.ctx, func() { conn.Close() })()
	if err := conn.Subscribe(f.options.Topic); err != nil {
		return err
	}
	var decoder kvevents.Decoder
	var to *source
	rank := -1
	defer func() { to.connected(-1) }()
	for {
		parts, err := conn.Receive()
		if err != nil {
			return err
		}
		if len(parts) != 3 {
			return fmt.Errorf("a message of %d parts is not one of KV events", len(parts))
		}
		if rank < 0 { // a rank publishes on a connection of its own
			b, _ := decoder.Decode(parts[2], func(*kvevents.Event) {})
			rank = max(b.Rank, 0)
		}
		m := f.named(parts[0], raw.RemoteAddr())
		if m == nil {
			f.unknown.Add(1)
			f.warn.Warn("KV events of an engine that is no endpoint of the pool", "topic", string(parts[0]), "peer", raw.RemoteAddr().String())
			continue
		}
		s, err := f.push(m, place{rank: rank, how: connects}, to == nil, parts[1], parts[2])
		if s != to {
			to.connected(-1)
			s.connected(1)
			to = s
		}
		if err != nil {
			return err
		}
	}
}

// connected counts a connection of a source, which may be nil.
func (s *source) connected(n int64) {
	if s != nil {
		s.counts.Connected.Add(n)
	}
}

// named returns the endpoint that a topic names, after what all topics begin with: by its address, the name of its pod, or its own. Where
// the topic names none, it is the only endpoint at the peer's address. nil = there is none.
func (f *Feed) named(topic []byte, peer net.Addr) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, _, _ := bytes.Cut(bytes.TrimPrefix(topic, []byte(f.options.Topic)), []byte("@"))
	ip, _ := netip.ParseAddr(string(id))
	if m := f.only(func(m *member) bool {
		return m.Address == string(id) || m.Pod == string(id) || m.Name == string(id) || m.String() == string(id) || ip.IsValid() && m.Addr.Addr() == ip.Unmap()
	}); m != nil || len(id) > 0 {
		return m
	}
	from, err := netip.ParseAddrPort(peer.String())
	if err != nil {
		return nil
	}
	return f.only(func(m *member) bool { return m.Addr.Addr() == from.Addr().Unmap() })
}

// only returns the member that is meant, nil if there are none or several. The caller holds mu.
func (f *Feed) only(is func(*member) bool) (one *member) {
	for _, m := range f.members {
		if !is(m) {
			continue
		}
		if one != nil {
			return nil
		}
		one = m
	}
	return one
}

// push applies a message of a rank of a member, which is made known if it is not. fresh says that it is the first of a connection. The
// source is nil if the member has left.
func (f *Feed) push(m *member, p place, fresh bool, number, payload []byte) (*source, error) {
	s := m.pushed(p.rank)
	if s == nil {
		if s = f.add(m, p, true); s == nil {
			return nil, nil
		}
	}
	s.push.Lock()
	defer s.push.Unlock()
	if fresh {
		s.pushed.Connected()
	}
	return s, s.pushed.Message(number, payload)
}

// pushed returns the source of a rank that does not have to be connected to, nil if there is none.
func (m *member) pushed(rank int) *source {
	for _, s := range *m.sources.Load() {
		if s.rank == rank && s.pushed != nil {
			return s
		}
	}
	return nil
}
