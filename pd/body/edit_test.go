package body

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// bodyOf returns in as a body of segments.
func bodyOf(chunks [][]byte) *Body {
	b := new(Body)
	for _, c := range chunks {
		b.Append(c)
	}
	return b
}

func TestBodyBytes(t *testing.T) {
	const in = "0123456789"
	for size := 1; size <= len(in); size++ {
		b := bodyOf(append(inChunks(in, size), nil))
		if b.Len() != int64(len(in)) || len(b.Segments()) != (len(in)+size-1)/size {
			t.Fatalf("size %d: %d bytes in %d segments", size, b.Len(), len(b.Segments()))
		}
		for from := range len(in) + 1 {
			for to := from; to <= len(in); to++ {
				if got := string(b.Bytes(Span{int64(from), int64(to)})); got != in[from:to] {
					t.Errorf("size %d: [%d,%d) is %q", size, from, to, got)
				}
			}
		}
		if got := string(b.Bytes(Span{-5, 50})); got != in {
			t.Errorf("size %d: beyond the ends: %q", size, got)
		}
	}
}

func TestBodyBytesSharesOneSegment(t *testing.T) {
	seg := []byte("hello")
	b := bodyOf([][]byte{[]byte("12"), seg})
	got := b.Bytes(Span{3, 5})
	if &got[0] != &seg[1] {
		t.Error("copied")
	}
	if got = append(got, 'X'); seg[3] != 'l' {
		t.Errorf("appending to %q wrote into the segment", got)
	}
}

func TestBodyReset(t *testing.T) {
	b := bodyOf(inChunks("hello", 2))
	b.Reset()
	b.Append([]byte("new"))
	if got := string(b.Bytes(Span{0, 9})); got != "new" || b.Len() != 3 {
		t.Errorf("got %q", got)
	}
}

func TestText(t *testing.T) {
	for _, in := range []string{
		`""`, `"a"`, `"a\n\"\\\/\b\f\r\t"`, `"\u0041\u00e9"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx"`, `"\ude00\ud83d"`, "\"\xff\"",
		`"é😀"`, `"`, ``, `x`, `"a`, `a"`, `"\"`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"\n\"", `"a"b"`, `"\\"`, `"\\\"`, `1`,
	} {
		var want string
		wantErr := json.Unmarshal([]byte(in), &want)
		got, err := Text([]byte(in))
		if (err != nil) != (wantErr != nil) || err == nil && got != want {
			t.Errorf("%s: got %q, %v; want %q, %v", in, got, err, want, wantErr)
		}
	}
}

// editTable is that of the edit and blank tests.
var editTable = NewTable(Want{Path: "a"}, Want{Path: "b"}, Want{Path: "b.c"}, Want{Path: "b.d"}, Want{Path: "list.*"}, Want{Path: "list.*.x"}, Want{Path: "c"})

// edited applies edit to in and returns the edited body.
func edited(t *testing.T, chunks [][]byte, edit func(*Scanner, *Edit)) (string, error) {
	t.Helper()
	s, _ := scanChunks(editTable, Limits{Depth: 20_000}, chunks)
	b := bodyOf(chunks)
	var e Edit
	e.Reset(b, s.Root())
	edit(s, &e)
	segs, err := e.Segments(nil)
	out := bytes.Join(segs, nil)
	if int64(len(out)) != e.Len() {
		t.Errorf("Len is %d, the segments have %d", e.Len(), len(out))
	}
	return string(out), err
}

func TestEdit(t *testing.T) {
	// An op is - to remove, = to replace by 0, + to add "n":0; then the number
	// of the member found, or r for the root.
	cases := []struct{ name, in, ops, out string }{
		{"nothing", `{"a" : 1}`, "", `{"a" : 1}`},
		{"replace", `{"a" : 12 , "x":1e400}`, "=0", `{"a" : 0 , "x":1e400}`},
		{"remove the only one", `{ "a":1 }`, "-0", `{  }`},
		{"remove the first", `{"a":1, "x":2}`, "-0", `{ "x":2}`},
		{"remove the last", `{"x":2 , "a":1 }`, "-0", `{"x":2  }`},
		{"remove from the middle", `{"x":2, "a":1 ,"y":3}`, "-0", `{"x":2 ,"y":3}`},
		{"remove the first two", `{"a":1, "b":2, "x":3}`, "-0-1", `{  "x":3}`},
		{"remove the first two, the other order", `{"a":1, "b":2, "x":3}`, "-1-0", `{  "x":3}`},
		{"remove all", `{"a":1, "b":2 , "c":3}`, "-2-0-1", `{  }`},
		{"remove around one", `{"a":1,"x":2,"b":3}`, "-0-1", `{"x":2}`},
		{"remove the last two", `{"x":0,"a":1,"b":3}`, "-0-1", `{"x":0}`},
		{"remove every other", `{"a":1,"x":0,"b":2,"y":0,"c":3}`, "-0-1-2", `{"x":0,"y":0}`},
		{"add", `{"x":0 }`, "+r", `{"x":0 ,"n":0}`},
		{"add to an empty object", `{ }`, "+r", `{ "n":0}`},
		{"add twice", `{}`, "+r+r", `{"n":0,"n":0}`},
		{"add to an object that becomes empty", `{"a":1}`, "-0+r", `{"n":0}`},
		{"add, then it becomes empty", `{"a":1,"b":2}`, "+r-0-1+r", `{"n":0,"n":0}`},
		{"add to a member", `{"b":{"c":1},"x":0}`, "+0", `{"b":{"c":1,"n":0},"x":0}`},
		{"add to a member that becomes empty", `{"b":{"c":1,"d":2},"x":0}`, "+0-1-2", `{"b":{"n":0},"x":0}`},
		{"outer removal wins", `{"x":0,"b":{"c":1,"d":2}}`, "-1=2+0-0", `{"x":0}`},
		{"outer replacement wins", `{"b":{"c":1},"x":0}`, "-1+0=0", `{"b":0,"x":0}`},
		{"a removed object does not count below", `{"b":{"c":1}}`, "-1-0+r", `{"n":0}`},
		{"elements", `{"list":[1, 2, 3]}`, "-0-1", `{"list":[  3]}`},
		{"all elements", `{"list":[1,2]}`, "-0-1", `{"list":[]}`},
		{"in an element", `{"list":[{"x":1,"y":2},{"y":2,"x":1}]}`, "-1-3", `{"list":[{"y":2},{"y":2}]}`},
		{"both of two with one name", `{"a":1,"x":0,"a":2}`, "-0-1", `{"x":0}`},
		{"not the other of one name", `{"a":1,"x":0,"a":2}`, "-1", `{"a":1,"x":0}`},
		{"escapes and spaces stay", "{ \"x\" :\t\"\\u00e9\\/\" ,\"a\":1,\"y\":12345678901234567890}", "-0", "{ \"x\" :\t\"\\u00e9\\/\" ,\"y\":12345678901234567890}"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{31, 1, 2, 5} {
				out, err := edited(t, inChunks(c.in, size), func(s *Scanner, e *Edit) {
					for ops := c.ops; len(ops) > 0; ops = ops[2:] {
						m := s.Root()
						if ops[1] != 'r' {
							m = s.Members()[ops[1]-'0']
						}
						switch ops[0] {
						case '-':
							e.Remove(m)
						case '=':
							e.Replace(m, []byte("0"))
						case '+':
							e.Add(m, "n", []byte("0"))
						}
					}
				})
				if err != nil || out != c.out {
					t.Errorf("segments of %d bytes: got %s, %v\nwant %s", size, out, err, c.out)
				}
			}
		})
	}
}

func TestEditErrors(t *testing.T) {
	cases := []struct {
		name, in string
		edit     func(*Scanner, *Edit)
		err      string
	}{
		{"replace and remove", `{"a":1}`, func(s *Scanner, e *Edit) { e.Replace(s.Members()[0], nil); e.Remove(s.Members()[0]) },
			"editing JSON: the member at byte 5 is edited twice"},
		{"replace twice", `{"a":1}`, func(s *Scanner, e *Edit) { e.Replace(s.Members()[0], nil); e.Replace(s.Members()[0], nil) },
			"editing JSON: the member at byte 5 is edited twice"},
		{"add to a number", `{"a":1}`, func(s *Scanner, e *Edit) { e.Add(s.Members()[0], "n", nil) },
			`editing JSON: adding ,"n": to the value at byte 5, which is no object`},
		{"a member from nowhere", `{"a":1}`, func(s *Scanner, e *Edit) { e.Remove(Member{}) },
			"editing JSON: the member at byte 0 is not of this body"},
		{"remove the root", `{"a":1}`, func(s *Scanner, e *Edit) { e.Remove(s.Root()) },
			"editing JSON: removing the top-level value"},
		{"half a body", `{"a":1`, func(s *Scanner, e *Edit) {}, "editing JSON: the body is not complete"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			out, err := edited(t, inChunks(c.in, 31), c.edit)
			if err == nil || err.Error() != c.err || out != "" {
				t.Errorf("got %q, %v; want %s", out, err, c.err)
			}
		})
	}
}

func TestAddWritesTheNameAsJSON(t *testing.T) {
	name := "q\"b\\s/\n\x01é😀\xff"
	out, err := edited(t, inChunks(`{}`, 2), func(s *Scanner, e *Edit) { e.Add(s.Root(), name, []byte("1")) })
	var got map[string]int
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || got[strings.ToValidUTF8(name, "\uFFFD")] != 1 {
		t.Errorf("got %s, %v", out, err)
	}
}

func TestEditSharesTheOriginal(t *testing.T) {
	in := []byte(`{"a":1,"x":"long text"}`)
	s, _ := scanChunks(editTable, Limits{}, [][]byte{in})
	var e Edit
	e.Reset(bodyOf([][]byte{in}), s.Root())
	value := []byte("2")
	e.Replace(s.Members()[0], value)
	segs, err := e.Segments(nil)
	if err != nil || len(segs) != 3 || &segs[0][0] != &in[0] || &segs[1][0] != &value[0] || &segs[2][0] != &in[6] {
		t.Errorf("got %q, %v", segs, err)
	}
	first := string(bytes.Join(segs, nil))
	e.Reset(bodyOf([][]byte{in}), s.Root())
	e.Add(s.Root(), "other", []byte("3"))
	if _, err := e.Segments(nil); err != nil || string(bytes.Join(segs, nil)) != first {
		t.Errorf("the next edit changed what the last returned: %s, %v", bytes.Join(segs, nil), err)
	}
}

// editOps says what FuzzEdit does to each want of editTable, two bits each.
type editOps uint16

const (
	opKeep = iota
	opRemove
	opReplace
	opAdd // to an object
)

func (ops editOps) of(path string) int {
	paths := []string{`"a"`, `"b"`, `"b""c"`, `"b""d"`, `"list"*`, `"list"*"x"`, `"c"`}
	if k := slices.Index(paths, path); k >= 0 {
		return int(ops >> (2 * k) & 3)
	}
	return opKeep
}

// checkEdit edits in, in segments, and compares with the reference.
func checkEdit(t *testing.T, in, cuts []byte, ops editOps) {
	t.Helper()
	out, err := edited(t, split(in, cuts), func(s *Scanner, e *Edit) {
		members := s.Members()
		for i := range members {
			m := members[i]
			if ops&0x8000 != 0 { // any order will do
				m = members[len(members)-1-i]
			}
			switch int(ops >> (2 * m.Want) & 3) {
			case opRemove:
				e.Remove(m)
			case opReplace:
				e.Replace(m, []byte("[ ]"))
			case opAdd:
				if m.Kind == Object {
					e.Add(m, "n", []byte("0"))
				}
			}
		}
		if ops&0x4000 != 0 && s.Root().Kind == Object {
			e.Add(s.Root(), "n", []byte("0"))
		}
	})
	if !json.Valid(in) {
		return
	}
	if err != nil || !json.Valid([]byte(out)) {
		t.Fatalf("%q edited by %x is %q, %v", in, ops, out, err)
	}
	want := canonical(t, in, "", ops.of)
	if ops&0x4000 != 0 && want[0] == '{' {
		want = strings.TrimSuffix(want, "}") + `"n":0,}`
	}
	if got := canonical(t, []byte(out), "", keepAll); got != want {
		t.Fatalf("%q edited by %x:\n got %s\nwant %s", in, ops, got, want)
	}
}

// FuzzEdit: an edited body is JSON if the body was, has what was edited in and
// not what was edited out, and all else as it was.
func FuzzEdit(f *testing.F) {
	for i, in := range bodies() {
		f.Add([]byte(in), []byte{byte(i), 4}, uint16(i*777))
	}
	f.Fuzz(func(t *testing.T, in, cuts []byte, ops uint16) { checkEdit(t, in, cuts, editOps(ops)) })
}

func TestEscape(t *testing.T) {
	for raw, want := range map[string]struct {
		r       rune
		n, open int // length if nothing follows, and if something may
	}{
		`\n`:           {'\n', 2, 2},
		`\"x`:          {'"', 2, 2},
		`\x`:           {0, -1, -1},
		`\`:            {0, -1, 0},
		`\u00e`:        {0, -1, 0},
		`\u00g`:        {0, -1, -1},
		`\u00e9\n`:     {'é', 6, 6},
		`\ud83d\ude00`: {'😀', 12, 12},
		`\ud83d`:       {utf8.RuneError, 6, 0},
		`\ud83d\`:      {utf8.RuneError, 6, 0},
		`\ud83d\ude0`:  {utf8.RuneError, 6, 0},
		`\ud83d\ude0g`: {utf8.RuneError, 6, 6},
		`\ud83d\n`:     {utf8.RuneError, 6, 6},
		`\ud83dx`:      {utf8.RuneError, 6, 6},
		`\ude00\ud83d`: {utf8.RuneError, 6, 6},
	} {
		if r, n := Escape([]byte(raw), true); r != want.r || n != want.n {
			t.Errorf("%s: %q, %d, want %q, %d", raw, r, n, want.r, want.n)
		}
		if _, n := Escape([]byte(raw), false); n != want.open {
			t.Errorf("%s, and more to come: %d, want %d", raw, n, want.open)
		}
	}
}
