package transport

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

// The shapes that are moved in practice: many small blocks (one layer each), and few large ones (all layers together).
var benchShapes = []struct{ size, count int }{
	{4 << 10, 1},
	{16 << 10, 64},
	{2 << 20, 8},
	{64 << 10, 1024},
}

func BenchmarkTCPRead(b *testing.B) {
	for _, shape := range benchShapes {
		b.Run(fmt.Sprintf("%dKiBx%d", shape.size>>10, shape.count), func(b *testing.B) {
			owner, reader := tcpAgent(b, "owner"), tcpAgent(b, "reader")
			benchmarkRead(b, owner, reader, shape.size, shape.count)
		})
	}
}

func BenchmarkMemRead(b *testing.B) {
	network := NewMemNetwork()
	owner, reader := memAgent(b, network, "owner"), memAgent(b, network, "reader")
	benchmarkRead(b, owner, reader, 16<<10, 64)
}

func BenchmarkTCPNotify(b *testing.B) {
	owner, reader := tcpAgent(b, "owner"), tcpAgent(b, "reader")
	peer := load(b, reader, owner)
	message := []byte("request-0123456789:1")
	b.ReportAllocs()
	for b.Loop() {
		if err := reader.Notify(b.Context(), peer, message); err != nil {
			b.Fatal(err)
		}
		<-owner.Notifications()
	}
}

// benchmarkRead reads every second block of the owner's memory into every second one of the reader's.
func benchmarkRead(b *testing.B, owner, reader transfer.Transport, size, count int) {
	register(b, owner, make([]byte, 2*size*count))
	peer := load(b, reader, owner)
	target := make([]byte, 2*size*count)
	spans, into := make([]transfer.Span, count), make([][]byte, count)
	for i := range spans {
		spans[i] = transfer.Span{Offset: uint64(2 * i * size), Length: uint64(size)}
		into[i] = target[2*i*size:][:size]
	}
	b.SetBytes(int64(size * count))
	b.ReportAllocs()
	for b.Loop() {
		if err := reader.Read(b.Context(), peer, spans, into, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLoopbackFloor is what the kernel gives a plain stream on this machine at this moment: one write and one
// io.ReadFull per round, in one direction, with no request in between. Compare within one run only.
func BenchmarkLoopbackFloor(b *testing.B) {
	for _, shape := range benchShapes {
		size := shape.size * shape.count
		b.Run(fmt.Sprintf("%dKiBx%d", shape.size>>10, shape.count), func(b *testing.B) { benchmarkFloor(b, size) })
	}
}

func benchmarkFloor(b *testing.B, size int) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	sent := make(chan error, 1)
	go func() { sent <- stream(listener, make([]byte, size)) }()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	target := make([]byte, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conn.Write(target[:1]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, target); err != nil {
			b.Fatal(err)
		}
	}
	conn.Close()
	<-sent
}

// stream answers each byte that arrives with the whole of data.
func stream(listener net.Listener, data []byte) error {
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	for one := make([]byte, 1); ; {
		if _, err := io.ReadFull(conn, one); err != nil {
			return err
		}
		if _, err := conn.Write(data); err != nil {
			return err
		}
	}
}
