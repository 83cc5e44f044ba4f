package kvevents

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/kvindex"
)

// recorded is a message of a real engine: what was on the wire, and what the engine's own library reads in it.
type recorded struct {
	Label   string
	Payload string
	Decoded []any
}

// recordings returns the messages of all files in testdata.
func recordings(tb testing.TB) (all []recorded) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		tb.Fatal("no recordings: ", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			r := recorded{}
			d := json.NewDecoder(bytes.NewReader(line))
			d.UseNumber()
			if err := d.Decode(&r); err != nil {
				tb.Fatal(file, err)
			}
			r.Label = filepath.Base(file) + " " + r.Label
			all = append(all, r)
		}
	}
	return all
}

func (r recorded) payload(tb testing.TB) []byte {
	b, err := hex.DecodeString(r.Payload)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// show writes an event as showRecorded does.
func show(e *Event) string {
	names := ""
	for _, n := range e.Names {
		names += fmt.Sprintf(" %x", n)
	}
	switch e.Kind {
	case Cleared:
		return "AllBlocksCleared"
	case Removed:
		return fmt.Sprintf("BlockRemoved%s medium=%s group=%d", names, e.Medium, e.Group)
	}
	parent := "-"
	if e.HasParent {
		parent = fmt.Sprintf("%x", e.Parent)
	}
	return fmt.Sprintf("BlockStored%s parent=%s tokens=%d size=%d adapter=%s medium=%s group=%d attention=%s extras=%v",
		names, parent, e.Tokens, e.BlockTokens, e.Adapter, e.Medium, e.Group, e.Attention, len(e.Extras) > 0)
}

// each writes an event as show does, but one that drops several blocks as one event for each of them: the decoder joins such events.
func each(e *Event) (lines []string) {
	if e.Kind != Removed {
		return []string{show(e)}
	}
	for _, name := range e.Names {
		one := *e
		one.Names = []uint64{name}
		lines = append(lines, show(&one))
	}
	return lines
}

// eachRecorded does the same as each with a recorded event.
func eachRecorded(m map[string]any) (lines []string) {
	if m["type"] != "BlockRemoved" {
		return []string{showRecorded(m)}
	}
	for _, name := range m["block_hashes"].([]any) {
		one := maps.Clone(m)
		one["block_hashes"] = []any{name}
		lines = append(lines, showRecorded(one))
	}
	return lines
}

// nameOf returns a recorded block name: an integer, or bytes.
func nameOf(v any) uint64 {
	if m, ok := v.(map[string]any); ok {
		text := m["bin"].(string)
		n, _ := new(big.Int).SetString(text[len(text)-16:], 16)
		return n.Uint64()
	}
	n, _ := new(big.Int).SetString(v.(json.Number).String(), 10)
	return new(big.Int).And(n, new(big.Int).SetUint64(^uint64(0))).Uint64()
}

func showRecorded(m map[string]any) string {
	text := func(name string) string {
		s, _ := m[name].(string)
		return s
	}
	group := "-1"
	if g, ok := m["group_idx"].(json.Number); ok {
		group = g.String()
	}
	names := ""
	hashes, _ := m["block_hashes"].([]any)
	for _, h := range hashes {
		names += fmt.Sprintf(" %x", nameOf(h))
	}
	switch text("type") {
	case "AllBlocksCleared":
		return "AllBlocksCleared"
	case "BlockRemoved":
		return fmt.Sprintf("BlockRemoved%s medium=%s group=%s", names, text("medium"), group)
	}
	parent := "-"
	if m["parent_block_hash"] != nil {
		parent = fmt.Sprintf("%x", nameOf(m["parent_block_hash"]))
	}
	extras := m["cache_salt"] != nil && m["parent_block_hash"] == nil
	for _, x := range append([]any{}, m["extra_keys"]) {
		keys, _ := x.([]any)
		for _, k := range keys {
			extras = extras || k != nil
		}
	}
	return fmt.Sprintf("BlockStored%s parent=%s tokens=%v size=%s adapter=%s medium=%s group=%s attention=%s extras=%v",
		names, parent, m["token_ids"], m["block_size"], text("lora_name"), text("medium"), group, text("kv_cache_spec_kind"), extras)
}

// Messages of real engines are read as the engines' own library reads them.
func TestDecodeRecordings(t *testing.T) {
	var d Decoder
	kinds := map[string]int{}
	for _, r := range recordings(t) {
		var got, want []string
		b, err := d.Decode(r.payload(t), func(e *Event) { got = append(got, each(e)...) })
		if err != nil {
			t.Fatalf("%s: %v", r.Label, err)
		}
		if n := len(r.Decoded[1].([]any)); b.Events != n {
			t.Errorf("%s: %d events, want %d", r.Label, b.Events, n)
		}
		for _, e := range r.Decoded[1].([]any) {
			want = append(want, eachRecorded(e.(map[string]any))...)
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", r.Label, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if at, _ := r.Decoded[0].(json.Number).Float64(); b.At != at || fmt.Sprint(b.Rank) != fmt.Sprint(r.Decoded[2]) || b.Skipped != 0 {
			t.Errorf("%s: at %v of rank %d, %d skipped; want %v", r.Label, b.At, b.Rank, b.Skipped, r.Decoded)
		}
		for _, line := range got {
			kinds[strings.Fields(line)[0]]++
		}
	}
	for _, kind := range []string{"BlockStored", "BlockRemoved", "AllBlocksCleared"} {
		if kinds[kind] == 0 {
			t.Errorf("the recordings have no %s", kind)
		}
	}
}

// The forms that other versions of engines write.
func TestDecodeForms(t *testing.T) {
	digest := append(bytes.Repeat([]byte{0xff}, 24), 0, 0, 0, 0, 0, 0, 0, 7)
	stored := "BlockStored 7 parent=5 tokens=[1 300] size=2 adapter= medium=GPU group=-1 attention= extras=false"
	for name, test := range map[string]struct {
		event any
		want  string // "" = skipped
	}{
		"array, first version":        {list{"BlockStored", list{7}, 5, list{1, 300}, 2, nil, "GPU"}, stored},
		"array, no medium":            {list{"BlockStored", list{7}, nil, list{1, 300}, 2}, "BlockStored 7 parent=- tokens=[1 300] size=2 adapter= medium= group=-1 attention= extras=false"},
		"array, with all members":     {list{"BlockStored", list{7}, 5, list{1, 300}, 2, nil, "GPU", "poet", list{list{"poet", "salt"}}, 3, "mla_attention", 128, "more"}, "BlockStored 7 parent=5 tokens=[1 300] size=2 adapter=poet medium=GPU group=3 attention=mla_attention extras=true"},
		"array, extras are adapter's": {list{"BlockStored", list{7}, 5, list{1, 300}, 2, nil, "GPU", "poet", list{list{"poet"}}}, "BlockStored 7 parent=5 tokens=[1 300] size=2 adapter=poet medium=GPU group=-1 attention= extras=false"},
		"array, SGLang's map":         {list{"BlockStored", list{7}, nil, list{1, 300}, 2, nil, "GPU", dict{"cache_salt", "s", "other", list{1}}}, "BlockStored 7 parent=- tokens=[1 300] size=2 adapter= medium=GPU group=-1 attention= extras=true"},
		"array, removed":              {list{"BlockRemoved", list{7, 8}, "GPU", 1}, "BlockRemoved 7 8 medium=GPU group=1"},
		"array, cleared":              {list{"AllBlocksCleared"}, "AllBlocksCleared"},
		"map":                         {dict{"type", "BlockStored", "block_hashes", list{7}, "parent_block_hash", 5, "token_ids", list{1, 300}, "block_size", 2, "medium", "GPU"}, stored},
		"map, in another order":       {dict{"token_ids", list{1, 300}, "new", dict{"a", list{nil, true}}, "medium", "GPU", "parent_block_hash", 5, "block_size", 2, "block_hashes", list{7}, "type", "BlockStored"}, stored},
		"bytes as names":              {dict{"type", "BlockStored", "block_hashes", list{digest}, "parent_block_hash", digest, "token_ids", list{1, 300}, "block_size", 2, "medium", "GPU"}, strings.Replace(stored, "parent=5", "parent=7", 1)},
		"negative names":              {dict{"type", "BlockRemoved", "block_hashes", list{-2, int64(-1 << 62)}}, "BlockRemoved fffffffffffffffe c000000000000000 medium= group=-1"},
		"pairs of tokens":             {list{"BlockStored", list{7}, 5, list{list{1, 2}, list{2, 3}}, 2}, ""},
		"no tokens":                   {list{"BlockStored", list{7}, nil, list{}, 0, nil, "CPU"}, "BlockStored 7 parent=- tokens=[] size=0 adapter= medium=CPU group=-1 attention= extras=false"},
		"extras for other blocks":     {list{"BlockStored", list{7}, 5, list{1, 300}, 2, nil, "GPU", nil, list{nil, list{"x"}}}, ""},
		"an unknown kind":             {dict{"type", "BlockInactive", "block_hashes", list{1}}, ""},
		"no kind":                     {dict{"block_hashes", list{1}}, ""},
		"a short digest":              {list{"BlockRemoved", list{[]byte{1, 2}}}, ""},
		"a huge token":                {list{"BlockStored", list{7}, 5, list{1, uint64(1 << 33)}, 2}, ""},
		"a number":                    {7, ""},
		"an empty array":              {list{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			after := list{"AllBlocksCleared"} // an event that cannot be read costs only itself
			for form, batch := range map[string]any{
				"array": list{1.5, list{test.event, after}, 3},
				"map":   dict{"data_parallel_rank", 3, "new", list{1}, "events", list{test.event, after}, "ts", 1.5},
			} {
				var got []string
				var d Decoder
				b, err := d.Decode(pack(nil, batch), func(e *Event) { got = append(got, show(e)) })
				if err != nil || b.At != 1.5 || b.Rank != 3 {
					t.Fatalf("batch as %s: %+v, %v", form, b, err)
				}
				want := []string{test.want, "AllBlocksCleared"}
				if test.want == "" {
					want = want[1:]
				}
				if strings.Join(got, "\n") != strings.Join(want, "\n") || b.Skipped != 2-len(want) {
					t.Errorf("batch as %s: %d skipped,\n%s\nwant\n%s", form, b.Skipped, strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			}
		})
	}
}

// TestDecodeJoins: of events that drop one block each, those that follow one another and differ in nothing else are one event.
func TestDecodeJoins(t *testing.T) {
	const big = uint64(1) << 60
	drop := func(name any, more ...any) any {
		return append(dict{"type", "BlockRemoved", "block_hashes", list{name}, "medium", "GPU"}, more...)
	}
	array := func(name any, medium string) any { return list{"BlockRemoved", list{name}, medium} }
	digest := func(first, last byte) []byte {
		return append(bytes.Repeat([]byte{first}, 24), 0, 0, 0, 0, 0, 0, 0, last)
	}
	for name, test := range map[string]struct {
		events  list
		want    string
		skipped int
	}{
		"maps":                 {list{drop(big | 1), drop(big | 2), drop(big | 3)}, "GPU:1,2,3", 0},
		"arrays":               {list{array(big|1, "CPU"), array(big|2, "CPU")}, "CPU:1,2", 0},
		"digests":              {list{drop(digest(1, 1)), drop(digest(2, 2))}, "GPU:1,2", 0},
		"negative":             {list{drop(int64(-1<<62 | 1)), drop(int64(-1<<61 | 2))}, "GPU:1,2", 0},
		"small and large ones": {list{drop(1), drop(2), drop(300), drop(big | 4), drop(5)}, "GPU:1 GPU:2 GPU:300 GPU:4 GPU:5", 0},
		"other digests":        {list{drop(digest(1, 1)), drop(digest(2, 2)[12:]), drop(digest(1, 3))}, "GPU:1 GPU:2 GPU:3", 0},
		"several at once":      {list{drop(big | 1), dict{"type", "BlockRemoved", "block_hashes", []uint64{2, 3}, "medium", "GPU"}, drop(big | 4)}, "GPU:1 GPU:2,3 GPU:4", 0},
		"other memory":         {list{drop(big | 1), array(big|2, "CPU"), array(big|3, "DISK"), array(big|4, "DISK")}, "GPU:1 CPU:2 DISK:3,4", 0},
		"other groups":         {list{drop(big|1, "group_idx", 0), drop(big|2, "group_idx", 1), drop(big|3, "group_idx", 1)}, "GPU:1 GPU1:2,3", 0},
		"names come first":     {list{dict{"block_hashes", list{big | 1}, "type", "BlockRemoved"}, dict{"block_hashes", list{big | 2}, "type", "BlockRemoved"}}, ":1,2", 0},
		"something between":    {list{drop(big | 1), list{"AllBlocksCleared"}, drop(big | 2)}, "GPU:1 cleared GPU:2", 0},
		"one is not whole":     {list{drop(big | 1), drop(nil), drop(big | 2)}, "GPU:1 GPU:2", 1},
		"stored the same way":  {list{list{"BlockStored", list{big | 1}, nil, list{1}, 1}, list{"BlockStored", list{big | 2}, nil, list{1}, 1}}, "stored:1 stored:2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			var d Decoder
			b, err := d.Decode(pack(nil, list{1.5, test.events, 3}), func(e *Event) {
				var names []string
				for _, n := range e.Names {
					names = append(names, fmt.Sprint(n&0xfff))
				}
				line := string(e.Medium)
				if e.Group > 0 {
					line += fmt.Sprint(e.Group)
				}
				if line += ":" + strings.Join(names, ","); e.Kind != Removed {
					line = map[Kind]string{Stored: "stored" + line, Cleared: "cleared"}[e.Kind]
				}
				got = append(got, line)
			})
			if err != nil || b.Rank != 3 || b.Events != len(test.events)-test.skipped || b.Skipped != test.skipped {
				t.Errorf("%+v, %v", b, err)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("%s, want %s", strings.Join(got, " "), test.want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	var d Decoder
	for _, r := range recordings(t)[:6] {
		whole := r.payload(t)
		for n := range whole {
			if _, err := d.Decode(whole[:n], func(*Event) {}); !errors.Is(err, ErrBatch) && n < len(whole)-1 {
				t.Fatalf("%d bytes of %d: %v", n, len(whole), err)
			}
		}
	}
	for name, payload := range map[string][]byte{
		"nothing":             nil,
		"a number":            {7},
		"an array of one":     pack(nil, list{1.5}),
		"events are a text":   pack(nil, list{1.5, "events"}),
		"the time is a text":  pack(nil, list{"now", list{}}),
		"a reserved byte":     {0x92, 0xc1, 0x90},
		"a length of 4 GB":    {0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff, 0x91},
		"deep nesting":        append([]byte{0x93, 0x01, 0x90}, bytes.Repeat([]byte{0x91}, 1<<20)...),
		"lengths that add up": append([]byte{0x93, 0x01, 0x90}, bytes.Repeat([]byte{0xdc, 0xff, 0xff}, 1<<18)...),
	} {
		if _, err := d.Decode(payload, func(*Event) {}); !errors.Is(err, ErrBatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a message makes the decoder keep is in proportion to its size.
func FuzzDecode(f *testing.F) {
	for _, r := range recordings(f) {
		f.Add(r.payload(f))
	}
	f.Add(pack(nil, list{1.5, list{list{"BlockStored", list{7}, nil, list{1, 300}, 2, nil, "GPU", "poet", list{list{"poet"}}}}, 3}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		x := kvindex.New(1, 1<<20)
		s := NewStream(x, x.Join(), new(Roots), new(Counts))
		_, err := s.Apply(payload)
		if e := &s.decoder.event; cap(e.Names)+cap(e.Tokens)+cap(e.Extras) > 8*len(payload)+64 {
			t.Errorf("%d bytes make %d names, %d tokens and %d extras", len(payload), cap(e.Names), cap(e.Tokens), cap(e.Extras))
		}
		if err != nil && !errors.Is(err, ErrBatch) {
			t.Error(err)
		}
		s.Holder.Clear()
		for !x.Sweep() {
		}
		if x.Blocks() != 0 {
			t.Errorf("%d blocks are left", x.Blocks())
		}
	})
}

// BenchmarkApply reads and applies messages as vLLM writes them: one stores 64 blocks of 16 tokens, and another one drops them
// again, one by one.
func BenchmarkApply(b *testing.B) {
	const blocks, messages = 64, 2000
	x := kvindex.New(1, 1<<40)
	s := NewStream(x, x.Join(), new(Roots), new(Counts))
	var stores, drops [][]byte
	for m := range uint64(messages) {
		var names []uint64
		var tokens []uint32
		var removed list
		for i := range uint64(blocks) {
			name := (m*blocks + i + 1) * 0x9e3779b97f4a7c15
			names = append(names, name)
			removed = append(removed, dict{"type", "BlockRemoved", "block_hashes", []uint64{name}, "medium", "GPU", "group_idx", 0})
			for j := range uint64(16) {
				tokens = append(tokens, uint32((name>>8+j*977)%60000))
			}
		}
		stores = append(stores, pack(nil, list{1.5, list{dict{"type", "BlockStored", "block_hashes", names, "parent_block_hash", nil,
			"token_ids", tokens, "block_size", 16, "lora_id", nil, "medium", "GPU", "lora_name", nil, "extra_keys", make(list, blocks),
			"group_idx", 0, "kv_cache_spec_kind", "full_attention"}}, 0}))
		drops = append(drops, pack(nil, list{1.5, removed, 0}))
	}
	for _, m := range stores[:messages/2] {
		if _, err := s.Apply(m); err != nil {
			b.Fatal(err)
		}
	}
	if n := s.Holder.Len(); n != messages/2*blocks {
		b.Fatalf("%d blocks", n)
	}
	runtime.GC()
	b.ReportAllocs()
	i := messages / 2
	took := make([]time.Duration, 0, 1<<20)
	for b.Loop() {
		began := time.Now()
		_, _ = s.Apply(stores[i%messages])
		_, _ = s.Apply(drops[(i+messages/2)%messages])
		if i++; len(took) < cap(took) {
			took = append(took, time.Since(began))
		}
	}
	b.ReportMetric(2*blocks*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
	slices.Sort(took) // other programs interrupt few of them
	b.ReportMetric(2*blocks/took[len(took)/2].Seconds(), "p50-blocks/s")
}
