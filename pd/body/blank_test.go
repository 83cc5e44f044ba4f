package body

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

var blankTable = NewTable(Want{Path: "kv"}, Want{Path: "a"}, Want{Path: "b.c"}, Want{Path: "list.*"}, Want{Path: "list.*.x"}, Want{Path: "keep"})

// allButKeep removes every want of blankTable but "keep" and the elements.
func allButKeep(want int) bool { return want != 3 && want != 5 }

// blanked reads in, which comes in chunks, through a Blank by reads of size.
func blanked(chunks [][]byte, size int, remove func(int) bool) (string, *Blank, error) {
	b := NewBlank(&chunkReader{chunks}, blankTable, Limits{Depth: 20_000}, remove)
	var out []byte
	p := make([]byte, size)
	for {
		n, err := b.Read(p)
		out = append(out, p[:n]...)
		if err == io.EOF {
			return string(out), b, nil
		}
		if err != nil {
			return string(out), b, err
		}
	}
}

// eachWay calls f with in as chunks of several sizes, and sizes of reads. The
// chunks are copies: a Blank may overwrite what it reads.
func eachWay(in string, f func(chunks [][]byte, size int)) {
	for _, chunk := range []int{31, 1, 2, 3, 7} {
		for _, size := range []int{1, 2, 17, 4096, 100_000} {
			f(inChunks(in, chunk), size)
		}
	}
}

func TestBlank(t *testing.T) {
	gap := strings.Repeat(" ", 300)
	cases := []struct{ name, in, out string }{
		{"nothing", `{"x":1, "y":[2]}`, `{"x":1, "y":[2]}`},
		{"only", `{"kv":{"x":[1]} }`, `{               }`},
		{"first", `{ "kv":1, "x":2}`, `{         "x":2}`},
		{"last", `{"x":2, "kv":1}`, `{"x":2        }`},
		{"middle", `{"x":2, "kv":1 ,"y":3}`, `{"x":2         ,"y":3}`},
		{"first two", `{"kv":1,"a":"b" , "x":2}`, `{                 "x":2}`},
		{"first two and last", `{"kv":1,"a":"b" , "x":2 , "kv" : null}`, `{                 "x":2              }`},
		{"all", `{"kv":1, "a":2 , "kv":3}`, `{                      }`},
		{"escaped key", `{"x":1,"\u006bv":1}`, `{"x":1            }`},
		{"nested", `{"b":{"c":1,"x":2},"y":3}`, `{"b":{      "x":2},"y":3}`},
		{"nested and outer", `{"a":{"b":1},"b":{"c":1},"x":0}`, `{            "b":{     },"x":0}`},
		{"inside a removed value", `{"a":{"kv":1},"kv":[{"a":1}] }`, `{                            }`},
		{"in elements", `{"list":[{"x":1},{"y":2,"x":1},3]}`, `{"list":[{     },{"y":2      },3]}`},
		{"the same name elsewhere stays", `{"b":{"kv":1},"x":["kv"],"y":"\"kv\":1"}`, `{"b":{"kv":1},"x":["kv"],"y":"\"kv\":1"}`},
		{"a name that begins alike stays", `{"kvx":1,"k":2}`, `{"kvx":1,"k":2}`},
		{"a wanted one that is to stay", `{"keep":1,"kv":2}`, `{"keep":1       }`},
		{"a long key", `{"x":1,"` + strings.Repeat("kv", 100) + `":1,"kv":1}`, `{"x":1,"` + strings.Repeat("kv", 100) + `":1       }`},
		{"a long gap", `{"x":1,` + gap + `"kv":1}`, `{"x":1 ` + gap + `      }`},
		{"a long gap after the first", `{"kv":1,` + gap + `"x":1}`, `{       ` + gap + `"x":1}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			eachWay(c.in, func(chunks [][]byte, size int) {
				out, b, err := blanked(chunks, size, allButKeep)
				if err != nil || out != c.out {
					t.Errorf("%d chunks, reads of %d:\n got %s, %v\nwant %s", len(chunks), size, out, err, c.out)
				}
				if b.Removed() != (c.in != c.out) || b.Scanner().Offset() != int64(len(c.in)) {
					t.Errorf("removed %v, offset %d", b.Removed(), b.Scanner().Offset())
				}
			})
		})
	}
}

func TestBlankRemovesElements(t *testing.T) {
	eachWay(`{"list":[1, {"x":1} ,3], "x":[4]}`, func(chunks [][]byte, size int) {
		out, _, err := blanked(chunks, size, func(want int) bool { return want == 3 })
		if want := `{"list":[             ], "x":[4]}`; err != nil || out != want {
			t.Errorf("%d chunks, reads of %d: got %s, %v", len(chunks), size, out, err)
		}
	})
}

// A comma may be put off behind a long gap; all else is as it was.
func TestBlankKeepsMembersAfterALongGap(t *testing.T) {
	in := `{"x":1,` + strings.Repeat(" ", 300) + `"y":1 , "kv":1}`
	eachWay(in, func(chunks [][]byte, size int) {
		out, _, err := blanked(chunks, size, allButKeep)
		list := ordered(t, []byte(out))
		if err != nil || len(out) != len(in) || len(list) != 2 || list[1] != (oneMember{"y", "1"}) {
			t.Errorf("%d chunks, reads of %d: got %s, %v", len(chunks), size, out, err)
		}
	})
}

func TestBlankOfBrokenJSON(t *testing.T) {
	cases := []struct {
		name, in, out string
		err           error
	}{
		{"harmless", `{"x":1]rest`, `{"x":1]rest`, nil},
		{"empty", ``, ``, nil},
		{"cut off", `{"x":"y`, `{"x":"y`, nil},
		{"cut off after a comma", `{"x":1, `, `{"x":1, `, nil},
		{"removed before it broke", `{"kv":1,"x":2]rest`, ``, ErrHidden},
		{"removed before it was cut off", `{"kv":1,"x":2`, `{       "x":2`, nil},
		{"cut off in what is removed", `{"x":1,"kv":{"y":[1`, `{"x":1             `, nil},
		{"JSON without the member", `{"kv":{},}`, ``, ErrHidden},
		{"JSON without the broken member", `{"x":1,"kv":1e,"y":2}`, ``, ErrHidden},
		{"a removed member's own turned into another", `{"x":1,"kv":{"y":1,,"z":2}`, ``, ErrHidden},
		{"the name after it broke", `{"x":1]"kv":1`, ``, ErrHidden},
		{"the name without quotes", `{kv:1}`, ``, ErrHidden},
		{"the name by an escape", `{"x":1]"\u006b`, ``, ErrHidden},
		{"the name by an escape in capitals", `{"x":1]"\u006B`, ``, ErrHidden},
		{"an escape of no such letter", `{"x":1]"\u0071\u4f60`, `{"x":1]"\u0071\u4f60`, nil},
		{"a key cut off", `{"x":1,"kv`, ``, ErrHidden},
		{"the name of what is to stay", `{"x":1]"keep`, `{"x":1]"keep`, nil},
		{"the name long before", `{"z":"kv kv kv","x":1]rest`, `{"z":"kv kv kv","x":1]rest`, nil},
	}
	// Without "a", a letter that any text has.
	remove := func(want int) bool { return want == 0 }
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			eachWay(c.in, func(chunks [][]byte, size int) {
				out, _, err := blanked(chunks, size, remove)
				if err != c.err || c.err == nil && out != c.out {
					t.Errorf("%d chunks, reads of %d: got %q, %v", len(chunks), size, out, err)
				}
				if c.err != nil && strings.Contains(out, "kv") {
					t.Errorf("%d chunks, reads of %d: released %q", len(chunks), size, out)
				}
			})
		})
	}
}

func TestBlankReturnsTheScannersErrors(t *testing.T) {
	table := NewTable(Want{Path: "kv", Once: true})
	cases := []struct {
		in  string
		err error
	}{
		{`{"kv":1,"kv":2}`, &DuplicateError{"kv", 8}},
		{`[[[[[]]]]]`, ErrTooDeep},
		{`{"x":"` + strings.Repeat("x", 60) + `"}`, ErrTooLarge},
		{"{\x00}\x00", ErrEncoding},
	}
	for _, c := range cases {
		b := NewBlank(strings.NewReader(c.in), table, Limits{Depth: 4, Size: 50}, allButKeep)
		_, err := io.ReadAll(b)
		if err == nil || err.Error() != c.err.Error() {
			t.Errorf("%q: got %v, want %v", c.in, err, c.err)
		}
		if _, again := b.Read(make([]byte, 9)); again != err {
			t.Errorf("%q: the next Read returned %v", c.in, again)
		}
	}
}

func TestBlankReturnsTheSourcesError(t *testing.T) {
	boom := errors.New("boom")
	src := io.MultiReader(strings.NewReader(`{"x":1,"kv`), iotest.ErrReader(boom))
	out, err := io.ReadAll(NewBlank(src, blankTable, Limits{}, allButKeep))
	if err != boom || string(out) != `{"x":1` {
		t.Errorf("got %q, %v", out, err)
	}
}

// The held-back bytes have a limit, whatever arrives.
func TestBlankHoldsLittle(t *testing.T) {
	long := 10_000
	for name, in := range map[string]string{
		"a long key":         `{"x":1,"` + strings.Repeat(`\u006b`, long) + `":2}`,
		"a long gap":         `{"x":1,` + strings.Repeat(" ", long) + `"kv":2}`,
		"a long first gap":   `{` + strings.Repeat(" ", long) + `"kv":2,` + strings.Repeat(" ", long) + `"x":1}`,
		"a gap in an array":  `{"list":[1,` + strings.Repeat(" ", long) + `2]}`,
		"a gap at the colon": `{"x":1,"kv"` + strings.Repeat(" ", long) + `:` + strings.Repeat(" ", long) + `1}`,
	} {
		for _, chunk := range []int{1, 7, 31} {
			b := NewBlank(&chunkReader{inChunks(in, chunk)}, blankTable, Limits{}, allButKeep)
			p := make([]byte, 1000)
			for {
				_, err := b.Read(p)
				if len(b.held) > maxGap+2+blankTable.longestKey() {
					t.Fatalf("%s, chunks of %d: %d bytes held", name, chunk, len(b.held))
				}
				if err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func TestBlankIsAReader(t *testing.T) {
	in := string(chat(20_000, "some text\\n"))
	for name, src := range map[string]io.Reader{
		"as it is": strings.NewReader(in), "bytes": iotest.OneByteReader(strings.NewReader(in)), "EOF with data": iotest.DataErrReader(strings.NewReader(in)),
	} {
		if err := iotest.TestReader(NewBlank(src, blankTable, Limits{}, allButKeep), []byte(in)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMentions(t *testing.T) {
	cases := []struct {
		name, in string
		out      bool
	}{
		{"literally", `x kv y`, true},
		{"not", `x k v y`, false},
		{"by an escape", `\u006b`, true},
		{"by an escape in capitals", `\u006B`, true},
		{"by an escape of the last letter", `k\u0076`, true},
		{"another escape", `\u0061\u4f60`, false},
		{"half an escape", `\u006`, false},
		{"beyond ASCII", `\u00e9`, true},
		{"half a surrogate pair", `\ud83d`, true},
	}
	table := NewTable(Want{Path: "kv"}, Want{Path: "b.kv"}, Want{Path: "é😀"}, Want{Path: "x"})
	for _, c := range cases {
		for size := 1; size < 9; size++ {
			got := table.Mentions(bodyOf(inChunks(c.in, size)), func(want int) bool { return want != 3 })
			if got != c.out {
				t.Errorf("%s, segments of %d bytes: got %v", c.name, size, got)
			}
		}
	}
}

func TestMentionsOfAnElement(t *testing.T) {
	table := NewTable(Want{Path: "list.*"})
	if !table.Mentions(bodyOf(inChunks("the list", 3)), func(int) bool { return true }) {
		t.Error("the name of its array was not found")
	}
}

// blankOps is what allButKeep removes.
func blankOps(path string) int {
	if slices.Contains([]string{`"kv"`, `"a"`, `"b""c"`, `"list"*"x"`}, path) {
		return opRemove
	}
	return opKeep
}

// checkBlank reads in, in chunks, through a Blank and compares with the
// reference and with one read.
func checkBlank(t *testing.T, in, cuts []byte, size int) {
	t.Helper()
	out, b, err := blanked(split(in, cuts), size, allButKeep)
	_, _, wholeErr := blanked(split(in, nil), 1<<16, allButKeep)
	if fmt.Sprint(err) != fmt.Sprint(wholeErr) {
		t.Fatalf("%q: %v, but in one piece %v", in, err, wholeErr)
	}
	if len(out) > len(in) || err == nil && len(out) < len(in) {
		t.Fatalf("%q: %d bytes became %d: %q", in, len(in), len(out), out)
	}
	if err != nil {
		if json.Valid(in) && err != ErrTooMany {
			t.Fatalf("%q: %v", in, err)
		}
		return
	}
	s, _ := scanChunks(blankTable, Limits{Depth: 20_000}, [][]byte{[]byte(out)})
	if k := slices.IndexFunc(s.Members(), func(m Member) bool { return allButKeep(m.Want) }); k >= 0 {
		t.Fatalf("%q: %q still has %+v", in, out, s.Members()[k])
	}
	whole, _ := scanChunks(blankTable, Limits{Depth: 20_000}, [][]byte{in})
	if e, ok := whole.err.(*SyntaxError); ok && e.Offset < int64(len(in)) && b.Removed() {
		t.Fatalf("%q, which is no JSON, became %q", in, out)
	}
	if !json.Valid(in) {
		return
	}
	want := canonical(t, in, "", blankOps)
	if got := canonical(t, []byte(out), "", keepAll); got != want {
		t.Fatalf("%q became %q:\n got %s\nwant %s", in, out, got, want)
	}
	if removed := want != canonical(t, in, "", keepAll); b.Removed() != removed {
		t.Fatalf("%q: Removed is %v", in, b.Removed())
	}
}

// FuzzBlank: whatever the reads, what comes out is as long as the source, is
// JSON if that was, has none of the members, and all others as they were. A
// source with a byte that does not fit loses none.
func FuzzBlank(f *testing.F) {
	for i, in := range bodies() {
		f.Add([]byte(in), []byte{byte(i), 5}, uint16(i*3))
	}
	f.Fuzz(func(t *testing.T, in, cuts []byte, size uint16) { checkBlank(t, in, cuts, int(size)+1) })
}
