package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"sync"
	"testing"
)

// listening serves on a free port until the test ends.
func listening(t *testing.T, serve func(ctx context.Context, l net.Listener) error) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); serving.Wait() })
	return l.Addr().String()
}

// subscribe connects to a publisher, and returns when that knows the topics.
func subscribe(t *testing.T, p *Publisher, address string, topics ...string) *Conn {
	c, err := Dial(within(t), new(net.Dialer), address, Sub, 100)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	before := p.topics()
	for _, topic := range topics {
		if err := c.Subscribe(topic); err != nil {
			t.Fatal(err)
		}
	}
	for p.topics() < before+len(topics) {
		runtime.Gosched()
	}
	return c
}

// topics returns how many subscriptions there are.
func (p *Publisher) topics() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		n += len(s.topics)
	}
	return n
}

// next returns the next message.
func next(t *testing.T, c *Conn) string {
	parts, err := c.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.Join(parts, []byte(" ")))
}

func TestPublisher(t *testing.T) {
	p := new(Publisher)
	address := listening(t, p.Serve)
	all, some := subscribe(t, p, address, ""), subscribe(t, p, address, "kv@b", "other")
	p.Publish([]byte("kv@a"), []byte("1"))
	p.Publish([]byte("kv@b"), []byte("2"))
	for i, want := range []string{"kv@a 1", "kv@b 2"} {
		if got := next(t, all); got != want {
			t.Errorf("message %d of all is %q, want %q", i, got, want)
		}
	}
	if got := next(t, some); got != "kv@b 2" {
		t.Errorf("the message of a topic is %q", got)
	}
	if err := some.Send([]byte("\x00kv@b")); err != nil { // ends a subscription
		t.Fatal(err)
	}
	if err := some.Send([]byte("\x02")); err != nil { // is no subscription, and comes after it was read
		t.Fatal(err)
	}
	for {
		if _, err := some.Receive(); err != nil {
			break // a client that violates the protocol is disconnected
		}
	}
	p.Publish([]byte("kv@b"), []byte("3"))
	if got := next(t, all); got != "kv@b 3" {
		t.Errorf("after another subscriber has left: %q", got)
	}
}

func TestReply(t *testing.T) {
	address := listening(t, func(ctx context.Context, l net.Listener) error {
		return Reply(ctx, l, func(request [][]byte, send func(...[]byte) error) error {
			for i := range binary.BigEndian.Uint64(request[1]) {
				if err := send(nil, []byte{byte('a' + i)}); err != nil {
					return err
				}
			}
			return nil
		})
	})
	c, err := Dial(within(t), new(net.Dialer), address, Dealer, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, n := range []uint64{2, 1} {
		if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"|a", "|b", "|a"} {
		if got, err := c.Receive(); err != nil || string(bytes.Join(got, []byte("|"))) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
}
