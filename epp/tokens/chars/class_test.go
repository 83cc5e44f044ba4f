package chars

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write unicode16.go and older.go anew from testdata/classes.txt")

// recorded returns the classes of the reference; testdata/classes.py has written them.
func recorded(t *testing.T) map[string]Set {
	t.Helper()
	data, err := os.ReadFile("testdata/classes.txt")
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]Set{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if fields[0] == "#" || fields[0] == "lower" {
			continue
		}
		var set Set
		for _, f := range fields[1:] {
			var r Range
			if _, err := fmt.Sscanf(f, "%x-%x", &r.Lo, &r.Hi); err != nil {
				r.Hi = r.Lo
			}
			set = append(set, r)
		}
		classes[fields[0]] = set
	}
	return classes
}

func TestClassesAreTheReferences(t *testing.T) {
	classes := recorded(t)
	if *update {
		writeUnicode16(t, classes)
		writeOlder(t, classes)
	}
	for name, want := range classes {
		var got Set
		switch name {
		case "s":
			got = Space()
		case "d":
			got = Digit()
		case "w":
			got = Word()
		case "accent":
			got = Accent()
		case "mark":
			got = Mark()
		case "control":
			got = Control()
		case "ideograph":
			got = Ideograph()
		case "numeric":
			got = Numeric()
		case "punctuation":
			got = Punctuation()
		case "decomposing":
			got = collect(func(r rune) bool { return NFKD.String(string(r)) != string(r) && !older["later"].Contains(r) })
		case "combining":
			got = collect(func(r rune) bool {
				return class(r) != 0 && r != 0x345 && NFD.IsNormalString(string(r)) && !older["later"].Contains(r)
			})
		default:
			got, _ = Category(name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("class %s: in the reference only %x, here only %x", name, minus(want, got), minus(got, want))
		}
	}
}

// collect returns the code points for which a function is true.
func collect(in func(r rune) bool) (set Set) {
	for r := range rune(unicode.MaxRune + 1) {
		if utf8.ValidRune(r) && in(r) {
			set = append(set, Range{r, r})
		}
	}
	return Ranges(set...)
}

// minus returns what is in a and not in b.
func minus(a, b Set) Set { return Union(a.Negate(), b).Negate() }

func writeUnicode16(t *testing.T, classes map[string]Set) {
	var out bytes.Buffer
	out.WriteString("package chars\n\n// unicode16 has what the general categories of Unicode 16 have beyond those of Unicode 15; written by\n// TestClassesAreTheReferences with -update.\nvar unicode16 = map[string]Set{\n")
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		t, ok := unicode.Categories[name]
		if !ok {
			continue
		}
		added := minus(classes[name], table(t))
		if len(added) == 0 {
			continue
		}
		fmt.Fprintf(&out, "%q: {", name)
		for i, r := range added {
			if i > 0 && i%8 == 0 {
				out.WriteString("\n")
			}
			fmt.Fprintf(&out, "{%#x, %#x},", r.Lo, r.Hi)
		}
		out.WriteString("},\n")
	}
	out.WriteString("}\n")
	writeGo(t, "unicode16.go", out.Bytes())
}

// recordedLower returns what code points become in lower case in the reference, where that is one other code point.
func recordedLower(t *testing.T) map[rune]rune {
	t.Helper()
	data, err := os.ReadFile("testdata/classes.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, line, ok := strings.Cut(string(data), "\nlower ")
	if !ok {
		t.Fatal("no line has the lower case")
	}
	all := map[rune]rune{}
	for _, f := range strings.Fields(line) {
		var from, to rune
		if _, err := fmt.Sscanf(f, "%x-%x", &from, &to); err != nil {
			t.Fatal(err)
		}
		all[from] = to
	}
	return all
}

func TestLowerIsTheReferences(t *testing.T) {
	want := recordedLower(t)
	want['İ'] = 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		text := string(r)
		if to, ok := want[r]; ok {
			text = string(to)
		}
		if r == 'İ' {
			text = "i\u0307"
		}
		if got := string(AppendLower(nil, r)); got != text {
			t.Errorf("%U: got %q, want %q", r, got, text)
		}
	}
}

// writeOlder writes the sets of other versions of Unicode, and what Go's lower case lacks.
func writeOlder(t *testing.T, classes map[string]Set) {
	var out bytes.Buffer
	classes = maps.Clone(classes)
	classes["later"] = Union(minus(collect(func(r rune) bool { return NFKD.String(string(r)) != string(r) }), classes["decomposing"]),
		minus(collect(func(r rune) bool { return class(r) != 0 && r != 0x345 && NFD.IsNormalString(string(r)) }), classes["combining"]))
	out.WriteString("package chars\n\n// older has sets of code points as the reference's normalizers and pre-tokenizers have them; written by\n// TestClassesAreTheReferences with -update.\nvar older = map[string]Set{\n")
	for _, name := range []string{"accent", "control", "ideograph", "later", "mark", "numeric", "punctuation"} {
		fmt.Fprintf(&out, "%q: {", name)
		for i, r := range classes[name] {
			if i > 0 && i%10 == 0 {
				out.WriteString("\n")
			}
			fmt.Fprintf(&out, "{%#x, %#x},", r.Lo, r.Hi)
		}
		out.WriteString("},\n")
	}
	out.WriteString("}\n\n// newerLower has the lower case of code points that Go's tables do not have; written with older.\nvar newerLower = map[rune]rune{")
	lower, n := recordedLower(t), 0
	for _, r := range slices.Sorted(maps.Keys(lower)) {
		if unicode.ToLower(r) != lower[r] {
			if n%10 == 0 {
				out.WriteString("\n")
			}
			n++
			fmt.Fprintf(&out, "%#x: %#x,", r, lower[r])
		}
	}
	out.WriteString("\n}\n")
	writeGo(t, "older.go", out.Bytes())
}

// writeGo formats and writes a file.
func writeGo(t *testing.T, name string, code []byte) {
	t.Helper()
	text, err := format.Source(code)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSets(t *testing.T) {
	s := Union(Of('b', 'a', 'z'), Ranges(Range{'d', 'g'}, Range{'e', 'k'}))
	if want := (Set{{'a', 'b'}, {'d', 'k'}, {'z', 'z'}}); !slices.Equal(s, want) {
		t.Errorf("Union = %v, want %v", s, want)
	}
	if back := s.Negate().Negate(); !slices.Equal(back, s) {
		t.Errorf("negated twice: %v, want %v", back, s)
	}
	for _, r := range "`c\x00l\U0010FFFF" {
		if s.Contains(r) || !s.Negate().Contains(r) {
			t.Errorf("%q is said to be in %v", r, s)
		}
	}
	if got, want := Of('s', 'T', 'é').Fold(), (Set{{'S', 'T'}, {'s', 't'}, {'é', 'é'}, {'ſ', 'ſ'}}); !slices.Equal(got, want) {
		t.Errorf("Fold = %v, want %v", got, want)
	}
	if _, ok := Category("Cn"); ok {
		t.Error("unassigned code points have a category")
	}
}
