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
)

var update = flag.Bool("update", false, "write unicode16.go anew from testdata/classes.txt")

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
		if fields[0] == "#" {
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
		default:
			got, _ = Category(name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("class %s: in the reference only %x, here only %x", name, minus(want, got), minus(got, want))
		}
	}
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
	text, err := format.Source(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("unicode16.go", text, 0o644); err != nil {
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
