package zmtp

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"
)

// maxWaiting is how many messages wait for a subscriber. Further ones it does not get, as with libzmq.
const maxWaiting = 1000

// Publisher is a PUB socket. The zero value has no subscribers.
type Publisher struct {
	mu   sync.Mutex
	subs map[*subscriber]struct{}
}

// subscriber is one connection.
type subscriber struct {
	topics [][]byte // changed under Publisher.mu
	queue  chan [][]byte
}

// Publish sends a message to the subscribers of topics with which its first part begins. It never waits. The parts must not change.
func (p *Publisher) Publish(parts ...[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		if slices.ContainsFunc(s.topics, func(topic []byte) bool { return bytes.HasPrefix(parts[0], topic) }) {
			select {
			case s.queue <- parts:
			default:
			}
		}
	}
}

// Serve takes subscribers until ctx ends. It returns nil then, or the error of l. It closes l and all connections.
func (p *Publisher) Serve(ctx context.Context, l net.Listener) error {
	return accept(ctx, l, func(ctx context.Context, conn net.Conn) {
		c, err := Accept(ctx, conn, Pub, MaxQuestion)
		if err != nil {
			return // it concerns only this subscriber
		}
		ctx, cancel := context.WithCancel(ctx)
		s := &subscriber{queue: make(chan [][]byte, maxWaiting)}
		var sending sync.WaitGroup
		sending.Go(func() { s.send(ctx, c) })
		defer sending.Wait()
		defer cancel()
		p.mu.Lock()
		if p.subs == nil {
			p.subs = make(map[*subscriber]struct{})
		}
		p.subs[s] = struct{}{}
		p.mu.Unlock()
		for p.hear(c, s) == nil {
		}
		p.mu.Lock()
		delete(p.subs, s)
		p.mu.Unlock()
	})
}

// send writes what waits for a subscriber, until ctx ends.
func (s *subscriber) send(ctx context.Context, c *Conn) {
	defer c.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case parts := <-s.queue:
			if c.Send(parts...) != nil {
				return
			}
		}
	}
}

// maxTopics is how many topics one connection may subscribe to.
const maxTopics = 64

// hear reads one message of a subscriber: 1 or 0, to subscribe or to end that, before a topic.
func (p *Publisher) hear(c *Conn, s *subscriber) error {
	parts, err := c.Receive()
	if err != nil {
		return err
	}
	if len(parts) != 1 || len(parts[0]) == 0 || parts[0][0] > 1 || len(s.topics) == maxTopics {
		return ErrProtocol
	}
	topic := parts[0][1:]
	p.mu.Lock()
	defer p.mu.Unlock()
	if parts[0][0] == 1 {
		s.topics = append(s.topics, bytes.Clone(topic))
	} else if i := slices.IndexFunc(s.topics, func(t []byte) bool { return bytes.Equal(t, topic) }); i >= 0 {
		s.topics = slices.Delete(s.topics, i, i+1)
	}
	return nil
}

// Reply is a ROUTER socket of which each request has any number of answers. It has reply called for each request, on several
// goroutines, with a function that sends an answer. Serve's rules for ctx and l hold.
func Reply(ctx context.Context, l net.Listener, reply func(request [][]byte, send func(parts ...[]byte) error) error) error {
	return accept(ctx, l, func(ctx context.Context, conn net.Conn) {
		c, err := Accept(ctx, conn, Router, MaxQuestion)
		for err == nil {
			var request [][]byte
			if request, err = c.Receive(); err == nil {
				err = reply(request, c.Send)
			}
		}
	})
}
