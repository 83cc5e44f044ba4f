package transport

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/transfertest"
)

// memKind returns agents of a network of their own.
func memKind() transfertest.Kind {
	network := NewMemNetwork()
	return transfertest.Kind{
		PartBytes: maxPart, PartSpans: maxSpans,
		Start: func(t testing.TB, name string) transfer.Transport { return memAgent(t, network, name) },
		Restart: func(t testing.TB, old transfer.Transport, name string) transfer.Transport {
			closeAgent(t, old)
			return memAgent(t, network, name)
		},
	}
}

func tcpKind() transfertest.Kind {
	return transfertest.Kind{
		PartBytes: maxPart, PartSpans: maxSpans,
		Start: func(t testing.TB, name string) transfer.Transport { return tcpAgent(t, name) },
		Restart: func(t testing.TB, old transfer.Transport, name string) transfer.Transport {
			closeAgent(t, old)
			return tcpWith(t, TCPConfig{Name: name, Listen: old.(*TCP).Addr()})
		},
	}
}

var kinds = map[string]func() transfertest.Kind{"memory": memKind, "TCP": tcpKind}

func TestContract(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) { transfertest.Run(t, kind) })
	}
}

// TestMetadataOfOthers: metadata of another kind of transport, or of a later version, is not supported.
func TestMetadataOfOthers(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			k := kind()
			owner, reader := k.Start(t, "owner"), k.Start(t, "reader")
			foreign, later := slices.Clone(owner.Metadata()), slices.Clone(owner.Metadata())
			foreign[len(metadataMagic)+1] = 'x'
			later[len(metadataMagic)]++
			for _, metadata := range [][]byte{foreign, later} {
				_, err := reader.Load(t.Context(), metadata)
				wantErr(t, err, transfer.ErrNotSupported)
			}
		})
	}
}

// TestForgedMetadata: the owner refuses reads outside of its memory, whatever its metadata said.
func TestForgedMetadata(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) { testForgedMetadata(t, kind()) })
	}
}

func testForgedMetadata(t *testing.T, k transfertest.Kind) {
	owner, reader := k.Start(t, "owner"), k.Start(t, "reader")
	register(t, owner, pattern(0, 10))
	md, err := parseMetadata(owner.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	md.regions[0], md.regions[1] = 1000, 1000
	peer, err := reader.Load(t.Context(), md.append(nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, spans := range [][]transfer.Span{{spanAt(0, 0, 11)}, {spanAt(1, 0, 1)}} {
		wantErr(t, reader.Read(t.Context(), peer, spans, buffers(spans), []byte("read")), transfer.ErrRange)
	}
}
