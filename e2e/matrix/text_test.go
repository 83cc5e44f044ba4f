package matrix

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/sim"
)

const textFile = "testdata/matrix.txt"

// TestMatrixText keeps the table for people equal to the tables that the rows are judged by.
func TestMatrixText(t *testing.T) {
	text := matrixText()
	if *update {
		if err := os.WriteFile(textFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(textFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != text {
		t.Errorf("%s is not what the tables say; write it anew with -update. They say:\n%s", textFile, text)
	}
}

// TestEveryDamage: a damage that the simulator learns must be promised something.
func TestEveryDamage(t *testing.T) {
	for _, name := range sim.Damages() {
		if _, ok := damages[name]; !ok {
			t.Errorf("%s has no row in damages", name)
		}
	}
	for name := range damages {
		if !slices.Contains(sim.Damages(), name) {
			t.Errorf("%s is no damage of the simulator's", name)
		}
	}
}

const textHead = `What a client gets, by the state of its request, by what goes wrong, and by what the sidecar may still do.

Each case holds for streams and whole answers, for chat and completions, unless it says otherwise, and each is run by
TestMatrix. A line is the status, what x-tandem-pd-decision says, and "retry" if a proxy may try another decode pod
(x-tandem-retry). Answers with 200 have the tokens of an undisturbed engine, unless they say otherwise. "Every time" is a
fault that a second leg meets again; a second leg meets the other faults of the decode engine no more, unless it is dead.
What nobody reads is given back: directly, by the sidecar's own word to prefill [direct], or by way of decode [by decode]. All
goes by way of decode where there is no keeper, or it is down. No hand-off stays with its prefill engine until its lease ends
but those with [lost: why], and without a keeper those with [lost without a keeper: why].
`

// matrixText shows strikes that come to the same together.
func matrixText() string {
	var b strings.Builder
	b.WriteString(textHead)
	var at state
	list := strikes()
	for len(list) > 0 {
		if list[0].state != at {
			at = list[0].state
			fmt.Fprintf(&b, "\n== %s ==\n", at)
		}
		ends := list[0].ends()
		alike, rest := []strike(nil), []strike(nil)
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
	b.WriteString("\n== the sidecar is killed, in any state ==\n\n")
	died := killings()
	for i := range died {
		died[i].name, died[i].told = string(died[i].state), nowise
	}
	writeAlike(&b, died)
	b.WriteString("    the connection ends\n")
	return b.String()
}

// writeAlike names strikes, and which of them lose a hand-off.
func writeAlike(b *strings.Builder, alike []strike) {
	for _, s := range alike {
		b.WriteString(s.title())
		if told := s.way(); told != nowise {
			fmt.Fprintf(b, "   [%s]", told)
		}
		switch s.lost {
		case saved:
		case decodeLost:
			fmt.Fprintf(b, "   [lost without a keeper: %s]", s.lost)
		default:
			fmt.Fprintf(b, "   [lost: %s]", s.lost)
		}
		b.WriteString("\n")
	}
}

func (s strike) title() string {
	if s.form != anyForm {
		return s.name + " (" + string(s.form) + ")"
	}
	return s.name
}

// ends are the outcomes in all situations, or the one that all have.
func (s strike) ends() string {
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
