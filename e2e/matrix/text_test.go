package matrix

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/sim/fault"
)

// TestMatrixText checks that the files in testdata show the tables that the rows are checked by.
func TestMatrixText(t *testing.T) {
	for _, p := range protocols {
		text := p.table()
		if *update {
			if err := os.WriteFile(p.text, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(p.text)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != text {
			t.Errorf("%s differs from the tables; write it anew with -update. The tables say:\n%s", p.text, text)
		}
	}
}

// rowsFile has a line for each protocol, API, form of answer and state of the request: how many rows there are, all of which TestMatrix runs.
// docs/protocols.md shows it.
const rowsFile = "testdata/rows.txt"

// TestRowsText checks that the file has the rows that there are.
func TestRowsText(t *testing.T) {
	if testing.Short() {
		t.Skip("the short form of the tests has fewer rows")
	}
	count := map[string]int{}
	for _, r := range rows() {
		f := whole
		if r.stream {
			f = stream
		}
		count[fmt.Sprintf("%s, %s, %s, %s", cmp.Or(r.protocol.name, "nixlv2"), r.api, f, r.state)]++
	}
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(&b, "%s: %d\n", key, count[key])
	}
	if *update {
		if err := os.WriteFile(rowsFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(rowsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s does not have the rows that TestMatrix runs; write it anew with -update. They are:\n%s", rowsFile, b.String())
	}
}

// TestEveryDamage: each damage that the simulator can do has a row in damages.
func TestEveryDamage(t *testing.T) {
	for _, name := range fault.Damages() {
		if _, ok := damages[name]; !ok {
			t.Errorf("%s has no row in damages", name)
		}
	}
	for name := range damages {
		if !slices.Contains(fault.Damages(), name) {
			t.Errorf("%s is no damage of the simulator's", name)
		}
	}
}

const nixlHead = `What a client gets, by the state of its request, by what goes wrong, and by the choice that the sidecar has left.

Each case holds for streams and whole answers, for chat, completions, responses, messages and generate, unless it says
otherwise, and each is run by TestMatrix. A line is the status, what x-tandem-pd-decision says, and "retry" if a proxy may try another decode pod
(x-tandem-retry). Answers with 200 have the tokens of an engine that does not fail, unless the line says otherwise. "Every
time" marks a fault that a second leg to the engine meets again. The other faults of the decode engine happen once, unless
they end it.

The sidecar releases each hand-off that decode does not read: it tells prefill itself [direct], or makes decode tell prefill
[by decode]. Without a keeper (the process that owns the NIXL agent), or while the keeper is down, the sidecar always makes
decode tell prefill. A hand-off stays pinned by its prefill engine until its lease ends only where a line has [lost: why],
or, if the sidecar has no keeper, [lost without a keeper: why].
`

const serialHead = `What a client gets from engines that speak a made-up serial protocol (sim/madeup, Ticket), as matrix.txt shows it for vLLM's.

The sidecar returns the ticket of each hand-off that decode does not read to the decode engine, which tells prefill [by
decode]. It has no other way. A hand-off stays pinned by its prefill engine only where a line has [lost: why].
`

const concurrentHead = `What a client gets from engines that speak a made-up concurrent protocol (sim/madeup, Meeting), as matrix.txt shows it for vLLM's.

Both legs are sent at once. While prefill runs, and until its hand-off has come, decode waits for it. The sidecar asks both
engines to abort each attempt that it gives up [by abort]. An attempt with the next candidate has two legs of its own. A
hand-off stays pinned by its prefill engine only where a line has [lost: why].
`

// table shows failures of a state with the same outcomes together.
func (p *protocol) table() string {
	var b strings.Builder
	b.WriteString(p.head)
	var at state
	list := p.failures()
	for len(list) > 0 {
		if list[0].state != at {
			at = list[0].state
			fmt.Fprintf(&b, "\n== %s ==\n", at)
		}
		ends := list[0].ends()
		alike, rest := []failure(nil), []failure(nil)
		for _, s := range list {
			if s.state == at && s.ends() == ends {
				alike = append(alike, s)
			} else {
				rest = append(rest, s)
			}
		}
		b.WriteString("\n")
		writeAlike(&b, alike)
		b.WriteString(ends)
		list = rest
	}
	if p != nixl {
		return b.String()
	}
	b.WriteString("\n== the sidecar is killed, in any state ==\n\n")
	died := killings()
	for i := range died {
		died[i].name, died[i].release = string(died[i].state), notReleased
	}
	writeAlike(&b, died)
	b.WriteString("    the connection ends\n")
	return b.String()
}

// writeAlike writes the names of failures, how each releases its hand-off, and why it is lost.
func writeAlike(b *strings.Builder, alike []failure) {
	for _, s := range alike {
		b.WriteString(s.title())
		if told := s.way(); told != notReleased {
			fmt.Fprintf(b, "   [%s]", told)
		}
		switch s.lost {
		case notLost:
		case decodeLost:
			if !s.protocol.notices {
				fmt.Fprintf(b, "   [lost: %s]", s.lost)
				break
			}
			fmt.Fprintf(b, "   [lost without a keeper: %s]", s.lost)
		default:
			fmt.Fprintf(b, "   [lost: %s]", s.lost)
		}
		b.WriteString("\n")
	}
}

func (s failure) title() string {
	if s.form != anyForm {
		return s.name + " (" + string(s.form) + ")"
	}
	return s.name
}

// ends returns the outcomes in all situations as text, or one line if all are the same.
func (s failure) ends() string {
	first := s.expected(another)
	same := true
	var b strings.Builder
	for in := range situations {
		o := s.expected(in)
		same = same && o == first
		fmt.Fprintf(&b, "    %-18s %s\n", in.String()+":", o)
	}
	if same {
		return fmt.Sprintf("    %s\n", first)
	}
	return b.String()
}
