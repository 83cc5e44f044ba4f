package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	candidates := []string{"queue-scorer", "token-load-scorer", "prefill-filter", "decode-filter", "max-score-picker"}
	tests := []struct{ name, want string }{
		{"queue-scoer", `; did you mean "queue-scorer"?`},
		{"QueueScorer", `; did you mean "queue-scorer"?`},
		{"queue", `; did you mean "queue-scorer"?`},
		{"filter", `; did you mean "decode-filter" or "prefill-filter"?`},
		{"scorer", `; did you mean "queue-scorer" or "token-load-scorer"?`},
		{"max-score-pciker", `; did you mean "max-score-picker"?`},
		{"round-robin", ""},
		{"ab", ""},
		{strings.Repeat("queue-scorer", 6), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := newFindings().nearest(test.name, candidates); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestFindings(t *testing.T) {
	f := newFindings()
	f.lines["plugins"], f.lines["plugins[1]"], f.lines["plugins[1].type"] = 3, 9, 10
	f.problem("plugins[1].type", "first")
	f.problem("plugins[1].type", "second")
	f.problem("plugins[1].parameters.deep[3].x", "without a line of its own")
	f.problem("plugins[0]", "earlier")
	f.problem("kind", "nowhere")
	f.missing("plugins[1].name", "may be what is wrong in plugins[1].type")
	f.missing("plugins[2].name", "missing")
	const want = `kind: nowhere
line 3: plugins[0]: earlier
line 3: plugins[2].name: missing
line 9: plugins[1].parameters.deep[3].x: without a line of its own
line 10: plugins[1].type: first`
	if got := f.err().Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFindingsAreBounded(t *testing.T) {
	f := newFindings()
	for i := range 3 * maxProblems {
		f.problem(fmt.Sprintf("plugins[%d]", i), "wrong")
		f.warn(fmt.Sprintf("plugins[%d]", i), "odd")
	}
	lines := strings.Split(f.err().Error(), "\n")
	if len(lines) != maxProblems+1 || lines[maxProblems] != "and 200 more problems" || len(f.warnings) != maxProblems {
		t.Errorf("%d lines, the last %q, %d warnings", len(lines), lines[len(lines)-1], len(f.warnings))
	}
	if got := f.nearest("queue-scoer", []string{"queue-scorer"}); got != "" {
		t.Errorf("%s is looked for, for a problem that is not told", got)
	}
}

func TestQuote(t *testing.T) {
	if got, want := quote(strings.Repeat("x", 100)), `"`+strings.Repeat("x", 80)+`"…`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
