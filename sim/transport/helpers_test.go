package transport

import (
	"errors"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func memAgent(t testing.TB, network *MemNetwork, name string) *Mem {
	t.Helper()
	m, err := NewMem(network, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAgent(t, m) })
	return m
}

func tcpAgent(t testing.TB, name string) *TCP {
	t.Helper()
	return tcpWith(t, TCPConfig{Name: name})
}

// tcpWith starts an agent with long timeouts, so that on a slow machine only those that the test provokes expire.
func tcpWith(t testing.TB, config TCPConfig) *TCP {
	t.Helper()
	if config.DialTimeout == 0 {
		config.DialTimeout = time.Minute
	}
	agent, err := NewTCP(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAgent(t, agent) })
	return agent
}

func closeAgent(t testing.TB, agent transfer.Transport) {
	t.Helper()
	if err := agent.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

func register(t testing.TB, owner transfer.Transport, mem []byte) transfer.Region {
	t.Helper()
	r, err := owner.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// load loads the owner's present metadata at the reader.
func load(t testing.TB, reader, owner transfer.Transport) transfer.Peer {
	t.Helper()
	peer, err := reader.Load(t.Context(), owner.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

func spanAt(region uint32, offset, length uint64) transfer.Span {
	return transfer.Span{Region: region, Offset: offset, Length: length}
}

// pattern returns n bytes that differ from their neighbours and from those of another seed.
func pattern(seed, n int) []byte {
	mem := make([]byte, n)
	for i := range mem {
		mem[i] = byte(i*7 + i>>8 + seed*101)
	}
	return mem
}

func buffers(spans []transfer.Span) [][]byte {
	into := make([][]byte, len(spans))
	for i, s := range spans {
		into[i] = make([]byte, s.Length)
	}
	return into
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got error %v, want %v", got, want)
	}
}
