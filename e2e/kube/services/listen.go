package services

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// dnsIdle is how long a TCP connection is kept for another question: the 10 s that RFC 7766 (6.2.3) has for few seconds.
const dnsIdle = 10 * time.Second

// nameserver has a resolver's sockets.
type nameserver struct {
	*resolver
	ctx      context.Context // ends all connections
	troubles *troubles
	udp      *net.UDPConn
	tcp      *net.TCPListener
	running  sync.WaitGroup
}

// listen answers at an address until stop.
func (r *resolver) listen(ctx context.Context, at netip.AddrPort, t *troubles) (*nameserver, error) {
	udp, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("listening for names: %w", err)
	}
	tcp, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening for names: %w", err), udp.Close())
	}
	n := &nameserver{resolver: r, ctx: ctx, troubles: t, udp: udp, tcp: tcp}
	n.running.Go(n.serveUDP)
	n.running.Go(n.acceptTCP)
	return n, nil
}

// stop closes the sockets. The context has ended before.
func (n *nameserver) stop() error {
	err := errors.Join(n.udp.Close(), n.tcp.Close())
	n.running.Wait()
	return err
}

func (n *nameserver) serveUDP() {
	query := make([]byte, maxTCP)
	for {
		size, from, err := n.udp.ReadFromUDPAddrPort(query)
		if err != nil {
			n.troubles.add(err)
			return
		}
		if a := n.answer(query[:size], 0); a != nil {
			_, _ = n.udp.WriteToUDPAddrPort(a, from) // a client whose answer is lost asks again
		}
	}
}

func (n *nameserver) acceptTCP() {
	for {
		c, err := n.tcp.AcceptTCP()
		if err != nil {
			n.troubles.add(err)
			return
		}
		n.running.Go(func() { n.serveTCP(c) })
	}
}

// serveTCP answers one question after the other, each with two bytes of length before it.
func (n *nameserver) serveTCP(c *net.TCPConn) {
	defer c.Close()
	defer context.AfterFunc(n.ctx, func() { c.Close() })()
	query := make([]byte, maxTCP)
	for c.SetDeadline(time.Now().Add(dnsIdle)) == nil {
		if _, err := io.ReadFull(c, query[:2]); err != nil {
			return
		}
		size := binary.BigEndian.Uint16(query)
		if _, err := io.ReadFull(c, query[:size]); err != nil {
			return
		}
		a := n.answer(query[:size], maxTCP)
		if a == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
			return
		}
	}
}
