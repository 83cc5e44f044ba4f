package nixl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

// libraryBlob is metadata as far as this package reads it.
func libraryBlob(agent string) []byte {
	b := []byte(metadataMagic + nameTag)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(agent)))
	return append(append(b, agent...), "|more of it|"...)
}

func sampleEnvelope() envelope {
	return envelope{
		agent: "prefill-0@00000000000000ff", generation: 255, blob: libraryBlob("prefill-0@00000000000000ff"),
		regions: map[uint32]extent{0: {4096, 100}, 7: {math.MaxUint64 - 5, 5}},
	}
}

func TestEnvelope(t *testing.T) {
	for name, want := range map[string]envelope{
		"regions": sampleEnvelope(),
		"none": {agent: "a@0000000000000001", generation: 1, blob: libraryBlob("a@0000000000000001"),
			regions: map[uint32]extent{}},
	} {
		t.Run(name, func(t *testing.T) {
			wire := want.append(nil)
			got, err := parseEnvelope(wire)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("got %+v, %v, want %+v", got, err, want)
			}
			clear(wire)
			if !reflect.DeepEqual(got, want) {
				t.Error("it shares memory with what it was read from")
			}
		})
	}
	if peer := sampleEnvelope().peer(); peer != "prefill-0" {
		t.Errorf("the peer is called %s", peer)
	}
}

func TestBareMetadata(t *testing.T) {
	for _, agent := range []string{"engine-17", "prefill-0@00000000000000ff"} {
		e, err := parseEnvelope(libraryBlob(agent))
		if err != nil || !e.bare || e.agent != agent || e.peer() != transfer.Peer(agent) {
			t.Errorf("got %+v, %v", e, err)
		}
	}
}

func TestBareMetadataIsCutOff(t *testing.T) {
	blob := libraryBlob("engine")
	if _, err := parseEnvelope(blob[:len(blob)-1]); !errors.Is(err, transfer.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestPlainName(t *testing.T) {
	for agent, want := range map[string]string{
		"a@0123456789abcdef": "a", "a@b@0123456789abcdef": "a@b", "@0123456789abcdef": "", "a@0123456789ABCDEF": "",
		"a@123456789abcdef": "", "a-0123456789abcdef": "", "": "", "a": "", "0123456789abcdefg": "",
	} {
		got, ok := plainName(agent)
		if ok != (want != "") || ok && got != want || !ok && got != agent {
			t.Errorf("%q gives %q, %v", agent, got, ok)
		}
	}
}

func TestEnvelopeIsRefused(t *testing.T) {
	good := sampleEnvelope().append(nil)
	const table = envelopeHead
	edited := func(at int, with ...byte) []byte {
		b := slices.Clone(good)
		copy(b[at:], with)
		return b
	}
	for name, c := range map[string]struct {
		wire []byte
		want error
	}{
		"nothing":                  {nil, transfer.ErrInvalid},
		"magic only":               {[]byte(envelopeMagic), transfer.ErrInvalid},
		"another version":          {edited(4, 2), transfer.ErrNotSupported},
		"another version, cut off": {[]byte(envelopeMagic + "\x02"), transfer.ErrNotSupported},
		"cut off in the head":      {good[:table-1], transfer.ErrInvalid},
		"cut off in the table":     {good[:table+entrySize+3], transfer.ErrInvalid},
		"cut off behind the table": {good[:table+2*entrySize], transfer.ErrInvalid},
		"cut off at the end":       {good[:len(good)-1], transfer.ErrInvalid},
		"a byte too many":          {append(slices.Clone(good), '|'), transfer.ErrInvalid},
		"too many regions":         {edited(table-4, 0xff, 0xff, 0xff, 0xff), transfer.ErrInvalid},
		"another generation":       {edited(5, 1), transfer.ErrInvalid},
		"the same number twice":    {edited(table+entrySize, 0, 0, 0, 0), transfer.ErrInvalid},
		"no length":                {edited(table+12, 0, 0, 0, 0, 0, 0, 0, 0), transfer.ErrInvalid},
		"address zero":             {edited(table+4, 0, 0, 0, 0, 0, 0, 0, 0), transfer.ErrInvalid},
		"wraps around":             {edited(table+entrySize+12, 0, 0, 0, 0, 0, 0, 0, 6), transfer.ErrInvalid},
		"longer than half of all":  {edited(table+12, 0x80), transfer.ErrInvalid},
		"too long":                 {append(slices.Clone(good), make([]byte, MaxMetadata)...), transfer.ErrInvalid},
		"a name without life": {envelope{generation: 255, blob: libraryBlob("prefill-0")}.append(nil),
			transfer.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseEnvelope(c.wire); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// What is accepted is written again as it was read: nothing in it is ambiguous.
func FuzzParseEnvelope(f *testing.F) {
	f.Add(sampleEnvelope().append(nil))
	f.Add(sampleEnvelope().append(nil)[:40])
	f.Add(libraryBlob("engine"))
	f.Add([]byte(envelopeMagic))
	f.Fuzz(func(t *testing.T, wire []byte) {
		e, err := parseEnvelope(wire)
		if err != nil {
			return
		}
		if e.bare {
			if !bytes.Equal(e.blob, wire) || len(e.regions) != 0 {
				t.Fatalf("%q was read as %+v", wire, e)
			}
			return
		}
		if again := e.append(nil); !bytes.Equal(again, wire) {
			t.Fatalf("%q is written as %q", wire, again)
		}
		for id, x := range e.regions {
			if x.length == 0 || x.address+x.length < x.address {
				t.Fatalf("region %d is %+v", id, x)
			}
		}
	})
}

func BenchmarkParseEnvelope(b *testing.B) {
	e := sampleEnvelope()
	for i := range uint32(160) { // two for each of 80 layers
		e.regions[i] = extent{4096 + uint64(i)*8192, 4096}
	}
	wire := e.append(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseEnvelope(wire); err != nil {
			b.Fatal(err)
		}
	}
}
