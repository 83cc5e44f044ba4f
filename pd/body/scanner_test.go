package body

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// fuzzTable reaches every kind of node: names, escapes, elements, sinks, Once.
func fuzzTable() *Table {
	return NewTable(
		Want{Path: "a", Sink: true},
		Want{Path: "b"},
		Want{Path: "b.c", Sink: true},
		Want{Path: "list.*"},
		Want{Path: "list.*.x", Sink: true},
		Want{Path: "list.*.y.c", Once: true},
		Want{Path: "only.one", Once: true},
		Want{Path: "model", Once: true},
		Want{Path: "messages"},
		Want{Path: "messages.*.content", Sink: true},
		Want{Path: "a😀"},
		Want{Path: "a\uFFFD"},
		Want{Path: "*.a"},
	)
}

func TestMembers(t *testing.T) {
	none := Span{-1, -1}
	cases := []struct {
		name string
		in   string
		want []Want
		out  []Member
	}{
		{"first and only", `{"a":1}`, []Want{{Path: "a"}},
			[]Member{{Kind: Number, Key: Span{1, 4}, Value: Span{5, 6}, Prev: -1, Next: -1}}},
		{"between others", `{"x":0, "a" : "b\n" ,"y":0}`, []Want{{Path: "a"}},
			[]Member{{Kind: String, Key: Span{8, 11}, Value: Span{14, 19}, Index: 1, Prev: 6, Next: 20, Escaped: true}}},
		{"object with its count", ` {"a":{"x":[1,2],"y":{"z":3}}}`, []Want{{Path: "a"}},
			[]Member{{Kind: Object, Key: Span{2, 5}, Value: Span{6, 29}, Prev: -1, Next: -1, Object: 1, Count: 2}}},
		{"array with its count and first kind", `{"a":["x",[1],3]}`, []Want{{Path: "a"}},
			[]Member{{Kind: Array, Key: Span{1, 4}, Value: Span{5, 16}, Prev: -1, Next: -1, Count: 3, First: String}}},
		{"empty array", `{"a":[ ]}`, []Want{{Path: "a"}},
			[]Member{{Kind: Array, Key: Span{1, 4}, Value: Span{5, 8}, Prev: -1, Next: -1}}},
		{"nested, the parent first", `{"b":{"c":null}}`, []Want{{Path: "b.c"}, {Path: "b"}},
			[]Member{{Want: 1, Kind: Object, Key: Span{1, 4}, Value: Span{5, 15}, Prev: -1, Next: -1, Count: 1},
				{Kind: Null, Key: Span{6, 9}, Value: Span{10, 14}, Prev: -1, Next: -1, Object: 5}}},
		{"in the elements of an array", `{"m":[{"c":true},0,{"c":false}]}`, []Want{{Path: "m.*.c"}},
			[]Member{{Kind: True, Key: Span{7, 10}, Value: Span{11, 15}, Prev: -1, Next: -1, Object: 6},
				{Kind: False, Key: Span{20, 23}, Value: Span{24, 29}, Prev: -1, Next: -1, Object: 19}}},
		{"elements themselves", `{"m":[1, "x"]}`, []Want{{Path: "m.*"}},
			[]Member{{Kind: Number, Key: Span{6, 6}, Value: Span{6, 7}, Prev: -1, Next: 7, Object: 5},
				{Kind: String, Key: Span{9, 9}, Value: Span{9, 12}, Index: 1, Prev: 7, Next: -1, Object: 5}}},
		{"an element path does not match an object", `{"m":{"*":1}}`, []Want{{Path: "m.*"}}, nil},
		{"a name does not match an array", `{"m":[{"c":1}]}`, []Want{{Path: "m.c"}}, nil},
		{"case matters", `{"A":1}`, []Want{{Path: "a"}}, nil},
		{"escaped key", `{"\u0061\u002d\u00DF":1}`, []Want{{Path: "a-ß"}},
			[]Member{{Kind: Number, Key: Span{1, 21}, Value: Span{22, 23}, Prev: -1, Next: -1}}},
		{"surrogate pair in a key", `{"\ud83d\ude00":1}`, []Want{{Path: "😀"}},
			[]Member{{Kind: Number, Key: Span{1, 15}, Value: Span{16, 17}, Prev: -1, Next: -1}}},
		{"half a surrogate pair is U+FFFD", `{"\ud83d\u0041":1}`, []Want{{Path: "\uFFFDA"}},
			[]Member{{Kind: Number, Key: Span{1, 15}, Value: Span{16, 17}, Prev: -1, Next: -1}}},
		{"invalid UTF-8 in a key is U+FFFD", "{\"a\xff\":1}", []Want{{Path: "a\uFFFD"}},
			[]Member{{Kind: Number, Key: Span{1, 5}, Value: Span{6, 7}, Prev: -1, Next: -1}}},
		{"a key with an unknown escape is no name", `{"\a":1}`, []Want{{Path: "a"}}, nil},
		{"a number that ends the body's last token", `{"a":-0.5e-7}`, []Want{{Path: "a"}},
			[]Member{{Kind: Number, Key: Span{1, 4}, Value: Span{5, 12}, Prev: -1, Next: -1}}},
		{"NaN and infinities are numbers", `{"a":NaN,"b":-Infinity}`, []Want{{Path: "a"}, {Path: "b"}},
			[]Member{{Kind: Number, Key: Span{1, 4}, Value: Span{5, 8}, Prev: -1, Next: 8},
				{Want: 1, Kind: Number, Key: Span{9, 12}, Value: Span{13, 22}, Index: 1, Prev: 8, Next: -1}}},
		{"cut off in the value", `{"a":"b`, []Want{{Path: "a"}},
			[]Member{{Kind: String, Key: Span{1, 4}, Value: Span{5, -1}, Prev: -1, Next: -1}}},
		{"cut off after the key", `{"a"`, []Want{{Path: "a"}},
			[]Member{{Key: Span{1, 4}, Value: none, Prev: -1, Next: -1}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			table := NewTable(c.want...)
			for _, size := range []int{31, 1, 2, 3} {
				_, r := scanChunks(table, Limits{}, inChunks(c.in, size))
				if !slices.Equal(r.members, c.out) {
					t.Errorf("chunks of %d bytes:\n got %+v\nwant %+v", size, r.members, c.out)
				}
			}
		})
	}
}

func TestRoot(t *testing.T) {
	cases := []struct {
		in  string
		out Member
	}{
		{`{"a":1,"b":[1,2]}`, Member{Kind: Object, Value: Span{0, 17}, Count: 2}},
		{"\xEF\xBB\xBF [1,2,{}] ", Member{Kind: Array, Value: Span{4, 12}, Count: 3, First: Number}},
		{` "x" `, Member{Kind: String, Value: Span{1, 4}}},
		{`12`, Member{Kind: Number, Value: Span{0, 2}}},
		{`[10,20,30,40,50,60,70,80,90,100,110,120]`, Member{Kind: Array, Value: Span{0, 40}, Count: 12, First: Number}},
	}
	for _, c := range cases {
		c.out.Want, c.out.Key, c.out.Prev, c.out.Next, c.out.Object = -1, Span{-1, -1}, -1, -1, -1
		if got := mustScan(t, fuzzTable(), c.in).Root(); got != c.out {
			t.Errorf("%s:\n got %+v\nwant %+v", c.in, got, c.out)
		}
	}
}

// grammar is in with its strings emptied, since what is in them is not judged,
// and in JSON's words what is accepted beyond JSON.
func grammar(in []byte) []byte {
	in = bytes.TrimPrefix(in, []byte(mark))
	var out []byte
	for i := 0; i < len(in); i++ {
		out = append(out, in[i])
		if in[i] != '"' {
			continue
		}
		for i++; i < len(in) && in[i] != '"'; i++ {
			if in[i] == '\\' {
				i++
			}
		}
		if i < len(in) {
			out = append(out, '"')
		}
	}
	return []byte(strings.NewReplacer("-Infinity", "0", "Infinity", "0", "NaN", "0").Replace(string(out)))
}

func TestGrammar(t *testing.T) {
	for _, in := range bodies() {
		_, r := scanChunks(fuzzTable(), Limits{Depth: 1000}, [][]byte{[]byte(in)})
		want := json.Valid(grammar([]byte(in))) && !strings.Contains(in, "\x00")
		if accepted := r.err == "<nil>"; accepted != want {
			t.Errorf("%q: accepted %v, want %v (%s)", in, accepted, want, r.err)
		}
	}
}

func TestSkippedStringsAreNotJudged(t *testing.T) {
	for _, in := range []string{`{"x":"\q"}`, "{\"x\":\"\n\"}", "{\"x\xff\":\"\xff\"}", `{"x":"\u12"}`} {
		mustScan(t, fuzzTable(), in)
	}
}

func TestErrors(t *testing.T) {
	cases := []struct {
		name   string
		in     string
		limits Limits
		err    error
		offset int64
	}{
		{"depth", `[[[[]]]]`, Limits{Depth: 3}, ErrTooDeep, 3},
		{"depth in what is skipped", `{"x":{"y":{"z":{}}}}`, Limits{Depth: 3}, ErrTooDeep, 15},
		{"depth by default", strings.Repeat("[", 600), Limits{}, ErrTooDeep, DefaultDepth},
		{"members by default", `{"list":[` + strings.Repeat("0,", 2000), Limits{}, ErrTooMany, 9 + 2*DefaultMembers},
		{"size", `{"x":"long enough"}`, Limits{Size: 10}, ErrTooLarge, 10},
		{"syntax before size", `{"x":,"long enough"}`, Limits{Size: 10}, &SyntaxError{5, "no value"}, 5},
		{"members", `{"b":1,"b":2,"b":3}`, Limits{Members: 2}, ErrTooMany, 16},
		{"elements", `{"list":[1,2,3]}`, Limits{Members: 2}, ErrTooMany, 13},
		{"UTF-16", "{\x00}\x00", Limits{}, ErrEncoding, 1},
		{"UTF-16 with a mark", "\xFF\xFE{\x00}\x00", Limits{}, ErrEncoding, 0},
		{"UTF-32", "\x00\x00\x00{", Limits{}, ErrEncoding, 0},
		{"wrong encoding before wrong syntax", "{\x00x", Limits{}, ErrEncoding, 1},
		{"wrong syntax before wrong encoding", "{x\x00", Limits{}, &SyntaxError{1, "no key"}, 1},
		{"twice", `{"model":1,"model":2}`, Limits{}, &DuplicateError{"model", 11}, 18},
		{"twice by an escape", `{"model":1,"mod\u0065l":2}`, Limits{}, &DuplicateError{"model", 11}, 23},
		{"twice by the parent", `{"only":{"one":1},"only":{"one":1}}`, Limits{}, &DuplicateError{"only.one", 26}, 31},
		{"twice before wrong syntax", `{"model":1,"model"]`, Limits{}, &DuplicateError{"model", 11}, 18},
		{"twice in one element", `{"list":[{"y":{"c":1,"c":2}}]}`, Limits{}, &DuplicateError{"list.*.y.c", 21}, 24},
		{"twice by a parent in one element", `{"list":[{"y":{"c":1},"y":{"c":2}}]}`, Limits{}, &DuplicateError{"list.*.y.c", 27}, 30},
		{"end too soon", `{"a":"b"`, Limits{}, &SyntaxError{8, "unexpected end"}, 8},
		{"two values", `{} {}`, Limits{}, &SyntaxError{3, "something after the value"}, 3},
		{"missing comma", `{"a":1 "b":2}`, Limits{}, &SyntaxError{7, "no comma after a value"}, 7},
		{"missing colon", `{"a" 1}`, Limits{}, &SyntaxError{5, "no colon after a key"}, 5},
		{"wrong number", `[1,-x]`, Limits{}, &SyntaxError{4, "malformed number"}, 4},
		{"wrong word", `[trup]`, Limits{}, &SyntaxError{4, "no value"}, 4},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{31, 1, 2} {
				s, r := scanChunks(fuzzTable(), c.limits, inChunks(c.in, size))
				if r.err != c.err.Error() || r.offset != c.offset {
					t.Errorf("chunks of %d bytes: got %s at %d, want %s at %d", size, r.err, r.offset, c.err, c.offset)
				}
				if _, err := s.Write([]byte(" ")); err == nil || err.Error() != r.err {
					t.Errorf("the next Write returned %v", err)
				}
				if err := s.Close(); err == nil || err.Error() != r.err {
					t.Errorf("Close returned %v", err)
				}
			}
		})
	}
}

func TestOnceChecksOneObject(t *testing.T) {
	for _, in := range []string{
		`{"list":[{"y":{"c":1}},{"y":{"c":1}}]}`, // different elements
		`{"x":{"model":1},"model":2}`,            // different objects
		`{"only":{},"only":{"one":1}}`,           // reached once
		`{"a":1,"a":2}`,                          // not Once
	} {
		mustScan(t, fuzzTable(), in)
	}
}

func TestFindKeepsTheLastDuplicateAsPythonDoes(t *testing.T) {
	table := NewTable(Want{Path: "a.b"}, Want{Path: "a"})
	cases := []struct{ name, in, value string }{
		{"last in one object", `{"a":{"b":1,"b":2}}`, "2"},
		{"last parent", `{"a":{"b":1},"a":{"b":2}}`, "2"},
		{"the last parent has none", `{"a":{"b":1},"a":{}}`, ""},
		{"the last parent is no object", `{"a":{"b":1},"a":3}`, ""},
		{"none", `{}`, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m, ok := mustScan(t, table, c.in).Find(0)
			if ok != (c.value != "") || ok && c.in[m.Value.Start:m.Value.End] != c.value {
				t.Errorf("found %v %+v, want %q", ok, m, c.value)
			}
		})
	}
}

func TestSink(t *testing.T) {
	table := NewTable(Want{Path: "p", Sink: true}, Want{Path: "m", Sink: true}, Want{Path: "m.*.c", Sink: true})
	cases := []struct {
		name, in string
		out      map[int]string
	}{
		{"string without quotes, still escaped", `{"p":"a\n\"b\\"}`, map[int]string{0: `a\n\"b\\|`}},
		{"empty string", `{"p":""}`, map[int]string{0: `|`}},
		{"array as JSON", `{"p":[1, [2],"x"] }`, map[int]string{0: `[1, [2],"x"]|`}},
		{"number", `{"p":12,"q":1}`, map[int]string{0: `12|`}},
		{"word", `{"p":null}`, map[int]string{0: `null|`}},
		{"sink in a sink", `{"m":[{"c":"x"},{"c":[1]}]}`, map[int]string{1: `[{"c":"x"},{"c":[1]}]|`, 2: `x|[1]|`}},
		{"cut off", `{"p":"abc`, map[int]string{0: `abc`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{31, 1, 2, 3} {
				if _, r := scanChunks(table, Limits{}, inChunks(c.in, size)); !maps.Equal(r.sunk, c.out) {
					t.Errorf("chunks of %d bytes: got %v, want %v", size, r.sunk, c.out)
				}
			}
		})
	}
}

func TestSinkIsToldTheKind(t *testing.T) {
	var s Scanner
	var kinds []Kind
	s.Reset(NewTable(Want{Path: "p", Sink: true}, Want{Path: "p.*", Sink: true}), Limits{}, func(_ int, _ []byte, last bool) {
		if last {
			kinds = append(kinds, s.Sinking())
		}
	})
	if _, err := s.Write([]byte(`{"p":["x",1,null]}`)); err != nil {
		t.Fatal(err)
	}
	if want := []Kind{String, Number, Null, Array}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %v, want %v", kinds, want)
	}
}

func TestSinkBeneathElementsKeepsNoMembers(t *testing.T) {
	s := mustScan(t, chatTable(), string(messages(3000)))
	m, ok := s.Find(8)
	if !ok || m.Count != 3001 || len(s.Members()) != 3 {
		t.Errorf("messages %+v, %d members", m, len(s.Members()))
	}
}

func TestSettled(t *testing.T) {
	table := NewTable(Want{Path: "aa"}, Want{Path: "o.bb"}, Want{Path: "list.*"})
	cases := []struct {
		name, in string
		out      int64
	}{
		{"nothing yet", ``, 0},
		{"after a brace", `{ `, 2},
		{"in the first key", `{ "a`, 2},
		{"a key decided", `{"aa"`, 5},
		{"an unwanted key decided", `{"ab"`, 5},
		{"after a comma", `{"x":1, `, 6},
		{"in a key after a comma", `{"x":1, "a`, 6},
		{"a key too long to be wanted", `{"x":1, "` + strings.Repeat("a", 99), 108},
		{"in a value", `{"x":1,"y":2`, 12},
		{"where nothing is wanted", `{"x":{"y":1,"a`, 14},
		{"in an object on the way", `{"o":{"y":1,"b`, 11},
		{"before an element", `{"list":[1, `, 10},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var s Scanner
			s.Reset(table, Limits{}, nil)
			if _, err := s.Write([]byte(c.in)); err != nil {
				t.Fatal(err)
			}
			if got := s.Settled(); got != c.out {
				t.Errorf("got %d, want %d", got, c.out)
			}
		})
	}
}

func TestPath(t *testing.T) {
	table := NewTable(Want{Path: "a"}, Want{Path: "b.*.c"})
	if n, got := table.Wants(), table.Path(1); n != 2 || got != "b.*.c" {
		t.Errorf("%d wants, the second %q", n, got)
	}
}

func TestMalformedTablesPanic(t *testing.T) {
	many := make([]Want, maxNames+1)
	for i := range many {
		many[i].Path = fmt.Sprint("n", i)
	}
	cases := map[string][]Want{
		"empty path": {{Path: ""}}, "empty element": {{Path: "a..b"}}, "twice": {{Path: "a"}, {Path: "a"}},
		"quote": {{Path: `a"`}}, "slash": {{Path: "a/b"}}, "no UTF-8": {{Path: "a\xff"}}, "control": {{Path: "a\n"}}, "too many": many,
	}
	for name, wants := range cases {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			NewTable(wants...)
		})
	}
}

func TestScannerIsReusable(t *testing.T) {
	var s Scanner
	for _, in := range bodies() {
		_, want := scanChunks(fuzzTable(), Limits{}, [][]byte{[]byte(in)})
		s.Reset(fuzzTable(), Limits{}, nil)
		_, err := s.Write([]byte(in))
		if err == nil {
			err = s.Close()
		}
		if !slices.Equal(s.Members(), want.members) || s.Root() != want.root || fmt.Sprint(err) != want.err {
			t.Errorf("%q differs in a used scanner: %v, %s", in, err, want)
		}
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	table, in := chatTable(), chat(10_000, `x\"`)
	var s Scanner
	scan := func() {
		s.Reset(table, Limits{}, nil)
		for at := 0; at < len(in); at += 100 {
			if _, err := s.Write(in[at:min(at+100, len(in))]); err != nil {
				t.Fatal(err)
			}
		}
	}
	scan()
	if n := testing.AllocsPerRun(10, scan); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestErrorsAreMatched(t *testing.T) {
	var s Scanner
	s.Reset(NewTable(Want{Path: "a", Once: true}), Limits{}, nil)
	_, err := s.Write([]byte(`{"a":1,"a":2}`))
	var dup *DuplicateError
	if !errors.As(err, &dup) || dup.Path != "a" {
		t.Errorf("got %v", err)
	}
}

// checkSplit: whatever the chunks, the scan shows the same.
func checkSplit(t *testing.T, in, cuts []byte) {
	t.Helper()
	table := fuzzTable()
	limits := Limits{Depth: 20, Size: 500, Members: 10}
	_, whole := scanChunks(table, limits, split(in, nil))
	for _, c := range [][]byte{cuts, {0}, {7}} {
		if _, parts := scanChunks(table, limits, split(in, c)); !reflect.DeepEqual(parts, whole) {
			t.Fatalf("%q\nwhole: %s\nparts: %s", in, whole, parts)
		}
	}
}

func FuzzSplit(f *testing.F) {
	for i, in := range bodies() {
		f.Add([]byte(in), []byte{byte(i), 3, 30})
	}
	f.Fuzz(checkSplit)
}

// checkScan: what encoding/json accepts is accepted and has the same members;
// what it does not accept is not, but for what is in strings and what is meant.
func checkScan(t *testing.T, in []byte) {
	t.Helper()
	if !json.Valid(in) {
		_, r := scanChunks(fuzzTable(), Limits{Depth: 20_000, Members: 1 << 20}, split(in, nil))
		if r.err == "<nil>" && !json.Valid(grammar(in)) {
			t.Fatalf("%q was accepted", in)
		}
		return
	}
	var want map[string]json.RawMessage
	isObject := json.Unmarshal(in, &want) == nil && want != nil
	var names []Want
	for name := range want {
		bad := func(r rune) bool { return r < ' ' || strings.ContainsRune(`"\/.`, r) }
		if name != "" && name != "*" && !strings.ContainsFunc(name, bad) && len(names) < maxNames {
			names = append(names, Want{Path: name})
		}
	}
	s, r := scanChunks(NewTable(names...), Limits{Depth: 20_000, Members: 1 << 20}, split(in, nil))
	if r.err != "<nil>" || (r.root.Kind == Object) != isObject {
		t.Fatalf("%q: %s", in, r)
	}
	for i, w := range names {
		m, ok := s.Find(i)
		if !ok || string(in[m.Value.Start:m.Value.End]) != string(want[w.Path]) {
			t.Fatalf("%q: %q is %+v, want %s", in, w.Path, m, want[w.Path])
		}
		var elements []json.RawMessage
		switch raw := want[w.Path]; m.Kind {
		case Array:
			if json.Unmarshal(raw, &elements) != nil || m.Count != len(elements) {
				t.Fatalf("%q: %q has %d elements", in, w.Path, m.Count)
			}
		case Object:
			if m.Count != len(ordered(t, raw)) {
				t.Fatalf("%q: %q has %d members", in, w.Path, m.Count)
			}
		case String:
			if m.Escaped != hasEscape(raw) {
				t.Fatalf("%q: %q is escaped: %v", in, w.Path, m.Escaped)
			}
		}
	}
	if isObject && r.root.Count != len(ordered(t, in)) {
		t.Fatalf("%q: %d members", in, r.root.Count)
	}
}

func FuzzScan(f *testing.F) {
	for _, in := range bodies() {
		f.Add([]byte(in))
	}
	f.Fuzz(checkScan)
}
