package report

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "rewrite testdata")

func text(t *testing.T, d *Data) string {
	t.Helper()
	var b bytes.Buffer
	if err := Text(&b, d); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTextIsAsRecorded(t *testing.T) {
	for name, d := range map[string]*Data{"sample": sample(1, 90), "failed": failing(), "empty": {}} {
		t.Run(name, func(t *testing.T) {
			got, file := text(t, d), "testdata/"+name+".txt"
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestTextTablesFitATerminal(t *testing.T) {
	wide := sample(1, 90)
	for i := range wide.Requests {
		wide.Requests[i].Class = strings.Repeat("very ", 40) + wide.Requests[i].Class
		wide.Requests[i].Total *= 1e6
		wide.Requests[i].TTFT *= 1e6
	}
	for name, d := range map[string]*Data{"sample": sample(1, 90), "wide": wide, "hostile": hostile()} {
		t.Run(name, func(t *testing.T) {
			rows := 0
			for line := range strings.Lines(text(t, d)) {
				if strings.Contains(line, " ms  ") || strings.HasSuffix(line, "decode\n") {
					rows++
				}
				// Only tables are limited; sentences may be longer.
				if n := utf8.RuneCountInString(line) - 1; n > textColumns && (strings.Contains(line, "█") || strings.HasPrefix(line,
					"class ") ||
					strings.HasPrefix(line, "very ")) {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			if rows == 0 && name != "hostile" {
				t.Error("no table was seen")
			}
		})
	}
}

// TestTextIsHarmless: no text in a run can move the cursor, or forge the line of a check.
func TestTextIsHarmless(t *testing.T) {
	d := hostile()
	d.Checks = []Check{{Name: "tokens", Got: "none\nok      tokens: all equal\x1b[1A"}}
	out := text(t, d)
	if strings.ContainsAny(out, "\x1b\x00\u202e") || !utf8.ValidString(out) {
		t.Errorf("%q", out)
	}
	if strings.Contains(out, "\nok ") {
		t.Errorf("a line was forged:\n%s", out)
	}
}

func TestBar(t *testing.T) {
	for name, c := range map[string]struct {
		of   stretch
		want string
	}{
		"all":        {stretch{"", 0, 100}, "██████████"},
		"middle":     {stretch{"", 20, 50}, "  ███"},
		"sliver":     {stretch{"", 50, 50.1}, "     ▏"},
		"last":       {stretch{"", 100, 100}, "         █"},
		"end":        {stretch{"", 90, 100}, "         █"},
		"off screen": {stretch{"", 90, 200}, "         █"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := bar(c.of, 100, 10); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
