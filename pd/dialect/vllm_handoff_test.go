package dialect

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// offered is a hand-off as vLLM 0.32 writes it, member by member.
var offered = [][2]string{
	{"do_remote_prefill", `true`},
	{"do_remote_decode", `false`},
	{"remote_block_ids", `[[1,2,3,4]]`},
	{"remote_engine_id", `"c1e963da-976a-4246-9d89-e8698d91a654"`},
	{"remote_request_id", `"cmpl-1-0-8a7a7f67"`},
	{"remote_host", `"10.0.0.7"`},
	{"remote_port", `5601`},
	{"tp_size", `1`},
	{"remote_num_tokens", `100`},
	{"remote_blocks_expiry_time", `null`},
	{"transfer_mode", `"pull"`},
	{"remote_prefill_cached_tokens", `0`},
}

const absent = ""

// offer returns the text of offered with one member's value changed, or left out, or added at the end.
func offer(name, value string) string {
	var b strings.Builder
	found := name == ""
	for _, m := range offered {
		if m[0] == name {
			found, m[1] = true, value
		}
		if m[1] != absent {
			fmt.Fprintf(&b, `,"%s":%s`, m[0], m[1])
		}
	}
	if !found {
		fmt.Fprintf(&b, `,"%s":%s`, name, value)
	}
	return "{" + b.String()[1:] + "}"
}

func recorded(t testing.TB, folder string) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata/handoff", folder, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded hand-offs in %s: %v", folder, err)
	}
	out := map[string][]byte{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(file)] = raw
	}
	return out
}

// plainHandoff is a hand-off read by encoding/json: another opinion on the same bytes.
type plainHandoff struct {
	DoRemotePrefill any             `json:"do_remote_prefill"`
	BlockIDs        [][]json.Number `json:"remote_block_ids"`
	EngineID        *string         `json:"remote_engine_id"`
	RequestID       *string         `json:"remote_request_id"`
	Host            *string         `json:"remote_host"`
	Port            *uint16         `json:"remote_port"`
	Tokens          *int            `json:"remote_num_tokens"`
	Cached          *int            `json:"remote_prefill_cached_tokens"`
	Tensor          any             `json:"tp_size"`
	Pipeline        any             `json:"pp_size"`
}

func (p plainHandoff) blocks() (n int) {
	for _, group := range p.BlockIDs {
		n += len(group)
	}
	return n
}

func (p plainHandoff) layout() (tensor, pipeline int) {
	tensor, pipeline = ranks(p.Tensor), ranks(p.Pipeline)
	if tensor*pipeline == 0 {
		return 0, 0
	}
	return tensor, pipeline
}

func ranks(v any) int {
	n, ok := v.(float64)
	switch {
	case v == nil:
		return 1
	case !ok || n < 1 || n > 1024 || n != math.Trunc(n):
		return 0
	}
	return int(n)
}

func orAbsent(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

// check compares what parseHandoff made of raw with what encoding/json makes of it.
func check(t *testing.T, raw []byte, h nixlParams) {
	t.Helper()
	var p plainHandoff
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatalf("%s was accepted, encoding/json says %v", raw, err)
	}
	if p.DoRemotePrefill != true || p.EngineID == nil || p.RequestID == nil || p.Host == nil || *p.Host == "" || p.Port == nil || *p.Port == 0 {
		t.Fatalf("%s was accepted", raw)
	}
	if h.pin.EngineID != *p.EngineID || h.pin.RequestID != *p.RequestID || h.pin.EngineID == "" || h.pin.RequestID == "" {
		t.Fatalf("%s: engine %q, request %q", raw, h.pin.EngineID, h.pin.RequestID)
	}
	if h.pin.Host != *p.Host || h.pin.Port != int(*p.Port) {
		t.Fatalf("%s: side channel at %q, port %d", raw, h.pin.Host, h.pin.Port)
	}
	if tensor, pipeline := p.layout(); h.pin.Tensor != tensor || h.pin.Pipeline != pipeline {
		t.Fatalf("%s: ranks %d x %d, want %d x %d", raw, h.pin.Tensor, h.pin.Pipeline, tensor, pipeline)
	}
	if h.blocks != p.blocks() || h.blocks == 0 || h.tokens != orAbsent(p.Tokens) || h.cached != orAbsent(p.Cached) {
		t.Fatalf("%s: %d blocks, %d tokens, %d cached", raw, h.blocks, h.tokens, h.cached)
	}
}

func TestParseHandoffAcceptsRecordings(t *testing.T) {
	const blockSize = 32 // of the engine that was recorded
	for name, raw := range recorded(t, "good") {
		t.Run(name, func(t *testing.T) {
			h, err := parseHandoff(raw)
			if err != nil {
				t.Fatal(err)
			}
			check(t, raw, h)
			if string(h.raw) != string(raw) || h.raw == nil {
				t.Errorf("kept as %s", h.raw)
			}
			if h.tokens < 1 || h.cached < 0 {
				t.Errorf("%d tokens, %d cached", h.tokens, h.cached)
			}
			if err := h.checkBlocks(h.tokens, blockSize); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestParseHandoffRefusesRecordings(t *testing.T) {
	for name, raw := range recorded(t, "bad") {
		if h, err := parseHandoff(raw); err == nil {
			t.Errorf("%s was accepted: %s", name, h.raw)
		}
	}
}

func TestParseHandoffAccepts(t *testing.T) {
	cases := []struct{ name, raw string }{
		{"as vLLM writes it", offer("", "")},
		{"two groups", offer("remote_block_ids", `[[1,2],[3]]`)},
		{"an empty group beside another", offer("remote_block_ids", `[[],[7],[]]`)},
		{"blanks between the blocks", offer("remote_block_ids", "[ [ 1 , 2 ]\n,\t[3]\r\n]")},
		{"block 0", offer("remote_block_ids", `[[0]]`)},
		{"no token count, as older engines", offer("remote_num_tokens", absent)},
		{"no cached count, as older engines", offer("remote_prefill_cached_tokens", absent)},
		{"null counts", strings.Replace(offer("remote_num_tokens", `null`), `cached_tokens":0`, `cached_tokens":null`, 1)},
		{"the least and the greatest port", offer("remote_port", `1`)},
		{"the greatest port", offer("remote_port", `65535`)},
		{"escapes in a value", offer("remote_engine_id", `"a\u002d\"b\""`)},
		{"an escape in a name", strings.Replace(offer("", ""), "remote_port", `remote\u005fport`, 1)},
		{"an unknown member", offer("tier", `{"deep":[1,{"x":null}]}`)},
		{"an unknown member twice", strings.Replace(offer("tier", `1`), `"tier"`, `"tier":0,"tier"`, 1)},
		{"blanks everywhere", strings.NewReplacer(",", " ,\n", ":", " :\t").Replace(offer("remote_engine_id", `"e"`))},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h, err := parseHandoff([]byte(c.raw))
			if err != nil {
				t.Fatal(err)
			}
			check(t, []byte(c.raw), h)
			if string(h.raw) != c.raw {
				t.Errorf("kept as %s", h.raw)
			}
		})
	}
}

// Only the six members that decode needs are in it: measured to be enough for vLLM.
func TestParseHandoffNeedsNoMoreThanDecodeDoes(t *testing.T) {
	h, err := parseHandoff([]byte(`{"do_remote_prefill":true,"remote_block_ids":[[9]],"remote_engine_id":"e",` +
		`"remote_request_id":"r","remote_host":"h","remote_port":5601}`))
	if err != nil || h.pin.EngineID != "e" || h.pin.RequestID != "r" || h.blocks != 1 || h.tokens != -1 || h.cached != -1 {
		t.Errorf("got %+v, %v", h, err)
	}
}

// Notices go to every rank, so the ranks must be known.
func TestHandoffRanks(t *testing.T) {
	for value, want := range map[string]int{
		absent: 1, `null`: 1, `1`: 1, `8`: 8, `1024`: 1024,
		`0`: 0, `-1`: 0, `1025`: 0, `1.5`: 0, `2e0`: 0, `"2"`: 0, `true`: 0, `[2]`: 0, `{}`: 0, `99999999999999999999`: 0,
	} {
		for _, name := range []string{"tp_size", "pp_size"} {
			if name == "pp_size" && value == absent {
				continue // as in all other cases
			}
			h, err := parseHandoff([]byte(offer(name, value)))
			if err != nil {
				t.Errorf("%s %s: %v", name, value, err)
				continue
			}
			got, other := h.pin.Tensor, h.pin.Pipeline
			if name == "pp_size" {
				got, other = other, got
			}
			if got != want || other != min(want, 1) {
				t.Errorf("%s %s: %d x %d", name, value, h.pin.Tensor, h.pin.Pipeline)
			}
		}
	}
	h, err := parseHandoff([]byte(strings.Replace(offer("tp_size", `4`), `"tp_size"`, `"tp_size":2,"tp_size"`, 1)))
	if err != nil || h.pin.Tensor != 4 {
		t.Errorf("of two, %d counts: %v", h.pin.Tensor, err)
	}
}

// Decoding and encoding again would lose these.
func TestHandoffKeepsEveryByte(t *testing.T) {
	for _, value := range []string{"12345678901234567890123", "1.0", "1e400", "-0", `"\u00e9\/é"`, `{ "b":1 , "a":2,"a":3 }`} {
		raw := offer("added_in_0.40", value)
		h, err := parseHandoff([]byte(raw))
		if err != nil || string(h.raw) != raw {
			t.Errorf("%s: kept as %s, %v", raw, h.raw, err)
		}
	}
}

// The raw object is pasted into a body, so what surrounds it must not come along.
func TestHandoffIsTheObjectAlone(t *testing.T) {
	raw := offer("", "")
	for _, around := range [][2]string{{" \n", "\t "}, {"\xEF\xBB\xBF", ""}} {
		h, err := parseHandoff([]byte(around[0] + raw + around[1]))
		if err != nil || string(h.raw) != raw {
			t.Errorf("between %q: kept as %q, %v", around, h.raw, err)
		}
	}
}

func TestParseHandoffAnyOrder(t *testing.T) {
	r := seeded()
	want, err := parseHandoff([]byte(offer("", "")))
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		members := strings.Split(strings.Trim(strings.ReplaceAll(offer("", ""), "[[1,2,3,4]]", "[[1;2;3;4]]"), "{}"), ",")
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		raw := strings.ReplaceAll("{"+strings.Join(members, ",")+"}", ";", ",")
		h, err := parseHandoff([]byte(raw))
		if err != nil || h.pin.EngineID != want.pin.EngineID || h.pin.RequestID != want.pin.RequestID || h.blocks != 4 || h.tokens != 100 || h.cached != 0 {
			t.Fatalf("%s: got %+v, %v", raw, h, err)
		}
	}
}

// Each of these either ends a real decode engine, makes it wait for ever, or makes it answer wrongly.
func TestParseHandoffRefusesMembers(t *testing.T) {
	token := []string{`"100"`, `-1`, `1.5`, `1e2`, `true`, `[100]`, `{}`, `99999999999999999999`, `NaN`}
	text := []string{absent, `null`, `""`, `5`, `true`, `["e"]`, `{"e":1}`, `"\x"`}
	cases := map[string][]string{
		"do_remote_prefill": {absent, `null`, `false`, `1`, `"true"`, `"yes"`, `[true]`, `{}`},
		"remote_block_ids": {
			absent, `null`, `[]`, `[[]]`, `[[],[]]`, `[1,2]`, `3`, `true`, `"[[1]]"`, `{}`, `{"0":[1]}`,
			`[["1"]]`, `[["x","y"]]`, `[[-1]]`, `[[1,-2]]`, `[[1.5]]`, `[[1.0]]`, `[[1e2]]`, `[[true]]`, `[[null]]`, `[[1,null]]`, `[[NaN]]`, `[[-Infinity]]`,
			`[[[1]]]`, `[[1,[2]]]`, `[[1],[[]]]`, `[[[]],[1]]`, `[[1],2]`, `[1,[2]]`, `[null,[1]]`, `[[1],null]`, `[[1],{}]`, `[{"a":1},[1]]`, `[[1],"2"]`,
		},
		"remote_engine_id":             text,
		"remote_request_id":            text,
		"remote_host":                  text,
		"remote_port":                  {absent, `null`, `"5601"`, `0`, `-1`, `65536`, `5601.0`, `5e3`, `true`, `[5601]`, `99999999999999999999`},
		"remote_num_tokens":            token,
		"remote_prefill_cached_tokens": token,
	}
	for name, values := range cases {
		for _, value := range values {
			h, err := parseHandoff([]byte(offer(name, value)))
			if err == nil || h.raw != nil {
				t.Errorf("%s %s: got %s, %v", name, value, h.raw, err)
			}
		}
	}
}

func TestParseHandoffRefuses(t *testing.T) {
	good := offer("", "")
	cases := []struct{ name, raw, err string }{
		{"nothing", ``, "unexpected end"},
		{"null", `null`, "not an object"},
		{"a list", `[` + good + `]`, "not an object"},
		{"a string", `"x"`, "not an object"},
		{"an empty object", `{}`, "do_remote_prefill true"},
		{"the mark alone", `{"do_remote_prefill":true}`, "remote_engine_id"},
		{"what prefill is asked with", `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`, "do_remote_prefill true"},
		{"garbage after it", good + `x`, "after the value"},
		{"two objects", good + good, "after the value"},
		{"a comma too many", strings.TrimSuffix(good, "}") + `,}`, "no key"},
		{"single quotes", strings.ReplaceAll(good, `"`, `'`), "no key"},
		{"UTF-16", "{\x00}\x00", "UTF-8"},
		{"a member twice", strings.TrimSuffix(good, "}") + `,"remote_port":5601}`, `"remote_port" occurs twice`},
		{"a member twice, by an escape", strings.TrimSuffix(good, "}") + `,"remote\u005fport":5601}`, `"remote_port" occurs twice`},
		{"the mark twice", strings.TrimSuffix(good, "}") + `,"do_remote_prefill":false}`, `"do_remote_prefill" occurs twice`},
		{"nested too deeply", offer("x", strings.Repeat("[", 16)+strings.Repeat("]", 16)), "nested too deeply"},
		{"the members one level too deep", `{"kv_transfer_params":` + good + `}`, "do_remote_prefill true"},
		{"names in capitals", strings.ToUpper(good), "value"},
		{"a further hand-off", offer("do_remote_decode", `true`), "do_remote_decode is not false"},
		{"a further hand-off, by a list", offer("do_remote_decode", `[1]`), "do_remote_decode is not false"},
		{"another connector's peer", strings.TrimSuffix(good, "}") + `,"remote_decoder":"x"}`, "has remote_decoder, which is not NIXL's"},
		{"another connector's peer, rightly", strings.TrimSuffix(good, "}") + `,"remote_prefiller":{"kv_request_id":"1","remote_host":"h","remote_port":1}}`, "has remote_prefiller"},
		{"another connector's source", strings.TrimSuffix(good, "}") + `,"remote_kv_source":null}`, "has remote_kv_source"},
		{"too long", offer("x", `"`+strings.Repeat("x", 1<<20)+`"`), "longer than 1048576 bytes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h, err := parseHandoff([]byte(c.raw))
			if err == nil || h.raw != nil {
				t.Fatalf("got %s, %v", h.raw, err)
			}
			if !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %q, want %q in it", err, c.err)
			}
		})
	}
}

func TestParseHandoffRefusesEveryTruncation(t *testing.T) {
	good := offer("", "")
	for n := range len(good) {
		if h, err := parseHandoff([]byte(good[:n])); err == nil {
			t.Errorf("%s was accepted: %s", good[:n], h.raw)
		}
	}
}

func TestCheckBlocks(t *testing.T) {
	const one, two = `[[1,2,3,4]]`, `[[1,2],[3,4]]`
	cases := []struct {
		name                   string
		blocks                 string
		tokens                 string // remote_num_tokens
		promptTokens, perBlock int
		ok                     bool
	}{
		{"just right, last block in part", one, `100`, 100, 32, true},
		{"just right, whole blocks", one, `128`, 128, 32, true},
		{"a block too many", one, `96`, 96, 32, false},
		{"a block too few", one, `129`, 129, 32, false},
		{"one token", `[[9]]`, `1`, 1, 32, true},
		{"far too many", one, `1`, 1, 1024, false},
		{"the prompt's length is not known", one, `1`, 0, 32, true},
		{"prefill did not say the prompt's length", one, `1`, -1, 32, true},
		{"the block size is not known", one, `1`, 1, 0, true},
		{"the hand-off covers another number of tokens", one, `103`, 100, 16, true},
		{"an older engine does not say", one, absent, 100, 16, true},
		{"two groups", two, `100`, 100, 16, true},
		{"an empty group counts as one", `[[1,2,3,4],[]]`, `100`, 100, 16, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			raw := strings.Replace(offer("remote_num_tokens", c.tokens), one, c.blocks, 1)
			h, err := parseHandoff([]byte(raw))
			if err != nil {
				t.Fatal(err)
			}
			if err := h.checkBlocks(c.promptTokens, c.perBlock); (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestZeroHandoff(t *testing.T) {
	var h nixlParams
	if h.raw != nil || h.checkBlocks(100, 32) != nil {
		t.Errorf("got %+v", h)
	}
}

// FuzzHandoff: what is accepted is an offer in the opinion of encoding/json too.
func FuzzHandoff(f *testing.F) {
	for _, raw := range recorded(f, "good") {
		f.Add(raw)
	}
	for _, raw := range recorded(f, "bad") {
		f.Add(raw)
	}
	f.Add([]byte(offer("remote_block_ids", `[[],[1, 2],[]]`)))
	f.Add([]byte(offer("added", `{"a":[1e400,{}]}`)))
	f.Add([]byte(offer("remote_prefill_CAChed_tokens", "0")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := parseHandoff(raw)
		if err != nil {
			if h.raw != nil {
				t.Fatalf("%q: %q beside %v", raw, h.raw, err)
			}
			return
		}
		again, err := parseHandoff(h.raw)
		if err != nil || string(again.raw) != string(h.raw) {
			t.Fatalf("%q is kept as %q, which gives %v", raw, h.raw, err)
		}
		// encoding/json is stricter on what no one looks at, and compares names without case.
		if json.Valid(h.raw) && !folded(h.raw) {
			check(t, h.raw, h)
		}
	})
}

// folded reports whether encoding/json takes a member for one of another case: it matches the fields of a struct so.
func folded(raw []byte) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return true
	}
	fields := reflect.TypeFor[plainHandoff]()
	for name := range members {
		for i := range fields.NumField() {
			if field := fields.Field(i).Tag.Get("json"); name != field && strings.EqualFold(name, field) {
				return true
			}
		}
	}
	return false
}

// damage changes some bytes of a text that is mostly right: closer to real damage than what a fuzzer begins with.
func damage(r *rand.Rand, good string) string {
	b := []byte(good)
	for range 1 + r.IntN(3) {
		b[r.IntN(len(b))] = `{}[]",:0-1 nt\e`[r.IntN(15)]
	}
	return string(b)
}

func TestParseHandoffUnderDamage(t *testing.T) {
	r := seeded()
	accepted := 0
	for range 5 * rounds {
		raw := []byte(damage(r, offer("", "")))
		if h, err := parseHandoff(raw); err == nil && json.Valid(raw) && !folded(raw) {
			accepted++
			check(t, raw, h)
		}
	}
	if accepted == 0 {
		t.Error("nothing was accepted, so nothing was checked")
	}
}

func BenchmarkHandoff(b *testing.B) {
	for _, blocks := range []int{4, 8192} { // 128 and 262144 tokens
		ids := make([]string, blocks)
		for i := range ids {
			ids[i] = strconv.Itoa(i * 7)
		}
		raw := []byte(offer("remote_block_ids", "[["+strings.Join(ids, ",")+"]]"))
		b.Run(strconv.Itoa(blocks)+"-blocks", func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if h, err := parseHandoff(raw); err != nil || h.blocks != blocks {
					b.Fatal(h, err)
				}
			}
		})
	}
}

const rounds = 2000

// seeded returns a source that gives the same values in every run, so that a failure can be repeated.
func seeded() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
