package body

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// result is all that a scan shows to the outside.
type result struct {
	members []Member
	root    Member
	sunk    map[int]string // per want: pieces joined, a | after each value
	offset  int64
	err     string
}

func (r result) String() string {
	return fmt.Sprintf("members %+v\nroot %+v\nsunk %v\noffset %d, error %q", r.members, r.root, r.sunk, r.offset, r.err)
}

// scanChunks scans chunks with a fresh scanner.
func scanChunks(table *Table, l Limits, chunks [][]byte) (*Scanner, result) {
	r := result{sunk: map[int]string{}}
	sink := func(want int, piece []byte, last bool) {
		r.sunk[want] += string(piece)
		if last {
			r.sunk[want] += "|"
		}
	}
	s := new(Scanner)
	s.Reset(table, l, sink)
	var err error
	for _, c := range chunks {
		var n int
		if n, err = s.Write(c); err != nil {
			break
		} else if n != len(c) {
			panic("short write without error")
		}
	}
	if err == nil {
		err = s.Close()
	}
	r.members, r.root, r.offset, r.err = s.Members(), s.Root(), s.Offset(), fmt.Sprint(err)
	return s, r
}

// mustScan scans a whole body that is right.
func mustScan(t *testing.T, table *Table, in string) *Scanner {
	t.Helper()
	s, r := scanChunks(table, Limits{Depth: 20_000}, [][]byte{[]byte(in)})
	if r.err != "<nil>" {
		t.Fatalf("scanning %s: %s", in, r.err)
	}
	return s
}

// split cuts in into chunks whose sizes are those in cuts, repeated.
func split(in, cuts []byte) [][]byte {
	var chunks [][]byte
	for i := 0; len(in) > 0; i++ {
		n := len(in)
		if len(cuts) > 0 {
			n = min(int(cuts[i%len(cuts)])%31+1, len(in))
		}
		chunks = append(chunks, in[:n:n])
		in = in[n:]
	}
	return chunks
}

// inChunks returns in cut at every n bytes.
func inChunks(in string, n int) [][]byte { return split([]byte(in), []byte{byte(n - 1)}) }

// oneMember is a member of an object as encoding/json sees it.
type oneMember struct {
	key string
	raw string
}

// ordered returns the members of a JSON object in order, with repetitions.
func ordered(t *testing.T, in []byte) []oneMember {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(in))
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		t.Fatalf("%q is no object: %v %v", in, tok, err)
	}
	var list []oneMember
	for d.More() {
		key, err := d.Token()
		if err != nil {
			t.Fatalf("%q: %v", in, err)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			t.Fatalf("%q: %v", in, err)
		}
		list = append(list, oneMember{key.(string), string(raw)})
	}
	return list
}

// canonical returns the reference for edits: it writes a JSON value anew, scalars
// byte for byte, each member and element with a comma, and with what op says
// for each path: names quoted, elements a *, nothing between.
func canonical(t *testing.T, in []byte, path string, op func(path string) int) string {
	t.Helper()
	in = bytes.Trim(in, " \t\r\n")
	var b strings.Builder
	put := func(path, key string, raw []byte) {
		switch o := op(path); o {
		case opRemove:
		case opReplace:
			b.WriteString(key + "[],")
		default:
			text := canonical(t, raw, path, op)
			if o == opAdd && text[0] == '{' {
				text = strings.TrimSuffix(text, "}") + `"n":0,}`
			}
			b.WriteString(key + text + ",")
		}
	}
	switch in[0] {
	case '{':
		for _, m := range ordered(t, in) {
			name := strconv.Quote(m.key)
			put(path+name, name+":", []byte(m.raw))
		}
		return "{" + b.String() + "}"
	case '[':
		var elements []json.RawMessage
		if err := json.Unmarshal(in, &elements); err != nil {
			t.Fatal(err)
		}
		for _, e := range elements {
			put(path+"*", "", e)
		}
		return "[" + b.String() + "]"
	}
	return string(in)
}

func keepAll(string) int { return opKeep }

// writer makes random bodies of the names that the tests want.
type writer struct {
	*rand.Rand
	b []byte
}

func (w *writer) any(choices ...string) { w.b = append(w.b, choices[w.IntN(len(choices))]...) }

func (w *writer) space() { w.any("", "", "", "", " ", "\n", " \t", strings.Repeat(" ", 70)) }

func (w *writer) value(depth int) {
	w.space()
	switch n := w.IntN(10); {
	case n < 3 && depth < 5:
		w.list('{', '}', func() {
			w.any(`"a"`, `"b"`, `"c"`, `"d"`, `"x"`, `"kv"`, `"list"`, `"list"`, `"keep"`, `"\u006b\u0076"`, `"kvk"`, `"\\\""`, `""`,
				`"a😀"`, `"a\ud83d\ude00"`, "\"a\xff\"", `"model"`, `"y"`, `"long long long long long long long long long name"`)
			w.space()
			w.b = append(w.b, ':')
			w.value(depth + 1)
		})
	case n < 5 && depth < 5:
		w.list('[', ']', func() { w.value(depth + 1) })
	case n < 6:
		w.list('[', ']', func() { w.any("1", " 23", "456", "0", "7890123", " 12345678901") })
	default:
		w.any(`"kv"`, `"\\"`, `"\""`, `"text, [and] {brackets}"`, `""`, "0", "-1.5e3", "12345678901234567890", "true", "false", "null", "{}", "[]")
	}
	w.space()
}

func (w *writer) list(open, end byte, one func()) {
	w.b = append(w.b, open)
	w.space()
	for i := range w.IntN(6) {
		if i > 0 {
			w.b = append(w.b, ',')
			w.space()
		}
		one()
	}
	w.b = append(w.b, end)
}

// TestGenerated holds bodies of much more structure than fuzzing finds, and
// broken ones made of them, to what the fuzz targets check.
func TestGenerated(t *testing.T) {
	w := &writer{Rand: rand.New(rand.NewPCG(1, 2))}
	for range 1000 {
		w.b = nil
		w.space()
		w.list('{', '}', func() {
			w.any(`"a"`, `"b"`, `"c"`, `"kv"`, `"list"`, `"keep"`, `"x"`, `"kv\""`, `"\u0061"`)
			w.b = append(w.b, ':')
			w.value(0)
		})
		cuts := []byte{byte(w.Uint32()), byte(w.Uint32()), byte(w.Uint32())}
		if !json.Valid(w.b) {
			t.Fatalf("%q is no JSON", w.b)
		}
		if w.IntN(3) == 0 {
			at := w.IntN(len(w.b))
			w.b = append(w.b[:at], w.b[min(at+w.IntN(3), len(w.b)):]...)
		}
		checkSplit(t, w.b, cuts)
		checkScan(t, w.b)
		checkEdit(t, w.b, cuts, editOps(w.Uint32()))
		checkBlank(t, w.b, cuts, 1+w.IntN(300))
	}
}

// chunkReader is a reader that returns one chunk after the other.
type chunkReader struct{ chunks [][]byte }

func (r *chunkReader) Read(p []byte) (int, error) {
	if len(r.chunks) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.chunks[0])
	if r.chunks[0] = r.chunks[0][n:]; len(r.chunks[0]) == 0 {
		r.chunks = r.chunks[1:]
	}
	return n, nil
}

// bodies returns a corpus of JSON, right and wrong, that all fuzz targets begin with.
func bodies() []string {
	list := []string{
		`{}`, `[]`, `""`, `0`, `-0`, `-1.5e+10`, `1E5`, `true`, `false`, `null`, ` { } `, "\t[\r\n]",
		`{"a":1}`, `{"a":1,"b":2}`, `{"a":{"b":{"c":[1,2,{"d":"e"}]}}}`, `{"a":1,"a":2}`, `{"a":{"b":1},"a":{"b":2}}`,
		`{"a":{"b":1},"a":{}}`, `{"\u0061":1}`, `{"\u0061\ud83d\ude00":1}`, `{"a` + "\xff" + `":1}`, `{"a":"\\"}`, `{"a":"\\\""}`,
		`{"a":"\\\\\"","b":"\\\\"}`, `{"list":[{"x":1},{"x":2},3,{"y":0}]}`, `{"list":[]}`, `{"list":{"x":1}}`,
		`{"a":[1,2,3,40,500,6000,70000,800000,9000000,10000000,100000000,0,0,0,12]}`,
		`{"a":[1, 2, 3, 40, 500, 6000, 70000, 800000, 9000000, 10000000, 0, 0.5, 12 ,13 , 14]}`,
		`{"z":[1,22,333,4444,55555,666666,7777777,88888888],"a":0}`, `{"z":[[1,2,3],[4,5,6,7,8,9,10,11]],"a":0}`,
		`[12345,67890,12345,067890]`, `[12345,67890,,12345]`, `[1234567,1234567,  1234567]`, `[11111111,22222222,33333333,]`,
		`{"z":{"a":1,"b":[true,false,null,"x",-1,0.1]},"a":{}}`, `{ "a" : 1 , "b" : 2 , "c" : 3 }`,
		"{\"a\":1,\n\n\n\n\"b\":2}", `{"b":1,"a":2,"c":3}`, `{"b":1,"c":3,"a":2}`, `{"a":1,"b":{"a":2},"a":3}`,
		`{"a"  :  1}`, `{"b":{"c":1,"d":2}}`, `{"b":{"c":1}}`, `{"b":{"d":1,"c":2}}`, `{"b":{"d":1,"c":2,"e":3},"x":"a"}`,
		`{"abcdefghijklmnopqrstuvwxyz":"0123456789","a":"` + strings.Repeat(`x\n`, 40) + `"}`,
		`{"model":"m","messages":[{"role":"user","content":"hi \"you\""},{"role":"user","content":[{"type":"text","text":"x"}]}]}`,
		"\xEF\xBB\xBF{\"a\":1}", `{"a":NaN,"b":Infinity,"c":-Infinity}`, `[NaN]`, `-Infinity`,
		// Wrong ones.
		``, ` `, `{`, `[`, `"`, `{"a`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `{"a" 1}`, `{"a":1 "b":2}`,
		`{"a":1]`, `[1}`, `]`, `}`, `:`, `,`, `01`, `-`, `1.`, `1.e5`, `1e`, `1e+`, `+1`, `.5`, `0x1`, `--1`, `tru`, `trux`, `nul`, `nope`,
		`{a:1}`, `{'a':1}`, `{1:2}`, `1 2`, `{} {}`, `[1 2]`, `[1,2`, `{"a":tru}`, `{"a":-Infinite}`, "\xEF\xBB{}", "{}\xEF\xBB\xBF",
		"\x00{\x00}", "{\x00}\x00", "\xFF\xFE{\x00", "\xFE\xFF\x00{", "{\"a\":\x00}", "{\x01}", "[\"\x00\"]", "[[\x00]]",
		`{"z":{"a":1,}}`, `{"z":[1,2,}`, `{"z":{"a"}}`, `{"z":{"a":}}`, `{"z":[tru]}`, `{"z":[01]}`, `{"z":[1 2]}`, `{"z":{1}}`, `{"z":[}]}`,
		`{"z":[[1}]]}`, `{"z":[{"a":1]]}`, `{"z":[[1.,2]]}`, `{"z":[[-,2]]}`, `{"z":[[1e]]}`, `{"z":[[1,2` + "\xb0" + `]]}`,
		`{"b":{"c":1},"b":2,"kv_params":1,` + "x", `{"kv":1,"a"`,
	}
	return append(list, strings.Repeat("[", 600)+strings.Repeat("]", 600))
}
