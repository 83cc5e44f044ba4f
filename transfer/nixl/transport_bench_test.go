//go:build nixl && cgo && linux

package nixl

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/transfertest"
)

// shapes are those that are moved in practice: a block of one layer, one of all layers, and a prompt's worth.
var shapes = []struct{ size, count int }{{64 << 10, 1}, {1 << 20, 1}, {64 << 10, 1024}}

// BenchmarkRead compares the ways of one machine, each from another process. Compare within one run only.
func BenchmarkRead(b *testing.B) {
	library := transfertest.NIXLLibrary(b)
	for _, shape := range shapes {
		for name, tls := range kinds {
			b.Run(fmt.Sprintf("%dKiBx%d/nixl-%s", shape.size>>10, shape.count, name), func(b *testing.B) {
				owner := startTransportProcess(b, library, tls, "owner", 2*shape.size*shape.count)
				reader := realTransport(b, "reader", tls)
				benchmarkRead(b, reader, loadPeer(b, reader, owner.metadata), shape.size, shape.count)
			})
		}
		b.Run(fmt.Sprintf("%dKiBx%d/go-tcp", shape.size>>10, shape.count), func(b *testing.B) {
			owner := startProcess(b, library, envTCP+"=owner", envMemory+"="+fmt.Sprint(2*shape.size*shape.count))
			reader, err := transport.NewTCP(transport.TCPConfig{Name: "reader"})
			if err != nil {
				b.Fatal(err)
			}
			defer reader.Close()
			from, err := reader.Load(within(b), owner.metadata)
			if err != nil {
				b.Fatal(err)
			}
			benchmarkRead(b, reader, from, shape.size, shape.count)
		})
	}
}

func benchmarkRead(b *testing.B, reader transfer.Transport, from transfer.Peer, size, count int) {
	spans := scattered(0, size, count)
	into := buffers(spans)
	b.SetBytes(int64(size * count))
	b.ReportAllocs()
	for b.Loop() {
		if err := reader.Read(b.Context(), from, spans, into, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDirect is what a read would be that went into the caller's memory, and could not be given up: the library alone,
// and as one request. The difference to BenchmarkRead is what going through memory of the transport's own costs.
func BenchmarkDirect(b *testing.B) {
	library := transfertest.NIXLLibrary(b)
	for _, shape := range shapes {
		for name, tls := range kinds {
			b.Run(fmt.Sprintf("%dKiBx%d/nixl-%s", shape.size>>10, shape.count, name), func(b *testing.B) {
				owner := startTransportProcess(b, library, tls, "owner", 2*shape.size*shape.count)
				reader := realTransport(b, "reader", tls)
				benchmarkDirect(b, reader, loadPeer(b, reader, owner.metadata), shape.size, shape.count)
			})
		}
	}
}

func benchmarkDirect(b *testing.B, reader *Transport, from transfer.Peer, size, count int) {
	_, into := registered(b, reader, size*count, 0)
	p, regions, err := reader.find(from)
	if err != nil {
		b.Fatal(err)
	}
	var pieces []piece
	for _, s := range scattered(0, size, count) {
		pieces = append(pieces, piece{regions[0].address + s.Offset, s.Length})
	}
	lib, agent := reader.agent.lib, reader.agent.agent
	b.SetBytes(int64(size * count))
	for b.Loop() {
		request, err := lib.read(agent, p.agent, uintptr(extentOf(into).address), pieces)
		for errors.Is(err, errPending) {
			err = lib.wait(agent, request, spin)
		}
		if err != nil {
			b.Fatal(err)
		}
		if err := lib.end(agent, request); err != nil {
			b.Fatal(err)
		}
	}
}
